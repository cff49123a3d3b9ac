/**
 * A rank of the tests with a communication thread: goes through what a worker does with it, in the same order as its
 * peers, and says what came out. Not a test itself, and no judge: what must come out stands in processes.test.ts.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { TributaryError } from '../../src/base/index.ts';
import { CommunicationThread } from '../../src/communication/index.ts';
import { defaultSegmentDirectory, SharedSpace } from '../../src/memory/index.ts';
import type { DType, Region } from '../../src/memory/index.ts';
import type { Handle, StallReport } from '../../src/progress/index.ts';
import { say, settings, untilTold } from '../collectives/rank-program-start.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { segmentFiles } from '../support/segment-files.ts';

const { scheduler, secret } = settings;
const MEGA = 2 ** 20;
const BURN_MS = 30_000;
const space = SharedSpace.create({ maxBytes: 256 * MEGA });
const thread = await CommunicationThread.start({
  ...{ scheduler, secret, space, measure: false },
  transport: settings.transport as TransportChoice,
  stallAfterMs: 200,
  deadlineMs: 30_000,
});
const { rank } = thread.world;
const memory = space.allocate(64 * MEGA);
// Stalls are only looked for where they are meant to happen.
thread.events.on('stalled', () => undefined);

function region<T extends DType>(dtype: T, values: readonly number[]): Region<T> {
  const made = memory.allocate(dtype, values.length);
  values.forEach((value, i) => (made.view[i] = value));
  return made;
}

/** How an operation ended: awaited, or waited for with the thread blocked. */
async function outcome(scenario: string, handle: Handle, blocked: boolean): Promise<void> {
  let ended: Pick<TributaryError, 'name' | 'code' | 'message' | 'facts'> | undefined;
  try {
    if (blocked) handle.wait();
    else await handle;
  } catch (error) {
    if (!(error instanceof TributaryError)) throw error;
    ended = error;
  }
  const { name, code, message, facts } = ended ?? { name: 'none', code: 'none', message: '', facts: {} };
  say('outcome', { scenario, rank, blocked, name, code, message, facts, settled: handle.settled });
}

/** Bytes of this process's largest scratch segment, which is where regions are copied that peers cannot map. */
function largestCopy(): number {
  const mine = segmentFiles().filter((name) => name.includes(`scratch-${process.pid}-`));
  return Math.max(0, ...mine.map((name) => statSync(join(defaultSegmentDirectory(), name)).size));
}

say('world', { rank, size: thread.world.size, transport: thread.transport });

// While this thread computes and never yields, the operation goes on.
{
  const vector = thread.allocate('float32', MEGA);
  vector.view.fill(rank + 1);
  const handle = thread.allReduce(vector, { name: 'while computing' });
  const endMs = performance.now() + BURN_MS;
  while (!handle.settled && performance.now() < endMs);
  const meanwhile = handle.settled;
  handle.wait();
  say('burnt', { rank, meanwhile, values: [vector.view[0], vector.view[MEGA - 1]] });
}

// Regions of named segments are lent where they lie, also when the segment came later or another had its place before.
{
  const algorithm = 'direct' as const;
  const sums: number[] = [];
  for (let round = 0; round < 3; round++) {
    const segment = space.createSegment(`named-${process.pid}-${round}`, 4 * MEGA);
    const vector = segment.allocate('float32', MEGA);
    vector.view.fill(rank + 1);
    thread.allReduce(vector, { algorithm }).wait();
    sums.push(vector.view[MEGA - 1]!);
    segment.close();
  }
  const copiedNamed = largestCopy();
  const vector = memory.allocate('float32', MEGA);
  vector.view.fill(rank + 1);
  await thread.allReduce(vector, { algorithm });
  sums.push(vector.view[MEGA - 1]!);
  say('lent', { rank, sums, copiedNamed, copiedPrivate: largestCopy() });
}

// Many under way, begun in another order on each rank.
{
  const tags = Array.from({ length: 60 }, (_, i) => i + 1);
  const order = tags.map((_, i) => tags[(i * 7 + rank * 20) % tags.length]!);
  const started = order.map((tag) => {
    const vector = region('float64', [tag * (rank + 1), tag]);
    return { tag, vector, handle: thread.allReduce(vector, { tag }) };
  });
  for (const { tag, handle } of started) {
    if (tag % 2 === 0) handle.wait();
    else await handle;
  }
  const values = started.map(({ tag, vector }) => [tag, ...vector.view] as number[]);
  say('tags', { rank, values: values.sort((a, b) => a[0]! - b[0]!) });
}

// Each collective, with its own options.
{
  const parts = region('float32', [1, 2, 3]);
  const part = region('float32', [0]);
  await thread.reduceScatter(parts, part, { op: 'max' });
  const all = region('float32', [0, 0, 0]);
  thread.allGather(region('float32', [rank]), all).wait();
  const got = region('int32', [0, 0, 0]);
  await thread.allToAll(region('int32', [10 * rank, 10 * rank + 1, 10 * rank + 2]), got);
  const spread = region('float32', [rank]);
  thread.broadcast(spread, { root: 1 }).wait();
  const reduced = region('float32', [rank + 1]);
  await thread.reduce(reduced, { op: 'product', root: 2 });
  const mean = [region('float32', [rank]), region('float32', [rank + 1])];
  await thread.allReduce(mean, { op: 'mean' });
  const residual = region('float32', [0, 0, 0, 0]);
  const coded = region('float32', [0, rank + 1, 0, 0]);
  await thread.allReduce(coded, { codec: { kind: 'topk', k: 1, residual } });
  await thread.barrier();
  const results = [part, all, got, spread, reduced, ...mean, coded].map(({ view }) =>
    Array.from(view, Number),
  );
  say('collectives', { rank, results });
}

for (const blocked of [false, true]) {
  await outcome('mismatch', thread.allReduce(region('float32', rank === 2 ? [1, 2] : [1])), blocked);
  // Rank 2 comes once the others have left: the operation cannot end before its signal.
  if (rank === 2) await thread.barrier({ tag: 8 });
  const abort = new AbortController();
  const cancelled = thread.allReduce(memory.allocate('float32', 100_000), { signal: abort.signal });
  if (rank === 1) abort.abort();
  await outcome('cancel', cancelled, blocked && rank !== 1);
  if (rank !== 2) await thread.barrier({ tag: 8 });
  await outcome('usage', thread.reduceScatter(region('float32', [1]), region('int32', [1, 2])), blocked);
  await outcome('after', thread.barrier({ name: 'after' }), blocked);
}

// A rank that comes late is named while the others wait.
if (rank === 1) {
  await thread.barrier({ tag: 9 });
  await thread.barrier({ name: 'awaited' });
} else {
  const stalled = new Promise<StallReport>((resolve) => {
    thread.events.on('stalled', (report) => report.operation.includes('awaited') && resolve(report));
  });
  const handle = thread.barrier({ name: 'awaited' });
  const { missing, text } = await stalled;
  say('stalled', { rank, missing, text });
  await thread.barrier({ tag: 9 });
  handle.wait();
}

// A rank without data takes part from its thread.
{
  const averages: number[] = [];
  for (let step = 0; step <= rank; step++) {
    const vector = region('float32', [rank + 1]);
    await thread.allReduce(vector, { op: 'mean', name: `step ${step}` });
    averages.push(vector.view[0]!);
  }
  await thread.join();
  say('averages', { rank, averages });
}

// A group of some ranks beside the world.
if (rank !== 1) {
  const group = await thread.group([2, 0]);
  const vector = region('float32', [rank + 1]);
  await thread.allReduce(vector, { group });
  await thread.closeGroup(group);
  await outcome('closed group', thread.barrier({ group }), false);
  say('group', { rank, sum: vector.view[0] });
}

say('costs', {
  rank,
  before: (await thread.costs()) ?? null,
  ...(await thread.measureCosts({ bytes: [1024] })),
});

// One is killed; the others name it, form a world without it and go on.
say('ready', { rank });
if (rank === 2) await untilTold('never');
const left = new Promise<number>((resolve) => thread.events.once('left', ({ member }) => resolve(member)));
const formed = new Promise<number>((resolve) =>
  thread.events.once('formed', ({ group }) => resolve(group.size)),
);
await outcome('killed', thread.allReduce(region('float32', [1])), rank === 1);
const lostMember = await left;
const old = thread.world;
const world = await thread.regroup();
const vector = region('float32', [1]);
await thread.allReduce(vector);
await outcome('old world', thread.barrier({ group: old.id }), true);
const facts = { lost: old.members.indexOf(lostMember), size: world.size, seen: thread.world.id === world.id };
say('regrouped', { rank, ...facts, formed: await formed, sum: vector.view[0] });

// Rank 1 goes last: would it close first, the operation of rank 0 would rightly name it as lost.
const pending = rank === 0 ? thread.barrier({ tag: 5, name: 'only here' }) : undefined;
const otherLeft = new Promise((resolve) => thread.events.once('left', resolve));
await thread.barrier({ tag: 6 });
if (rank === 1) await otherLeft;
await thread.close();
await thread.close();
if (pending) await outcome('pending at close', pending, true);
let refusal = '';
try {
  thread.barrier();
} catch (error) {
  refusal = (error as Error).message;
}
const segments = segmentFiles().filter((name) => name.includes(`${process.pid}`));
say('closed', { rank, refusal, segments });
// Nothing of the thread may keep the process: it ends by itself.
process.stdin.unref();
