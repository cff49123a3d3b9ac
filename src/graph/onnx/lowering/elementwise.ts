/** Lowering of elementwise and discrete operations. */
import type { BackwardOperations, DiscreteOperations, ElementwiseOperations } from '../../catalogue.ts';
import { MICROSOFT } from '../emitter.ts';
import type { LoweringRule, LoweringTable } from './rule.ts';

type Names =
  keyof ElementwiseOperations | keyof DiscreteOperations | Extract<keyof BackwardOperations, 'relu_grad'>;

function direct<K extends Names>(opType: string): LoweringRule<K> {
  return (e, inputs) => [e.op(opType, inputs)];
}

const ONNX_TYPES = { float32: 1, int32: 6, int64: 7, bool: 9 } as const;

export const elementwiseLowering: LoweringTable<Names> = {
  add: direct('Add'),
  sub: direct('Sub'),
  mul: direct('Mul'),
  div: direct('Div'),
  pow: direct('Pow'),
  add_n: (e, inputs) => [e.op(inputs.length === 1 ? 'Identity' : 'Sum', inputs)],
  neg: direct('Neg'),
  exp: direct('Exp'),
  log: direct('Log'),
  sqrt: direct('Sqrt'),
  abs: direct('Abs'),
  relu: direct('Relu'),
  tanh: direct('Tanh'),
  sigmoid: direct('Sigmoid'),
  erf: direct('Erf'),
  sign: direct('Sign'),
  softplus: direct('Softplus'),
  gelu: (e, [x]) => {
    if (!e.options.portable) return [e.op('Gelu', [x!], {}, MICROSOFT)];
    const cumulative = e.op('Add', [e.op('Erf', [e.op('Mul', [x!, e.scalar(Math.SQRT1_2)])]), e.scalar(1)]);
    return [e.op('Mul', [e.op('Mul', [x!, cumulative]), e.scalar(0.5)])];
  },
  leaky_relu: (e, inputs, { attributes: { slope } }) => [e.op('LeakyRelu', inputs, { alpha: slope })],
  clamp: (e, [x], { attributes: { min, max } }) => {
    const bounds = [min === null ? '' : e.scalar(min), max === null ? '' : e.scalar(max)];
    return [e.op('Clip', [x!, ...bounds])];
  },
  where: direct('Where'),
  dropout: direct('Mul'),
  greater: direct('Greater'),
  greater_equal: direct('GreaterOrEqual'),
  equal: direct('Equal'),
  logical_and: direct('And'),
  logical_not: direct('Not'),
  argmax: (e, inputs, { attributes: { axis, keepDims } }) => [
    e.op('ArgMax', inputs, { axis, keepdims: Number(keepDims) }),
  ],
  cast: (e, inputs, { attributes: { to } }) => [e.op('Cast', inputs, { to: ONNX_TYPES[to] })],
  // 1 where y > 0, else 0: a steep hard sigmoid is vectorised, where Sign and Greater + Where are not (2x slower).
  relu_grad: (e, [dy, y]) => [e.op('Mul', [dy!, e.op('HardSigmoid', [y!], { alpha: 3e38, beta: 0 })])],
};
