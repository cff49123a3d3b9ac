/**
 * Which thread of a server does what (PHub, section 3.2): key by core, where a thread owns chunks and sums all workers' pieces of
 * them, against worker by core, where a thread owns a worker and adds its gradient to sums that all share, under a lock for
 * each chunk. Threads of one process with the kernels of the server; no messages. Invariants: both do the same updates,
 * compared bit by bit with what is known; they alternate, and medians are compared.
 */
import { SharedSpace } from '../../memory/index.ts';
import type { SegmentRange, WasmMemory } from '../../memory/index.ts';
import { median } from '../allreduce/index.ts';
import { createBarrier } from './thread-barrier.ts';
import { runThreads } from './thread-team.ts';

export const ASSIGNMENTS = ['key-by-core', 'worker-by-core'] as const;
export type Assignment = (typeof ASSIGNMENTS)[number];

export interface AssignmentOptions {
  /** Of the model, one vector. */
  readonly elements: number;
  /** As many threads, so that worker by core has one for each. */
  readonly workers: number;
  readonly chunkBytes: number;
  /** Alternating; after one that does not count. */
  readonly rounds: number;
  /** About how long one of them takes for each assignment, in milliseconds. */
  readonly turnMs: number;
  /** Longest wait of a thread for the others, in milliseconds. Default 60,000. */
  readonly timeoutMs?: number | undefined;
}

/** What a thread is told. */
export interface AssignmentThreadData {
  readonly memory: WasmMemory;
  readonly elements: number;
  readonly chunkElements: number;
  readonly thread: number;
  readonly threads: number;
  /** A gradient for each worker, and what is added up under locks. */
  readonly gradients: readonly SegmentRange[];
  readonly sums: SegmentRange;
  /** Weights and momentum for each assignment, in the order of `ASSIGNMENTS`. */
  readonly states: readonly (readonly [weights: SegmentRange, momentum: SegmentRange])[];
  /** A lock and a count of additions for each chunk. */
  readonly locks: Int32Array;
  readonly counts: Int32Array;
  readonly barrier: Int32Array;
  /** With the one that does not count. */
  readonly rounds: number;
  /** Exchanges in a round. */
  readonly iterations: number;
  readonly timeoutMs: number;
  /** Milliseconds of each round, assignment and thread. */
  readonly times: Float64Array;
}

const SLACK_BYTES = 4 * 2 ** 20;
const LEAST_ITERATIONS = 3;

/** Microseconds of an exchange by each. */
export async function measureAssignments(
  options: AssignmentOptions,
): Promise<Readonly<Record<Assignment, number>>> {
  // Few exchanges tell how many make a turn.
  const first = await measure({ ...options, rounds: 1 }, LEAST_ITERATIONS);
  const slowest = Math.max(...Object.values(first));
  const iterations = Math.max(LEAST_ITERATIONS, Math.round((options.turnMs * 1e3) / slowest));
  return measure(options, iterations);
}

async function measure(
  { elements, workers: threads, chunkBytes, rounds, timeoutMs = 60_000 }: AssignmentOptions,
  iterations: number,
): Promise<Record<Assignment, number>> {
  const vectors = threads + 1 + 2 * ASSIGNMENTS.length;
  const maxBytes = vectors * 4 * elements + threads * (chunkBytes + SLACK_BYTES);
  const space = SharedSpace.create({ maxBytes: Math.min(2 ** 32, maxBytes) });
  const vector = (): SegmentRange => {
    const { byteOffset, byteLength } = space.allocate(4 * elements);
    return { byteOffset, byteLength };
  };
  const chunkElements = chunkBytes / 4;
  const words = (): Int32Array =>
    new Int32Array(new SharedArrayBuffer(4 * Math.ceil(elements / chunkElements)));
  const times = new Float64Array(new SharedArrayBuffer(8 * (rounds + 1) * ASSIGNMENTS.length * threads));
  const common: Omit<AssignmentThreadData, 'thread'> = {
    ...{ memory: space.memory, elements, chunkElements, threads, sums: vector(), times, timeoutMs },
    gradients: Array.from({ length: threads }, vector),
    states: ASSIGNMENTS.map(() => [vector(), vector()] as const),
    ...{ locks: words(), counts: words(), barrier: createBarrier(), rounds: rounds + 1, iterations },
  };
  const team = Array.from({ length: threads }, (_, thread): AssignmentThreadData => ({ ...common, thread }));
  await runThreads(new URL('./assignment-thread', import.meta.url), team);
  const microsOf = (assignment: number): number =>
    median(
      Array.from({ length: rounds }, (_, round) => {
        const at = ((round + 1) * ASSIGNMENTS.length + assignment) * threads;
        return (Math.max(...times.subarray(at, at + threads)) * 1e3) / iterations;
      }),
    );
  return { 'key-by-core': microsOf(0), 'worker-by-core': microsOf(1) };
}
