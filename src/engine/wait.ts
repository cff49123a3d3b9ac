/**
 * A wait that ends: by what is waited for, by a time, or by a signal, whichever is first. It stops nothing of what is
 * waited for. Invariant: no timer and no listener outlives the wait.
 */
import { PeerError } from '../base/index.ts';

export interface WaitOptions {
  /** Longest wait, in milliseconds. Default 600,000: ten minutes. */
  readonly timeoutMs?: number | undefined;
  /** Ends the wait, not the operations. Default: none. */
  readonly signal?: AbortSignal | undefined;
}

/** The longest time that a timer of Node takes. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * `whenDone` is given what to call at the end, and returns how to take that back; `late` makes the error for when the time
 * is over.
 */
export function waitUntil(
  whenDone: (done: () => void) => () => void,
  what: string,
  late: (timeoutMs: number) => PeerError,
  { timeoutMs = 600_000, signal }: WaitOptions,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let forget = () => {};
    const stop = () => {
      forget();
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    };
    const timer = setTimeout(
      () => {
        stop();
        reject(late(timeoutMs));
      },
      Math.min(timeoutMs, LONGEST_TIMER_MS),
    );
    const abort = () => {
      stop();
      const message = `${what} was cancelled by its signal; the operations go on, wait again if that is still wanted`;
      reject(new PeerError('CANCELLED', message, {}, signal?.reason));
    };
    signal?.addEventListener('abort', abort);
    if (signal?.aborted) return abort();
    forget = whenDone(() => {
      stop();
      resolve();
    });
  });
}
