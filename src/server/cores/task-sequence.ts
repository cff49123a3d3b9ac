/**
 * Work that waits for answers now and then, written down as a sequence. A core has no event loop that would run promises, so
 * every step is given what to call when it is done. Invariant: one of `done` and `fail` is called, once, whatever is thrown.
 */
import { asTributaryError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';

/** Calls `done` now or later, or `fail`. */
export type Task = (done: () => void, fail: (error: TributaryError) => void) => void;

export function runInTurn(
  tasks: Iterator<Task, void>,
  done: () => void,
  fail: (error: TributaryError) => void,
): void {
  const failed = (error: TributaryError): void => {
    // Lets it give back what it has taken.
    tasks.return?.();
    fail(error);
  };
  const go = (): boolean => {
    // A loop, because steps that are done at once may be many more than the stack is deep.
    for (let next = tasks.next(); !next.done; next = tasks.next()) {
      let [hasEnded, isAwaited] = [false, false];
      next.value(() => {
        hasEnded = true;
        if (isAwaited) step();
      }, failed);
      isAwaited = true;
      if (!hasEnded) return false;
    }
    return true;
  };
  const step = (): void => {
    let isDone: boolean;
    try {
      isDone = go();
    } catch (error) {
      return failed(asTributaryError(error));
    }
    if (isDone) done();
  };
  step();
}
