/**
 * Where threads of a benchmark wait for each other before a round. Two words of shared memory. Invariant: no thread begins a
 * round before all have come to it; a wait has a deadline.
 */
const [ARRIVED, BEGUN] = [0, 1];
/** A thread that sleeps begins late: it looks for the others so often before it does. */
const SPINS = 200_000;

export function createBarrier(): Int32Array {
  return new Int32Array(new SharedArrayBuffer(2 * 4));
}

/** Until all threads have come to this round, counted from 0; the last one lets the others go. */
export function meet(barrier: Int32Array, threads: number, round: number, timeoutMs: number): void {
  if (Atomics.add(barrier, ARRIVED, 1) + 1 === threads * (round + 1)) {
    Atomics.store(barrier, BEGUN, round + 1);
    Atomics.notify(barrier, BEGUN);
    return;
  }
  for (let spin = 0; spin < SPINS; spin++) if (Atomics.load(barrier, BEGUN) > round) return;
  if (Atomics.wait(barrier, BEGUN, round, timeoutMs) !== 'timed-out') return;
  throw new Error(`it waited ${timeoutMs} ms for ${threads - 1} others in round ${round}`);
}
