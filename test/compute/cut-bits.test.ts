/**
 * Where the backward pass is cut changes no bit: ONNX Runtime optimizes each segment by itself, and what it rewrites must
 * not depend on what else is in the segment. Random graphs over the whole differentiable catalogue, and ready models
 * of random sizes.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import {
  differentiate,
  elementCount,
  fillInitial,
  gradients,
  resolveShape,
  type Tensor,
} from '../../src/graph/index.ts';
import { models } from '../../src/models/index.ts';
import { differentiableNames, GraphBuilder, steps } from '../graph/random-graphs.ts';
import { byForm } from '../support/long-form.ts';
import { evaluate } from '../support/evaluate.ts';

/** Whether there is a border behind a tensor, in turn. */
const anyBorders = fc.array(fc.boolean(), { minLength: 1, maxLength: 8 });
const EVERYWHERE = [true];
/** In ms, for the long form. */
const LONG = 1_200_000;

function cut(tensors: readonly Tensor[], borders: readonly boolean[]): Tensor[][] {
  const segments: Tensor[][] = [[]];
  tensors.forEach((tensor, i) => {
    if (i > 0 && borders[i % borders.length]) segments.push([]);
    segments.at(-1)!.push(tensor);
  });
  return segments;
}

const size = (max: number) => fc.integer({ min: 1, max });
const classes = fc.integer({ min: 2, max: 6 });
const sequence = { vocabulary: fc.integer({ min: 2, max: 30 }), length: size(12) };
/** Heads of any width: the roots of most are no powers of two, so that scaling by them rounds. */
const attention = fc
  .record({ heads: size(4), headWidth: size(13), layers: size(2) })
  .map(({ heads, headWidth, layers }) => ({ width: heads * headWidth, heads, layers }));
const withAttention = <T extends object>(options: fc.Arbitrary<T>) =>
  fc.tuple(options, attention).map(([some, others]) => ({ ...some, ...others }));

const sizes = {
  mlp: fc.record({ inputShape: fc.tuple(size(200)), classes, hidden: fc.array(size(150), { maxLength: 3 }) }),
  lenet: fc.record({
    ...{ inputShape: fc.constantFrom([1, 12, 12], [3, 9, 14]), classes, hidden: size(40) },
    ...{ filters: fc.tuple(size(6), size(6)), kernel: fc.constantFrom(1, 3, 5) },
  }),
  resnet: fc.record({
    ...{
      inputShape: fc.constantFrom([1, 8, 8], [3, 9, 12]),
      classes,
      width: size(6),
      blocks: fc.constant(1),
    },
  }),
  'text-cnn': fc.record({
    ...{ ...sequence, length: fc.integer({ min: 5, max: 12 }), classes, size: size(20), filters: size(9) },
    dropout: fc.constant(0),
  }),
  'lstm-lm': fc.record({ ...sequence, size: size(20), units: size(20), layers: size(2) }),
  transformer: withAttention(fc.record({ ...sequence, classes, dropout: fc.constant(0) })),
  gpt: withAttention(fc.record(sequence)),
} as const;

describe('a backward pass in segments has the bits of one that is not cut', () => {
  it('in random graphs of all operations', { timeout: LONG }, () => {
    const operations = fc.array(fc.constantFrom(...differentiableNames), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(operations, fc.nat(), anyBorders, (names, seed, borders) => {
        const builder = new GraphBuilder(seed);
        let result = builder.leaf([2, 3]);
        for (const name of names) result = steps[name](builder, result);
        const adjoint = builder.graph.input('adjoint', result.shape);
        const leaves = [...builder.leaves.keys()];
        const all = differentiate([{ output: result, adjoint }], leaves).filter((one) => one !== undefined);
        const wanted = [...new Set(all)]
          .filter(({ node }) => node.inputs.length > 0)
          .sort((a, b) => a.node.id - b.node.id);
        if (wanted.length < 2) return;
        const values = Object.fromEntries(leaves.map((leaf) => [leaf.label, builder.leaves.get(leaf)!]));
        const random = new Random(seed);
        values['adjoint'] = new Float32Array(elementCount(result.shape as number[])).map(() =>
          random.normal(),
        );
        const whole = evaluate(wanted, values);
        for (const places of [borders, EVERYWHERE]) {
          expect(evaluate(wanted, values, { segments: cut(wanted, places) })).toEqual(whole);
        }
      }),
      { numRuns: byForm(2000, 60) },
    );
  });

  it.each(Object.keys(sizes) as (keyof typeof sizes)[])('in a %s of any size', { timeout: LONG }, (name) => {
    fc.assert(
      fc.property(sizes[name], size(9), fc.nat(), anyBorders, (options, batch, seed, borders) => {
        const { graph, loss } = models[name].build(options);
        const wanted = gradients(loss).flatMap((gradient) =>
          gradient.kind === 'dense' ? [gradient.value] : gradient.lookups.map(({ rows }) => rows),
        );
        const random = new Random(seed);
        const values: Record<string, Float32Array> = {};
        const room = ({ shape }: Tensor) => new Float32Array(elementCount(resolveShape(shape, batch)));
        for (const [label, input] of graph.inputs) {
          values[label] = room(input).map(() =>
            input.dtype === 'int32' ? random.below(2) : random.normal(),
          );
        }
        for (const held of [...graph.parameters.values(), ...graph.states.values()]) {
          values[held.tensor.label] = room(held.tensor);
          fillInitial(values[held.tensor.label]!, held.initialiser, held.name, seed);
        }
        const whole = evaluate([loss, ...wanted], values, { batch });
        for (const places of [borders, EVERYWHERE]) {
          const [first, ...later] = cut(wanted, places);
          const segments = [[loss, ...first!], ...later];
          expect(evaluate([loss, ...wanted], values, { batch, segments })).toEqual(whole);
        }
        expect(whole.flat().some((value) => value !== 0)).toBe(true);
      }),
      { numRuns: byForm(200, name === 'resnet' ? 3 : 6) },
    );
  });
});
