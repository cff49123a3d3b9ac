/**
 * What a message costs between these workers, by its length, as the runner sends it: through the communication thread, with
 * nothing else going on. Measures; decides nothing. All workers call it together. Invariant: on all workers the same figures, those of
 * the slowest.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Handle } from '../progress/index.ts';
import { tellAll } from './agreement.ts';

/** Milliseconds of messages of some lengths, shortest first. */
export type MessageCosts = readonly { readonly bytes: number; readonly ms: number }[];

const SHORTEST_BYTES = 4096;
const FACTOR = 8;
const REPEATS = 5;
/** Enough for a line: the cost of longer ones is extended from it, as a multiple. */
const LONGEST_BYTES = 8 * 2 ** 20;
const FAR = 64;

/** Of an allreduce, by the bytes of the vector. */
export async function measureMessages(
  thread: CommunicationThread,
  largestBytes: number,
): Promise<MessageCosts> {
  const longest = Math.min(LONGEST_BYTES, Math.max(largestBytes, FACTOR * SHORTEST_BYTES));
  const lengths: number[] = [];
  for (let bytes = SHORTEST_BYTES; bytes < longest; bytes *= FACTOR) lengths.push(bytes);
  lengths.push(longest);
  const vector = thread.allocate('float32', Math.ceil(longest / 4));
  const reduce = (bytes: number): Handle => thread.allReduce(vector.slice(0, bytes / 4), { op: 'mean' });
  const whole = lengths.map((bytes) => 4 * Math.floor(bytes / 4));
  const own = whole.map((bytes) => medianMs(() => reduce(bytes)));
  await thread.free(vector);
  const times = slowest(thread, own);
  const last = times.at(-1)!;
  return [
    // A shorter message that took longer was disturbed.
    ...whole.map((bytes, i) => ({ bytes, ms: Math.min(...times.slice(i)) })),
    // Otherwise the slope between two neighbours would decide on messages of any length.
    { bytes: FAR * whole.at(-1)!, ms: FAR * last },
  ];
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

function slowest(thread: CommunicationThread, own: readonly number[]): number[] {
  const all = tellAll(thread, own, 'costs of messages');
  return own.map((_, i) => Math.max(...all.map((times) => times[i]!)));
}
