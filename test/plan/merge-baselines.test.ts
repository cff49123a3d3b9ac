import { describe, expect, it } from 'vitest';
import {
  algorithmOne,
  allInOne,
  fixedBuckets,
  iterationMs,
  layerByLayer,
  linearCost,
  optimalGroups,
  type MergeProblem,
} from '../../src/plan/index.ts';
import { generator, randomProblem } from './random-problem.ts';

const problem = (bytes: readonly number[], backwardMs = bytes.map(() => 1), a = 1, b = 0): MergeProblem => ({
  forwardMs: 0,
  layers: bytes.map((each, i) => ({ name: `l${i}`, backwardMs: backwardMs[i]!, bytes: each })),
  exchangeMs: linearCost(a, b),
});

describe('layer by layer and all in one', () => {
  it('are a message for each layer and one for all', () => {
    expect(layerByLayer(problem([5, 5, 5]))).toEqual([1, 1, 1]);
    expect(allInOne(problem([5, 5, 5]))).toEqual([3]);
    expect(layerByLayer(problem([]))).toEqual([]);
    expect(allInOne(problem([]))).toEqual([]);
  });
});

describe('fixed buckets', () => {
  it('leave with the layer that fills them, and the last one as it is', () => {
    expect(fixedBuckets(problem([4, 6, 3, 20, 1, 1]), 10)).toEqual([2, 2, 2]);
    expect(fixedBuckets(problem([10, 10]), 10)).toEqual([1, 1]);
    expect(fixedBuckets(problem([1, 1, 1]))).toEqual([3]);
    expect(fixedBuckets(problem([]), 10)).toEqual([]);
  });

  it('are 25 MB unless told', () => {
    expect(fixedBuckets(problem([25 * 2 ** 20 - 1, 1, 7]))).toEqual([2, 1]);
  });
});

describe('algorithm 1', () => {
  it('merges a layer with the next if that saves more than waiting for it costs', () => {
    // After the first layer (at 1) the next is done 2 later, and a message costs 3 to start; the third comes too late.
    expect(algorithmOne(problem([0, 0, 0], [1, 2, 9], 3))).toEqual([2, 1]);
    expect(algorithmOne(problem([0, 0, 0], [1, 4, 9], 3))).toEqual([1, 1, 1]);
    expect(algorithmOne(problem([]))).toEqual([]);
    expect(algorithmOne(problem([7]))).toEqual([1]);
  });

  it('cannot take back a merge that the next layer makes a bad one', () => {
    // Waiting 3 for the second layer saves a start of 4; but then the third, done at 8, waits until 11 for the line.
    const one = problem([3, 0, 0], [1, 3, 4], 4, 1);
    expect(algorithmOne(one)).toEqual([2, 1]);
    expect(iterationMs(one, [2, 1])).toBe(15);
    expect(optimalGroups(one)).toEqual([1, 2]);
    expect(iterationMs(one, [1, 2])).toBe(12);
  });

  it('follows the pseudocode of the paper line by line', () => {
    const random = generator(11);
    for (let i = 0; i < 500; i++) {
      const [a, b] = [random() * 3, random() * 0.01];
      const one = randomProblem(random, 1 + Math.floor(random() * 20), a, b);
      expect(algorithmOne(one)).toEqual(asPrinted(one, a, b));
    }
  });

  it('asks for the cost of the very layers that a message carries', () => {
    const random = generator(3);
    for (let i = 0; i < 100; i++) {
      const byBytes = randomProblem(random, 12, random() * 3, random() * 0.01);
      const byLayers: MergeProblem = {
        ...byBytes,
        exchangeMs: (_, first, end) => {
          const bytes = byBytes.layers.slice(first, end).reduce((sum, layer) => sum + layer.bytes, 0);
          return byBytes.exchangeMs(bytes, first, end);
        },
      };
      expect(algorithmOne(byLayers)).toEqual(algorithmOne(byBytes));
      expect(optimalGroups(byLayers)).toEqual(optimalGroups(byBytes));
    }
  });

  it('misses the optimum in a good part of random problems, and never beats it', () => {
    const random = generator(5);
    let [missed, most] = [0, 1];
    const count = 1000;
    for (let i = 0; i < count; i++) {
      const one = randomProblem(random, 2 + Math.floor(random() * 11), random() * 3, random() * 0.01);
      const ratio = iterationMs(one, algorithmOne(one)) / iterationMs(one, optimalGroups(one));
      expect(ratio).toBeGreaterThan(1 - 1e-9);
      if (ratio > 1 + 1e-9) missed++;
      most = Math.max(most, ratio);
    }
    expect(missed / count).toBeGreaterThan(0.1);
    expect(most).toBeGreaterThan(1.03);
  });
});

/** Lines 8 to 26, indices from 1 as printed; tb[0] and tb[1], which it reads unset, go on as its line 10 does. */
function asPrinted({ forwardMs, layers }: MergeProblem, a: number, b: number): number[] {
  const L = layers.length;
  const forward = [{ backwardMs: 0, bytes: 0 }, ...layers.toReversed()];
  const p = forward.map(({ bytes }) => bytes);
  const tb = forward.map(({ backwardMs }) => backwardMs);
  const tc = p.map((bytes) => a + b * bytes);
  const tauB: number[] = [];
  tauB[L] = forwardMs;
  for (let l = L - 1; l >= 0; l--) tauB[l] = tauB[l + 1]! + tb[l + 1]!;
  const starts = () => {
    const tauC: number[] = [];
    tauC[L] = tauB[L]! + tb[L]!;
    for (let l = L - 1; l >= 1; l--) tauC[l] = Math.max(tauC[l + 1]! + tc[l + 1]!, tauB[l]! + tb[l]!);
    return tauC;
  };
  let tauC = starts();
  const merged = new Set<number>();
  for (let l = L; l >= 2; l--) {
    if (tauB[l - 2]! - tauC[l]! >= a) continue;
    tc[l] = 0;
    p[l - 1]! += p[l]!;
    tc[l - 1] = a + b * p[l - 1]!;
    tauC = starts();
    merged.add(l);
  }
  const grouping = [];
  for (let l = L, count = 1; l >= 1; l--, count++) {
    if (merged.has(l)) continue;
    grouping.push(count);
    count = 0;
  }
  return grouping;
}
