/**
 * Automatic differentiation against central differences. Compared is the derivative along a random direction v,
 * `(f(x + hv) - f(x - hv)) / 2h` extrapolated once (Richardson), with `<gradient, v>`; f is a random linear
 * functional of the result, summed here in float64, so that only float32 rounding inside the graph disturbs it.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { differentiate, elementCount, type DifferentiableName, type Tensor } from '../../src/graph/index.ts';
import { gradientTable } from '../../src/graph/gradients/index.ts';
import { evaluate } from '../support/evaluate.ts';
import { differentiableNames, GraphBuilder, steps } from './random-graphs.ts';

const STEP = 1 / 128;
const TOLERANCE = 2e-2;

const dot = (a: ArrayLike<number>, b: ArrayLike<number>) =>
  Array.from(a).reduce((sum, value, i) => sum + value * b[i]!, 0);

interface Comparison {
  operations: Set<string>;
  analytic: number;
  numeric: number;
  scale: number;
}

function compare(names: readonly DifferentiableName[], seed: number): Comparison {
  const builder = new GraphBuilder(seed);
  let result = builder.leaf([2, 3]);
  for (const name of names) result = steps[name](builder, result);
  const operations = new Set<string>(builder.graph.nodes.map((node) => node.op));

  const random = new Random(seed + 1);
  const draw = (length: number) => Float32Array.from({ length }, () => 2 * random.uniform() - 1);
  const functional = draw(elementCount(result.shape as number[]));
  const leaves = [...builder.leaves.keys()];
  const directions = leaves.map((leaf) => draw(builder.leaves.get(leaf)!.length));
  const adjoint = builder.graph.input('adjoint', result.shape);
  const grads = differentiate([{ output: result, adjoint }], leaves);

  const valuesAt = (h: number): Record<string, Float32Array> =>
    Object.fromEntries(
      leaves.map((leaf, i) => [
        leaf.label,
        builder.leaves.get(leaf)!.map((value, j) => value + h * directions[i]![j]!),
      ]),
    );
  const at = (h: number) => dot(evaluate([result], valuesAt(h))[0]!, functional);
  const central = (h: number) => (at(h) - at(-h)) / (2 * h);
  const wanted = grads.filter((grad): grad is Tensor => grad !== undefined);
  const evaluated = wanted.length > 0 ? evaluate(wanted, { ...valuesAt(0), adjoint: functional }) : [];
  const values = grads.map((grad) => (grad ? evaluated.shift()! : undefined));

  let analytic = 0;
  let squares = 0;
  values.forEach((grad, i) => {
    if (!grad) return;
    analytic += dot(grad, directions[i]!);
    squares += dot(grad, grad);
  });
  const numeric = (4 * central(STEP / 2) - central(STEP)) / 3;
  // What float32 cannot tell from zero, and the size that a derivative along a random direction has.
  const scale = Math.max(Math.abs(analytic), 0.5 * Math.sqrt(squares), 1e-2);
  return { operations, analytic, numeric, scale };
}

function check(names: readonly DifferentiableName[], seed: number): Set<string> {
  const { operations, analytic, numeric, scale } = compare(names, seed);
  const error = Math.abs(analytic - numeric);
  expect(error, `${names.join(' -> ')}: gradient ${analytic}, differences ${numeric}`).toBeLessThanOrEqual(
    TOLERANCE * scale,
  );
  return operations;
}

describe('gradients agree with finite differences', () => {
  it.each(differentiableNames)('of %s, in several forms', (name) => {
    const operations = [0, 1, 2, 3].flatMap((seed) => [...check(['gelu', name, 'mul'], 1000 * seed + 17)]);
    expect(operations, 'the operation is really in the graph').toContain(name);
  });

  it('of random compositions', () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom(...differentiableNames), { minLength: 3, maxLength: 8 }),
        fc.integer({ min: 0, max: 1_000_000 }),
        (names, seed) => void check(names, seed),
      ),
      { numRuns: 60 },
    );
  });

  it('for every operation of the gradient table', () => {
    expect(new Set(differentiableNames)).toEqual(new Set(Object.keys(gradientTable)));
  });
});
