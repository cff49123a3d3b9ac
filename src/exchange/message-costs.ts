/**
 * What a message costs between these workers, by its length, as the runner sends it: through the communication thread, with
 * nothing else going on. Also how much of that time a processor is busy, which is what computing loses where no
 * processor is free. Measures; decides nothing. All workers call it together. Invariant: on all workers the same figures.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Handle } from '../progress/index.ts';
import type { Region } from '../memory/index.ts';

/** Milliseconds of messages of some lengths, shortest first. */
export type MessageCosts = readonly { readonly bytes: number; readonly ms: number }[];

export interface MeasuredMessages {
  /** Of an allreduce, by the bytes of the vector. */
  readonly collective: MessageCosts;
  /** Of an allgather, by the bytes that one worker gives. */
  readonly gather: MessageCosts;
  /** Processors that are busy in each worker while a long message is under way; 0 to about 2. */
  readonly busyProcessors: number;
}

const SHORTEST_BYTES = 4096;
const FACTOR = 8;
const REPEATS = 5;
/** Enough for a line: the cost of longer ones is extended from it. */
const LONGEST_BYTES = 8 * 2 ** 20;

export function measureMessages(thread: CommunicationThread, largestBytes: number): MeasuredMessages {
  const longest = Math.min(LONGEST_BYTES, Math.max(largestBytes, FACTOR * SHORTEST_BYTES));
  const lengths: number[] = [];
  for (let bytes = SHORTEST_BYTES; bytes < longest; bytes *= FACTOR) lengths.push(bytes);
  lengths.push(longest);
  const { size } = thread.world;
  const vector = thread.allocate('float32', Math.ceil(longest / 4));
  const gathered = thread.allocate('float32', size * Math.ceil(longest / 4 / size));
  const reduce = (bytes: number): Handle => thread.allReduce(vector.slice(0, bytes / 4), { op: 'mean' });
  const gather = (bytes: number): Handle =>
    thread.allGather(vector.slice(0, bytes / 4), gathered.slice(0, (size * bytes) / 4));
  const measure = (start: (bytes: number) => Handle, most: number) =>
    lengths
      .map((bytes) => 4 * Math.floor(Math.min(bytes, most) / 4))
      .filter((bytes, i, all) => all.indexOf(bytes) === i)
      .map((bytes) => ({ bytes, ms: medianMs(() => start(bytes)) }));
  const collective = measure(reduce, longest);
  const busyProcessors = busyDuring(() => reduce(4 * Math.floor(longest / 4)));
  const own = { collective, gather: measure(gather, longest / size), busyProcessors };
  return slowestOf(thread, own);
}

function medianMs(start: () => Handle): number {
  start().wait();
  const times = Array.from({ length: REPEATS }, () => {
    const startedMs = performance.now();
    start().wait();
    return performance.now() - startedMs;
  });
  return times.sort((a, b) => a - b)[Math.floor(REPEATS / 2)]!;
}

function busyDuring(start: () => Handle): number {
  const [before, startedMs] = [process.cpuUsage(), performance.now()];
  for (let i = 0; i < REPEATS; i++) start().wait();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000 / (performance.now() - startedMs);
}

/** A message is as slow as for whom it is slowest. */
function slowestOf(thread: CommunicationThread, own: MeasuredMessages): MeasuredMessages {
  const numbers = [...own.collective, ...own.gather].map(({ ms }) => ms);
  const all: Region<'float32'> = thread.allocate('float32', numbers.length + 1);
  all.view.set([...numbers, own.busyProcessors]);
  thread.allReduce(all, { op: 'max' }).wait();
  // A shorter message that took longer was disturbed.
  const times = (points: MessageCosts, from: number) =>
    points.map(({ bytes }, i) => ({
      ...{ bytes, ms: Math.min(...all.view.subarray(from + i, from + points.length)) },
    }));
  return {
    collective: times(own.collective, 0),
    gather: times(own.gather, own.collective.length),
    busyProcessors: all.view[numbers.length]!,
  };
}
