/** Gradients of the elementwise operations. */
import type { ElementwiseOperations } from '../catalogue.ts';
import type { Tensor } from '../graph.ts';
import * as op from '../operations/index.ts';
import type { GradientTable } from './rule.ts';

const { add, and, div, exp, greaterEqual, log, mul, neg, pow, sign, sub, sumTo, where } = op;

export const elementwiseGradients: GradientTable<keyof ElementwiseOperations> = {
  add: ({ dy, inputs: [a, b] }) => [sumTo(dy, a!.shape), sumTo(dy, b!.shape)],
  sub: ({ dy, inputs: [a, b] }) => [sumTo(dy, a!.shape), sumTo(neg(dy), b!.shape)],
  mul: ({ dy, inputs: [a, b], needs }) => [
    needs(0) ? sumTo(mul(dy, b!), a!.shape) : undefined,
    needs(1) ? sumTo(mul(dy, a!), b!.shape) : undefined,
  ],
  div: ({ dy, inputs: [a, b], outputs: [y], needs }) => {
    const da = div(dy, b!);
    return [sumTo(da, a!.shape), needs(1) ? sumTo(neg(mul(da, y!)), b!.shape) : undefined];
  },
  pow: ({ dy, inputs: [a, b], outputs: [y], needs }) => [
    needs(0) ? sumTo(mul(dy, mul(b!, pow(a!, sub(b!, 1)))), a!.shape) : undefined,
    needs(1) ? sumTo(mul(dy, mul(y!, log(a!))), b!.shape) : undefined,
  ],
  add_n: ({ dy, inputs }) => inputs.map(() => dy),
  neg: ({ dy }) => [neg(dy)],
  exp: ({ dy, outputs: [y] }) => [mul(dy, y!)],
  log: ({ dy, inputs: [x] }) => [div(dy, x!)],
  sqrt: ({ dy, outputs: [y] }) => [div(mul(dy, 0.5), y!)],
  abs: ({ dy, inputs: [x] }) => [mul(dy, sign(x!))],
  relu: ({ dy, outputs: [y] }) => [dy.graph.apply('relu_grad', [dy, y!], {})[0]],
  tanh: ({ dy, outputs: [y] }) => [mul(dy, sub(1, mul(y!, y!)))],
  sigmoid: ({ dy, outputs: [y] }) => [mul(dy, mul(y!, sub(1, y!)))],
  erf: ({ dy, inputs: [x] }) => [mul(dy, mul(exp(neg(mul(x!, x!))), 2 / Math.sqrt(Math.PI)))],
  gelu: ({ dy, inputs: [x] }) => [mul(dy, geluSlope(x!))],
  softplus: ({ dy, inputs: [x] }) => [mul(dy, op.sigmoid(x!))],
  leaky_relu: ({ dy, inputs: [x], attributes: { slope } }) => [where(op.greater(x!, 0), dy, mul(dy, slope))],
  clamp: ({ dy, inputs: [x], attributes: { min, max } }) => {
    const above = min === null ? undefined : greaterEqual(x!, min);
    const below = max === null ? undefined : greaterEqual(max, x!);
    const inside = above && below ? and(above, below) : (above ?? below);
    return [inside ? where(inside, dy, 0) : dy];
  },
  where: ({ dy, inputs: [condition, a, b], needs }) => [
    undefined,
    needs(1) ? sumTo(where(condition!, dy, 0), a!.shape) : undefined,
    needs(2) ? sumTo(where(condition!, 0, dy), b!.shape) : undefined,
  ],
  dropout: ({ dy, inputs: [, mask] }) => [mul(dy, mask!), undefined],
};

/** The normal distribution's cumulative plus x times its density. */
function geluSlope(x: Tensor): Tensor {
  const cumulative = mul(add(op.erf(mul(x, Math.SQRT1_2)), 1), 0.5);
  const density = mul(exp(mul(mul(x, x), -0.5)), 1 / Math.sqrt(2 * Math.PI));
  return add(cumulative, mul(x, density));
}
