/**
 * Checks of numbers that callers pass to the plan. Not a schema of configuration files, which `src/cli` checks by
 * field. Invariant: a refused argument is named in the error, with its value and what would be accepted.
 */
import { UsageError } from '../base/index.ts';

/** Refuses everything but 1, 2, 3 and so on. */
export function requireCount(name: string, value: number): void {
  if (!Number.isSafeInteger(value) || value < 1) refuse(name, value, 'a positive integer');
}

/** Refuses 0, negative numbers, NaN and infinity. */
export function requirePositive(name: string, value: number): void {
  if (!Number.isFinite(value) || value <= 0) refuse(name, value, 'a finite number above 0');
}

export function refuse(name: string, value: unknown, accepted: string): never {
  throw new UsageError('INVALID_ARGUMENT', `${name} is ${String(value)}; pass ${accepted}.`, {
    argument: name,
    value,
    accepted,
  });
}
