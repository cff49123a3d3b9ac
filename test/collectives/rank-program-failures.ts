/**
 * A rank of the failure tests: goes through operations that cannot succeed, in the same order as its peers, and says how
 * each of them ended. Not a test itself, and no judge: what must come out stands in processes-failures.test.ts.
 */
import { TributaryError } from '../../src/base/index.ts';
import {
  allGather,
  allReduce,
  availableAlgorithms,
  barrier,
  broadcast,
  join,
  reduce,
} from '../../src/collectives/index.ts';
import type { DType, Region } from '../../src/memory/index.ts';
import type { Handle, StallReport } from '../../src/progress/index.ts';
import { enterCluster, leaveCluster, say, untilTold } from './rank-program-start.ts';

/** Tags of the operations by which ranks wait for each other outside what is tried. */
const MEET_TAG = 7;
const LATE_TAG = 9;

let onStall = (_: StallReport) => undefined as void;
const cluster = await enterCluster({ stallAfterMs: 200, onStall: (report) => onStall(report) });
const { world, space } = cluster;
const { rank } = world;
const memory = space.allocate(64 * 2 ** 20);

function region<T extends DType>(dtype: T, values: readonly number[]): Region<T> {
  const made = memory.allocate(dtype, values.length);
  values.forEach((value, i) => (made.view[i] = value));
  return made;
}

/** How an operation ended: awaited, or waited for with the thread blocked. */
async function outcome(scenario: string, handle: Handle, blocked: boolean): Promise<void> {
  const startMs = performance.now();
  let ended = { code: 'none', message: 'it succeeded' };
  try {
    if (blocked) handle.wait();
    else await handle;
  } catch (error) {
    if (!(error instanceof TributaryError)) throw error;
    ended = error;
  }
  const { code, message } = ended;
  say('outcome', { scenario, blocked, rank, code, message, ms: performance.now() - startMs });
}

/** The next allreduce of the group works. */
async function goOn(scenario: string): Promise<void> {
  const vector = region('float32', [rank + 1]);
  await allReduce(world, vector);
  say('after', { scenario, rank, sum: vector.view[0] });
}

const disagreements: Record<string, () => Handle> = {
  length: () => allReduce(world, region('float32', rank === 2 ? [1, 2] : [1])),
  type: () => allReduce(world, region(rank === 1 ? 'int32' : 'float32', [1])),
  operation: () => allReduce(world, region('float32', [1]), { op: rank === 0 ? 'max' : 'sum' }),
  name: () => allReduce(world, region('float32', [1]), { name: rank === 2 ? 'b' : 'a', algorithm: 'ring' }),
  collective: () => (rank === 1 ? barrier(world) : broadcast(world, region('float32', [1]))),
  root: () => reduce(world, region('float32', [1]), { root: rank === 2 ? 1 : 0 }),
  counts: () => {
    const counts = rank === 1 ? [1, 2, 1] : [1, 1, 1];
    const own = Array.from({ length: counts[rank]! }, () => 1);
    const all = Array.from({ length: counts.reduce((a, b) => a + b) }, () => 0);
    return allGather(world, region('float32', own), region('float32', all), { counts });
  },
};
for (const [what, call] of Object.entries(disagreements)) {
  for (const blocked of [false, true]) {
    await barrier(world, { tag: MEET_TAG });
    await outcome(`disagree about the ${what}`, call(), blocked);
    await goOn(`disagree about the ${what}`);
  }
}

for (const scenario of ['cancel before', 'cancel amid']) {
  for (const algorithm of availableAlgorithms(world)) {
    const length = 100_000;
    const shareable = cluster.allocate('float32', length);
    for (const vector of [memory.allocate('float32', length), shareable]) {
      vector.view.fill(rank + 1);
      const abort = new AbortController();
      if (rank === 1 && scenario === 'cancel before') abort.abort();
      const handle = allReduce(world, vector, { signal: abort.signal, algorithm });
      if (rank === 1) abort.abort();
      await outcome(scenario, handle, rank !== 1 && vector === shareable);
      // Whoever had all it needed before it heard of the cancellation has the result.
      const [last] = vector.view.subarray(length - 1);
      vector.view.fill(rank + 1);
      await allReduce(world, vector, { algorithm });
      say('after', { scenario, rank, last, sum: vector.view[length - 1] });
    }
  }
}

for (const blocked of [false, true]) {
  if (rank === 1) {
    // Comes when the others have given up, and learns so.
    await barrier(world, { tag: MEET_TAG });
    await outcome('come late', allReduce(world, region('float32', [1]), { deadlineMs: 10_000 }), blocked);
  } else {
    await outcome('deadline', allReduce(world, region('float32', [1]), { deadlineMs: 2000 }), blocked);
    await barrier(world, { tag: MEET_TAG });
  }
  await goOn('deadline');
}

if (rank === 1) {
  await barrier(world, { tag: LATE_TAG });
  await allReduce(world, region('float32', [1]), { name: 'gradients' });
} else {
  const reports: StallReport[] = [];
  const reported = new Promise<void>((resolve) => {
    onStall = (report) => {
      // The barrier by which the late rank is called may be reported as well.
      if (report.operation.includes('gradients') && reports.push(report) === 2) resolve();
    };
  });
  const handle = allReduce(world, region('float32', [1]), { name: 'gradients' });
  // Awaiting it is what keeps the engine going.
  const done = handle.then(() => undefined);
  await reported;
  await barrier(world, { tag: LATE_TAG });
  await done;
  for (const { missing, text } of reports) say('stall', { rank, missing, text });
  onStall = () => undefined;
}

for (const shareable of [false, true]) {
  for (const length of [3, 60_000]) {
    const vector = shareable ? cluster.allocate('float32', length) : memory.allocate('float32', length);
    const averages: number[] = [];
    for (let step = 0; step < 2 + 2 * rank; step++) {
      vector.view.fill(rank + 1);
      const handle = allReduce(world, vector, { op: 'mean', name: `step ${step}` });
      if (step % 2 === 0) handle.wait();
      else await handle;
      averages.push(vector.view[length - 1]!);
    }
    await join(world);
    say('averages', { rank, averages });
  }
}
await goOn('join');

say('ready', { rank });
await untilTold('go');
if (rank !== 2) {
  const stopped = new Promise<StallReport>((resolve) => (onStall = resolve));
  const done = allReduce(world, region('float32', [1]), { name: 'with the stopped' }).then(() => undefined);
  const { missing, text } = await stopped;
  say('stopped', { rank, missing, text });
  await done;
} else {
  await allReduce(world, region('float32', [1]), { name: 'with the stopped' });
}
await leaveCluster(cluster);
