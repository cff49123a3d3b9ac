/**
 * A rank that sums many vectors one after the other by the algorithm that takes the quick lane, short and long, in every
 * type, and says what differed from whole numbers that it can work out itself. Not a test itself.
 */
import { allReduce } from '../../src/collectives/index.ts';
import type { CollectiveOperation } from '../../src/collectives/index.ts';
import { FINISHED } from '../../src/progress/index.ts';
import { enterCluster, leaveCluster, say } from './rank-program-start.ts';

/** Around the most that a slot carries (4 KB), and lengths whose parts differ or are empty. */
const LENGTHS = [1, 3, 511, 512, 513, 1023, 1024, 1025, 4099, 65_536, 300_007];
const DTYPES = ['float32', 'float64', 'int32'] as const;
const ROUNDS = 6;
const MOST_SHORT = 20_000;

const cluster = await enterCluster();
const { world } = cluster;
const { rank, size } = world;
const differences: string[] = [];
let calls = 0;
let byLane = 0;

/** Small whole numbers, so that every order of adding gives the same bits. */
const valueOf = (ofRank: number, i: number, round: number): number =>
  ((i * 7 + ofRank * 13 + round) % 31) + 1;
const ranks = Array.from({ length: size }, (_, ofRank) => ofRank);
const expected = (op: CollectiveOperation, i: number, round: number): number => {
  const values = ranks.map((ofRank) => valueOf(ofRank, i, round));
  const sum = values.reduce((a, b) => a + b);
  // Rank r counts r + 1 times in an average.
  const weighted = values.reduce((a, b, ofRank) => a + b * (ofRank + 1), 0);
  return { sum, max: Math.max(...values), mean: weighted / ((size * (size + 1)) / 2) }[
    op as 'sum' | 'max' | 'mean'
  ];
};

for (const dtype of DTYPES) {
  const all = cluster.allocate(dtype, LENGTHS.at(-1)! + 8);
  for (const length of LENGTHS) {
    for (let round = 0; round < ROUNDS; round++) {
      // Not at the start of a page, nor at the same place in every round.
      const region = all.slice(round, length);
      const op = dtype === 'int32' || round % 3 !== 2 ? (round % 2 === 0 ? 'sum' : 'max') : 'mean';
      for (let i = 0; i < length; i++) region.view[i] = valueOf(rank, i, round);
      const handle = allReduce(world, region, {
        algorithm: 'direct',
        op,
        weight: op === 'mean' ? rank + 1 : 1,
      });
      calls++;
      if (handle === FINISHED) byLane++;
      handle.wait();
      const wrong = region.view.findIndex((value: number, i: number) => {
        const wanted = expected(op, i, round);
        return Math.abs(value - wanted) > (op === 'mean' ? 1e-5 * wanted : 0);
      });
      if (wrong < 0) continue;
      const facts = `${op} of ${length} ${dtype} in round ${round}`;
      const wanted = expected(op, wrong, round);
      differences.push(
        `rank ${rank}: ${facts}: element ${wrong} is ${region.view[wrong]}, expected ${wanted}`,
      );
    }
  }
}

// Several under way: a rank may be operations ahead of another that still reads the slots.
const several = Array.from({ length: 8 }, () => cluster.allocate('float32', 100));
for (let round = 0; round < 200; round++) {
  several.forEach((vector, k) => vector.view.fill(rank + k + round));
  const handles = several.map((vector) => allReduce(world, vector, { algorithm: 'direct' }));
  for (const handle of handles) handle.wait();
  several.forEach((vector, k) => {
    const wanted = size * (k + round) + (size * (size - 1)) / 2;
    if (vector.view[0] === wanted && vector.view[99] === wanted) return;
    differences.push(`rank ${rank}: vector ${k} of round ${round} is ${vector.view[0]}, expected ${wanted}`);
  });
}

// On a busy machine ranks may come apart in all of these: short ones follow until each rank has used the lane.
const haveUsedIt = cluster.allocate('float32', 1);
for (let i = 0; i < MOST_SHORT && haveUsedIt.view[0]! < size; i++) {
  haveUsedIt.view[0] = byLane > 0 ? 1 : 0;
  const handle = allReduce(world, haveUsedIt, { algorithm: 'direct' });
  if (handle === FINISHED) byLane++;
  handle.wait();
}
say('ran', { rank, calls, byLane, differences });
await leaveCluster(cluster);
