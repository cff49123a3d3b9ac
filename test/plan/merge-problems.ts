/** Random merge problems whose compute and exchange are of the same order, where grouping matters. */
import fc from 'fast-check';
import { linearCost, measuredCost, type MergeProblem } from '../../src/plan/index.ts';

/** Evenly spread; `fc.double` would be next to 0 nearly always, as most floating-point numbers are. */
const upTo = (most: number) => fc.nat(1000).map((n) => (most * n) / 1000);

const layer = fc.record({
  name: fc.constant('layer'),
  backwardMs: upTo(10),
  bytes: fc.oneof(fc.constant(0), fc.nat(1000)),
});

/** `a + b * M`, or a few measured points that only rise. */
const costs = fc.oneof(
  fc.tuple(upTo(5), upTo(0.02)).map(([a, b]) => linearCost(a, b)),
  fc
    .array(fc.tuple(fc.integer({ min: 1, max: 900 }), upTo(6)), {
      minLength: 1,
      maxLength: 5,
    })
    .map((steps) => {
      let [bytes, ms] = [-1, 0];
      return measuredCost(steps.map(([more, longer]) => ({ bytes: (bytes += more), ms: (ms += longer) })));
    }),
);

export function mergeProblems(mostLayers: number): fc.Arbitrary<MergeProblem> {
  return fc.record({
    forwardMs: upTo(10),
    layers: fc.array(layer, { maxLength: mostLayers }),
    exchangeMs: costs,
    segmentMs: fc.oneof(fc.constant(0), upTo(3)),
    busyShare: fc.oneof(fc.constant(0), upTo(1)),
  });
}
