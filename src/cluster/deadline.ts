/**
 * Waits that end: by their promise, by a time, or by a signal, whichever is first. It cancels nothing by itself; who
 * calls takes back what was asked. Invariant: no timer and no listener outlives the wait.
 */
import { PeerError } from '../base/index.ts';

/** What `before` rejects with when the time is over. */
export class Late extends Error {
  override readonly name = 'Late';
}

/** The promise's result, unless the time is over (`Late`) or the signal is aborted (`PeerError` CANCELLED) before. */
export async function before<T>(
  promise: Promise<T>,
  timeoutMs: number,
  signal: AbortSignal | undefined,
  what: string,
): Promise<T> {
  let stop = (): void => undefined;
  const ended = new Promise<never>((_, reject) => {
    const timer = setTimeout(() => reject(new Late(what)), Math.min(timeoutMs, 2 ** 31 - 1));
    const abort = () => reject(cancelled(what, signal?.reason));
    signal?.addEventListener('abort', abort);
    stop = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    };
    if (signal?.aborted) abort();
  });
  // Whichever comes second has nobody to tell.
  promise.catch(() => undefined);
  try {
    return await Promise.race([promise, ended]);
  } finally {
    stop();
  }
}

function cancelled(what: string, reason: unknown): PeerError {
  return new PeerError(
    'CANCELLED',
    `${what} was cancelled by its signal; call it again if it is still wanted.`,
    {},
    reason,
  );
}
