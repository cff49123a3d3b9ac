/**
 * Sleeping until another process changes a word of shared memory. `Atomics.wait` does not wake other
 * processes; the kernel's futex does. Spin shortly before you sleep: a call costs microseconds. Where there
 * is no futex, `Atomics` serve the threads of one process. Invariant: every wait has a deadline.
 */
import { InternalError, UsageError } from '../base/index.ts';
import { EAGAIN, EINTR, ETIMEDOUT, hasNative, native } from './native.ts';
import type { Region } from './space.ts';

const MAX_TIMEOUT_MS = 2 ** 31;

export type WaitResult = 'woken' | 'changed' | 'timeout';

/**
 * Sleeps while `region.view[index]` is `expected`. 'changed': it was another value at once. 'woken': somebody
 * woke this word; look at the value again, for the wake may have been meant for an earlier one.
 */
export function futexWait(
  region: Region<'int32'>,
  index: number,
  expected: number,
  timeoutMs: number,
): WaitResult {
  checkWord(region, index);
  if (!(timeoutMs >= 0 && timeoutMs <= MAX_TIMEOUT_MS)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `timeoutMs is ${timeoutMs}; give 0 to ${MAX_TIMEOUT_MS}, since every wait has a deadline`,
      { timeoutMs },
    );
  }
  if (!hasNative()) {
    const result = Atomics.wait(region.view, index, expected, timeoutMs);
    return result === 'ok' ? 'woken' : result === 'not-equal' ? 'changed' : 'timeout';
  }
  const address = region.address + BigInt(index * 4);
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const errno = native().futexWait(address, expected | 0, Math.max(0, deadline - performance.now()));
    if (errno === 0) return 'woken';
    if (errno === EAGAIN) return 'changed';
    if (errno === ETIMEDOUT) return 'timeout';
    if (errno !== EINTR) {
      throw new InternalError('BROKEN_INVARIANT', `futex wait failed with errno ${errno}; please report it`, {
        errno,
        index,
      });
    }
  }
}

/** Wakes up to `count` sleepers on the word, in all processes; returns how many were woken. */
export function futexWake(region: Region<'int32'>, index: number, count: number): number {
  checkWord(region, index);
  const most = Math.min(Math.max(0, Math.floor(count)), 0x7fffffff);
  if (most === 0) return 0;
  if (!hasNative()) return Atomics.notify(region.view, index, most);
  return native().futexWake(region.address + BigInt(index * 4), most);
}

function checkWord(region: Region<'int32'>, index: number): void {
  if (region.dtype === 'int32' && Number.isInteger(index) && index >= 0 && index < region.length) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `word ${index} is outside a ${region.dtype} region of ${region.length} elements; a futex is a word of an int32 region`,
    { index, length: region.length, dtype: region.dtype },
  );
}
