/** Problems from a seed, where the same ones are wanted in every run: how often one rule beats another, for instance. */
import { linearCost, type MergeProblem } from '../../src/plan/index.ts';

/** Numbers from 0 to 1 (mulberry32). */
export function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function randomProblem(random: () => number, layers: number, a: number, b: number): MergeProblem {
  return {
    forwardMs: random() * 5,
    layers: Array.from({ length: layers }, (_, i) => ({
      name: `layer ${i}`,
      backwardMs: random() * 5,
      bytes: Math.floor(random() * 1000),
    })),
    exchangeMs: linearCost(a, b),
  };
}
