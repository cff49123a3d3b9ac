/**
 * What the memory of this machine allows: a plain read-modify-write, `target += a * x` by our SIMD kernel, by several
 * threads at once, each on its own part. It counts three vectors moved: x and the target read, the target written.
 * Not a copy, which would count writes that read nothing. Invariant: a round counts from the first thread's start to
 * the last one's end, and the best round is the bound.
 */
import { UsageError } from '../../base/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { SegmentRange, WasmMemory } from '../../memory/index.ts';
import { createBarrier } from './thread-barrier.ts';
import { runThreads } from './thread-team.ts';

export interface MemoryBandwidthOptions {
  /** Length of the vector that is updated, in bytes, a multiple of 4; another as long is read. */
  readonly bytes: number;
  /** That work at once. */
  readonly threads: number;
  /** Of which the fastest counts, after one that does not. Default 30. */
  readonly rounds?: number | undefined;
  /** Longest wait of a thread for the others, in milliseconds. Default 60,000. */
  readonly timeoutMs?: number | undefined;
}

/** What a thread is told. */
export interface MemoryThreadData {
  readonly memory: WasmMemory;
  readonly target: SegmentRange;
  readonly source: SegmentRange;
  /** Its number, and its part in elements. */
  readonly thread: number;
  readonly start: number;
  readonly length: number;
  readonly threads: number;
  /** With the one that does not count. */
  readonly rounds: number;
  readonly timeoutMs: number;
  readonly barrier: Int32Array;
  /** Nanoseconds of the system's clock for each round and thread: start, end. */
  readonly times: BigInt64Array;
}

const MAX_THREADS = 256;
/** x and the target, each on pages of its own, and what the space itself takes. */
const SLACK_BYTES = 4 * 2 ** 20;

/** Bytes per second that the threads together read and write. */
export async function measureMemoryBandwidth(options: MemoryBandwidthOptions): Promise<number> {
  const { bytes, threads, rounds = 30, timeoutMs = 60_000 } = options;
  check(options, rounds);
  const space = SharedSpace.create({ maxBytes: 2 * bytes + SLACK_BYTES });
  const [target, source] = [space.allocate(bytes), space.allocate(bytes)];
  const times = new BigInt64Array(new SharedArrayBuffer((rounds + 1) * threads * 2 * 8));
  const barrier = createBarrier();
  const elements = bytes / 4;
  const startOf = (thread: number): number => Math.floor((elements * thread) / threads);
  const range = ({ byteOffset, byteLength }: SegmentRange): SegmentRange => ({ byteOffset, byteLength });
  const team = Array.from({ length: threads }, (_, thread): MemoryThreadData => ({
    ...{ memory: space.memory, target: range(target), source: range(source) },
    ...{ thread, start: startOf(thread), length: startOf(thread + 1) - startOf(thread) },
    ...{ threads, rounds: rounds + 1, timeoutMs, barrier, times },
  }));
  await runThreads(new URL('./memory-thread', import.meta.url), team);
  target.close();
  source.close();
  return (3 * bytes) / (bestNanoseconds(times, threads) / 1e9);
}

function bestNanoseconds(times: BigInt64Array, threads: number): number {
  let best = Infinity;
  // The first round takes the page faults.
  for (let round = 2 * threads; round < times.length; round += 2 * threads) {
    const one = Array.from(times.subarray(round, round + 2 * threads), Number);
    const starts = one.filter((_, i) => i % 2 === 0);
    const ends = one.filter((_, i) => i % 2 === 1);
    best = Math.min(best, Math.max(...ends) - Math.min(...starts));
  }
  return best;
}

function check({ bytes, threads }: MemoryBandwidthOptions, rounds: number): void {
  const refuse = (name: string, value: number, expected: string): void => {
    throw new UsageError('INVALID_ARGUMENT', `${name} is ${value}; give ${expected}`, { [name]: value });
  };
  if (!Number.isSafeInteger(threads) || threads < 1 || threads > MAX_THREADS)
    refuse('threads', threads, `a whole number from 1 to ${MAX_THREADS}`);
  if (!Number.isSafeInteger(bytes) || bytes < 4 * threads || bytes % 4 !== 0)
    refuse('bytes', bytes, 'a multiple of 4 with at least 4 for each thread');
  if (!Number.isSafeInteger(rounds) || rounds < 1) refuse('rounds', rounds, 'a whole number of 1 or more');
}
