/** Every ONNX operator that is imported computes what ONNX Runtime computes from the same file. */
import { describe, expect, it } from 'vitest';
import { forInference, importOnnx } from '../../src/graph/index.ts';
import { importTable } from '../../src/graph/onnx/importing/index.ts';
import {
  attribute,
  encodeModel,
  type OnnxAttribute,
  type OnnxNode,
  type OnnxTensor,
  type OnnxValue,
} from '../../src/graph/onnx/proto.ts';
import { evaluate } from '../support/evaluate.ts';
import { dataOf, initialValues, randomFeeds, runOnnx } from '../support/onnx.ts';
import { firstDifference } from '../support/shared.ts';

type Attributes = Record<string, number | string | number[] | OnnxAttribute>;
type Initializer = number | number[] | boolean[] | { shape: number[] } | OnnxTensor;

interface Case {
  op: string;
  /** Inputs of the model, in order; axis 0 is open. Then the initializers. */
  inputs: (number[] | { int: number[] })[];
  constants?: (Initializer | null)[];
  attributes?: Attributes;
  outputs?: number;
  opset?: number;
  /** Applied to the inputs first, where the operator needs them so. */
  before?: 'Abs' | 'Exp' | 'Greater';
}

const { int, float, string } = attribute;

function toAttribute(value: Attributes[string]): OnnxAttribute {
  if (typeof value === 'number') return Number.isInteger(value) ? int(value) : float(value);
  if (typeof value === 'string') return string(value);
  return Array.isArray(value) ? attribute.ints(value) : value;
}

/** Integers are int64, `{ shape }` is a float weight. */
function toTensor(name: string, value: Initializer): OnnxTensor {
  if (typeof value === 'number')
    return { name, dtype: 'float32', shape: [], data: new Float32Array([value]) };
  if (Array.isArray(value)) {
    if (typeof value[0] === 'boolean')
      return { name, dtype: 'bool', shape: [value.length], data: Uint8Array.from(value, Number) };
    return {
      name,
      dtype: 'int64',
      shape: [value.length],
      data: BigInt64Array.from(value as number[], BigInt),
    };
  }
  if ('dtype' in value) return { ...value, name };
  const count = value.shape.reduce((a, b) => a * b, 1);
  return {
    name,
    dtype: 'float32',
    shape: value.shape,
    data: Float32Array.from({ length: count }, (_, i) => 0.3 * Math.sin(1 + 3 * i) + 0.1),
  };
}

const int64Scalar = (value: number): OnnxTensor => ({
  name: '',
  dtype: 'int64',
  shape: [],
  data: BigInt64Array.from([BigInt(value)]),
});

function modelOf({
  op,
  inputs,
  constants = [],
  attributes = {},
  outputs = 1,
  opset = 17,
  before,
}: Case): Uint8Array {
  const nodes: OnnxNode[] = [];
  const graphInputs: OnnxValue[] = inputs.map((input, i) => ({
    name: `x${i}`,
    dtype: Array.isArray(input) ? 'float32' : 'int32',
    shape: ['N', ...(Array.isArray(input) ? input : input.int)],
  }));
  const initializers = constants.flatMap((value, i) => (value === null ? [] : [toTensor(`c${i}`, value)]));
  const simple = (opType: string, from: string[], to: string): OnnxNode => ({
    name: to,
    opType,
    inputs: from,
    outputs: [to],
    attributes: {},
  });
  if (before === 'Greater') initializers.push(toTensor('half', 0.5));
  const operands = graphInputs.map(({ name, dtype }) => {
    if (!before || dtype !== 'float32') return name;
    nodes.push(simple(before, before === 'Greater' ? [name, 'half'] : [name], `${name}_`));
    return `${name}_`;
  });
  const names = Array.from({ length: outputs }, (_, i) => `y${i}`);
  nodes.push({
    name: 'tested',
    opType: op,
    inputs: [...operands, ...constants.map((value, i) => (value === null ? '' : `c${i}`))],
    outputs: names,
    attributes: Object.fromEntries(
      Object.entries(attributes).map(([key, value]) => [key, toAttribute(value)]),
    ),
  });
  // Bools and integers come out as floats, so that one comparison serves all.
  const results = names.map((name) => `${name}_float`);
  names.forEach((name, i) =>
    nodes.push({ ...simple('Cast', [name], results[i]!), attributes: { to: int(1) } }),
  );
  return encodeModel({
    irVersion: 8,
    opsets: [{ domain: '', version: opset }],
    graph: {
      name: op,
      nodes,
      inputs: graphInputs,
      outputs: results.map((name) => ({ name, dtype: 'float32', shape: undefined })),
      initializers,
    },
  });
}

const x = [3, 4];
const image = [2, 7, 6];
const elementwise: Case[] = [
  ...['Neg', 'Exp', 'Abs', 'Sign', 'Relu', 'Tanh', 'Sigmoid', 'Erf', 'Softplus', 'Identity'].map((op) => ({
    op,
    inputs: [x],
  })),
  ...['Log', 'Sqrt', 'Reciprocal'].map((op): Case => ({ op, inputs: [x], before: 'Exp' })),
  ...['Add', 'Sub', 'Mul', 'Div', 'Greater', 'GreaterOrEqual', 'Less', 'LessOrEqual'].map((op) => ({
    op,
    inputs: [x],
    constants: [{ shape: [4] }],
  })),
  ...['Max', 'Min', 'Sum', 'Mean'].map((op) => ({ op, inputs: [x, x, x] })),
  ...['Max', 'Min', 'Sum'].map((op) => ({ op, inputs: [x], constants: [{ shape: [4] }] })),
  ...['And', 'Or'].map((op): Case => ({ op, inputs: [x, x], before: 'Greater' })),
  { op: 'Not', inputs: [x], before: 'Greater' },
  { op: 'Where', inputs: [x], before: 'Greater', constants: [{ shape: [4] }, { shape: [3, 1] }] },
  { op: 'Equal', inputs: [{ int: [3] }, { int: [3] }] },
  { op: 'Pow', inputs: [x], before: 'Exp', constants: [{ shape: [4] }] },
  { op: 'Pow', inputs: [x], constants: [2] },
  { op: 'Pow', inputs: [x], before: 'Exp', constants: [-0.5] },
  { op: 'LeakyRelu', inputs: [x], attributes: { alpha: 0.2 } },
  { op: 'Gelu', inputs: [x], opset: 20 },
  { op: 'Gelu', inputs: [x], opset: 20, attributes: { approximate: 'tanh' } },
  { op: 'Clip', inputs: [x], constants: [-0.5, 0.7] },
  { op: 'Clip', inputs: [x], constants: [null, 0.1] },
  { op: 'Cast', inputs: [x], attributes: { to: 6 } },
  { op: 'Cast', inputs: [x], attributes: { to: 9 } },
  { op: 'Dropout', inputs: [x] },
];

const moving: Case[] = [
  ...['ReduceMean', 'ReduceMax', 'ReduceMin', 'ReduceLogSumExp'].flatMap((op): Case[] => [
    { op, inputs: [x], attributes: { axes: [1, -1], keepdims: 0 } },
    { op, inputs: [x], opset: 18, constants: [[2]] },
    { op, inputs: [x] },
  ]),
  { op: 'ReduceSum', inputs: [x], constants: [[0, 2]] },
  { op: 'ReduceSum', inputs: [x], attributes: { noop_with_empty_axes: 1 } },
  { op: 'CumSum', inputs: [x], constants: [int64Scalar(1)], attributes: { reverse: 1 } },
  { op: 'CumSum', inputs: [x], constants: [int64Scalar(-1)], attributes: { exclusive: 1 } },
  { op: 'ArgMax', inputs: [x], attributes: { axis: -1, keepdims: 0 } },
  { op: 'Reshape', inputs: [x], constants: [[0, -1, 2]] },
  { op: 'Reshape', inputs: [x], constants: [[-1, 12]] },
  { op: 'Flatten', inputs: [image] },
  { op: 'Flatten', inputs: [image], attributes: { axis: 2 } },
  { op: 'Flatten', inputs: [image], attributes: { axis: -1 } },
  { op: 'Transpose', inputs: [x] },
  { op: 'Transpose', inputs: [image], attributes: { perm: [0, 3, 1, 2] } },
  { op: 'Concat', inputs: [x, [5, 4]], attributes: { axis: 1 } },
  { op: 'Concat', inputs: [x, x], attributes: { axis: 0 } },
  { op: 'Split', inputs: [x], constants: [[1, 3]], attributes: { axis: 2 }, outputs: 2 },
  { op: 'Split', inputs: [[6]], attributes: { axis: 1 }, outputs: 3 },
  { op: 'Split', inputs: [[7]], opset: 18, attributes: { axis: 1, num_outputs: 3 }, outputs: 3 },
  {
    op: 'Slice',
    inputs: [image],
    constants: [
      [1, -4],
      [9223372036854775000, -1],
      [2, 3],
    ],
  },
  {
    op: 'Slice',
    inputs: [image],
    constants: [
      [0, 0],
      [2147483647, 7],
      [0, 2],
      [1, 2],
    ],
  },
  {
    op: 'Slice',
    inputs: [x],
    constants: [
      [0, 1],
      [1000000000000, 3],
    ],
  },
  { op: 'Pad', inputs: [x], constants: [[0, 1, 0, 0, 0, 2], 1.5] },
  { op: 'Pad', inputs: [x], opset: 18, constants: [[1, 2], null, [-1]] },
  { op: 'Expand', inputs: [[1, 4]], constants: [[3, 1]] },
  { op: 'Squeeze', inputs: [[1, 4, 1]], constants: [[1, -1]] },
  { op: 'Squeeze', inputs: [[1, 4]] },
  { op: 'Unsqueeze', inputs: [x], constants: [[1, -1]] },
  { op: 'Gather', inputs: [x], constants: [int64Scalar(-2)], attributes: { axis: 1 } },
  { op: 'Gather', inputs: [x], constants: [[2, 0, 0]], attributes: { axis: 2 } },
  { op: 'GatherElements', inputs: [[12], { int: [4] }], attributes: { axis: 1 } },
  { op: 'ScatterElements', inputs: [[12], { int: [4] }, [4]], attributes: { axis: 1, reduction: 'add' } },
  { op: 'Shape', inputs: [x], attributes: { start: 1 } },
  { op: 'Size', inputs: [x] },
];

const neural: Case[] = [
  { op: 'MatMul', inputs: [x], constants: [{ shape: [4, 5] }] },
  { op: 'MatMul', inputs: [x], constants: [{ shape: [4] }] },
  { op: 'Gemm', inputs: [[4]], constants: [{ shape: [4, 5] }, { shape: [5] }] },
  {
    op: 'Gemm',
    inputs: [[4]],
    constants: [{ shape: [5, 4] }, { shape: [1, 5] }],
    attributes: { transB: 1, alpha: 0.5, beta: float(2) },
  },
  { op: 'Gemm', inputs: [[4]], constants: [{ shape: [4, 5] }] },
  { op: 'Softmax', inputs: [x] },
  { op: 'Softmax', inputs: [x], attributes: { axis: 1 } },
  { op: 'LogSoftmax', inputs: [x] },
  { op: 'LayerNormalization', inputs: [x], constants: [{ shape: [4] }, { shape: [4] }] },
  {
    op: 'LayerNormalization',
    inputs: [x],
    constants: [{ shape: [3, 4] }],
    attributes: { axis: 1, epsilon: 0.001 },
  },
  {
    op: 'BatchNormalization',
    inputs: [image],
    before: 'Abs',
    constants: [{ shape: [2] }, { shape: [2] }, { shape: [2] }, { shape: [2] }],
  },
  {
    op: 'Conv',
    inputs: [image],
    constants: [{ shape: [4, 2, 3, 2] }, { shape: [4] }],
    attributes: { pads: [1, 0, 1, 0], strides: [2, 1] },
  },
  {
    op: 'Conv',
    inputs: [image],
    constants: [{ shape: [4, 2, 3, 3] }],
    attributes: { pads: [0, 1, 2, 0], dilations: [1, 2] },
  },
  {
    op: 'Conv',
    inputs: [image],
    constants: [{ shape: [4, 1, 2, 2] }],
    attributes: { group: 2, auto_pad: 'SAME_UPPER', strides: [2, 2] },
  },
  {
    op: 'Conv',
    inputs: [image],
    constants: [{ shape: [4, 2, 2, 2] }],
    attributes: { auto_pad: 'SAME_LOWER' },
  },
  {
    op: 'Conv',
    inputs: [[3, 8]],
    constants: [{ shape: [2, 3, 3] }],
    attributes: { auto_pad: 'VALID', kernel_shape: [3] },
  },
  {
    op: 'MaxPool',
    inputs: [image],
    attributes: { kernel_shape: [3, 2], strides: [2, 2], pads: [1, 1, 1, 1] },
  },
  {
    op: 'MaxPool',
    inputs: [image],
    attributes: { kernel_shape: [2, 2], strides: [2, 2], pads: [0, 0, 1, 0] },
  },
  { op: 'MaxPool', inputs: [image], attributes: { kernel_shape: [2, 2], strides: [2, 2], ceil_mode: 1 } },
  { op: 'MaxPool', inputs: [[3, 8]], attributes: { kernel_shape: [3] } },
  {
    op: 'AveragePool',
    inputs: [image],
    attributes: { kernel_shape: [3, 2], strides: [2, 2], pads: [1, 1, 1, 1] },
  },
  {
    op: 'AveragePool',
    inputs: [image],
    attributes: { kernel_shape: [2, 2], pads: [0, 0, 1, 1], count_include_pad: 1 },
  },
  { op: 'GlobalAveragePool', inputs: [image] },
  { op: 'GlobalMaxPool', inputs: [image] },
];

/** Built by other tests: constants, shape arithmetic and cells. */
const elsewhere = ['Constant', 'ConstantOfShape', 'Range', 'LSTM', 'GRU'];
const cases = [...elementwise, ...moving, ...neural];

describe('imported operators', () => {
  it.each(cases.map((c, i) => [`${c.op} (${i})`, c] as const))('%s', async (_name, c) => {
    const bytes = modelOf(c);
    const model = importOnnx(bytes);
    const batch = 2;
    const feeds = randomFeeds(Object.values(model.inputs), batch, 11);
    const there = await runOnnx(bytes, feeds);
    const names = Object.keys(there);
    const outputs = forInference(names.map((name) => model.outputs[name]!));
    const here = evaluate(outputs, { ...initialValues(model.graph), ...dataOf(feeds) }, { batch });
    names.forEach((name, i) => {
      expect(here[i]!.length).toBe(there[name]!.data.length);
      expect(firstDifference(here[i]!, there[name]!.data, { rtol: 1e-5, atol: 1e-5 }), name).toBeUndefined();
    });
  });

  it('are all tried', () => {
    const tried = new Set([...cases.map(({ op }) => op), ...elsewhere]);
    expect([...importTable.keys()].filter((op) => !tried.has(op))).toEqual([]);
  });
});
