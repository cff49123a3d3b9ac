/**
 * What names a parameter of a store: a string or a whole number, as MXNet's users have them. Checks and texts only. Invariant:
 * a number is never taken for the string of its digits, on the wire as in memory.
 */
import { UsageError } from './errors.ts';

/** `1` and `'1'` are different keys. */
export type StoreKey = string | number;

/** UTF-16 units of a string. */
export const MAX_KEY_LENGTH = 1024;

export function isStoreKey(value: unknown): value is StoreKey {
  if (typeof value === 'number') return Number.isSafeInteger(value);
  return (
    typeof value === 'string' && value.length > 0 && value.length <= MAX_KEY_LENGTH && isWellFormed(value)
  );
}

export function checkStoreKey(worker: number, key: unknown): asserts key is StoreKey {
  if (isStoreKey(key)) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} gave ${said(key)} for a key; give a string of 1 to 1,024 characters without half surrogates, or a whole number from ${Number.MIN_SAFE_INTEGER} to ${Number.MAX_SAFE_INTEGER}`,
    { worker, key: said(key) },
  );
}

/** For messages: 'w' in quotes, a number without. */
export function keyText(key: StoreKey): string {
  return typeof key === 'number' ? String(key) : `'${key}'`;
}

/** A different string for each key, for names of what belongs to it. */
export function keyName(key: StoreKey): string {
  return `${typeof key} ${key}`;
}

/** Half a surrogate pair has no UTF-8: it would arrive as another character. */
function isWellFormed(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

function said(key: unknown): string {
  if (typeof key !== 'string') return typeof key === 'object' && key !== null ? 'an object' : String(key);
  if (key.length === 0) return 'an empty string';
  return key.length > MAX_KEY_LENGTH ? `a string of ${key.length} characters` : JSON.stringify(key);
}
