/**
 * The answers of several cores to one call, and the numbers of pushes, which servers count for each key. It sends nothing.
 * Invariant: a call that was refused gives its numbers back, all of them, so that the next push of a key has the one that
 * the server expects; cores that had taken their part answer the same number without counting it again.
 */
import { pack, PeerError, unpack } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import type { KnownKey } from './key-table.ts';

/**
 * Fails with the first refusal, but not before all have answered: until then cores use the memory of the call. A server that
 * is gone, or goes back, ends the wait.
 */
export async function allAnswered<T>(asked: readonly Promise<T>[]): Promise<T[]> {
  const unlessGone = (error: unknown): void => {
    if (error instanceof PeerError) throw error;
  };
  await Promise.all(asked.map((one) => one.catch(unlessGone)));
  return Promise.all(asked);
}

/** `isTakenElsewhere`: cores have taken their part of the push that another has refused. */
export function refusalOf(error: TributaryError, isTakenElsewhere: boolean): TributaryError {
  if (!isTakenElsewhere || error instanceof PeerError) return error;
  const end = error.message.endsWith('.') ? '' : '.';
  const advice =
    'Other cores have taken their part of this push; repeat the call with the same gradients, which completes it and counts nothing twice.';
  return unpack({ ...pack(error), message: `${error.message}${end} ${advice}` });
}

/** Before the next push of keys: with one that was refused, those sent behind it are refused, too. */
export async function refusalsSettled(keys: readonly KnownKey[]): Promise<void> {
  for (const key of keys) {
    if (!key.hasRefused) continue;
    await key.pushes;
    key.hasRefused = false;
  }
}

/** The next push of each key was sent. After the loss of a server recovery sets the numbers. */
export function countPush(keys: readonly KnownKey[], answer: Promise<unknown>): void {
  for (const key of keys) {
    const step = ++key.step;
    const settled = answer.catch((error: unknown) => {
      if (error instanceof PeerError) return;
      key.step = Math.min(key.step, step - 1);
      key.hasRefused = true;
    });
    key.pushes = Promise.all([key.pushes, settled]);
  }
}
