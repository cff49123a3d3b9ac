/**
 * Time, as everything that waits is given it. Not a wall clock: it starts anywhere and never goes
 * back. Passed in rather than read, so that a simulation can run hours of waiting in a moment.
 * Invariant: a timer keeps no process alive; the next turn and a pause, which somebody awaits, do.
 */

export interface Clock {
  /** Milliseconds since some moment; never goes back. */
  nowMs(): number;
  /** Calls `act` once, after so many milliseconds. Returns a function that calls it off. */
  after(delayMs: number, act: () => void): () => void;
  /** Calls `act` in the next turn of the event loop. */
  soon(act: () => void): void;
  /** Settles after so many milliseconds; the process stays alive until then. */
  pause(delayMs: number): Promise<void>;
}

export const systemClock: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, act) {
    const timer = setTimeout(act, delayMs);
    timer.unref();
    return () => clearTimeout(timer);
  },
  soon: (act) => void setImmediate(act),
  pause: (delayMs) => new Promise((resolve) => setTimeout(resolve, delayMs)),
};
