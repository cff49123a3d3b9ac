/**
 * The words in which wrong values of `on` are refused: what was given, what was expected, what to
 * do next.
 */
import { didYouMean, UsageError } from '../base/index.ts';

export function checkChoice(name: string, value: string, known: readonly string[]): void {
  if (known.includes(value)) return;
  const hint = typeof value === 'string' ? didYouMean(value, known) : '';
  throw fault(`${name} is ${print(value)}.${hint} Give ${known.map((one) => `'${one}'`).join(', ')}`);
}

/** A whole number from 1 on. */
export function isWithin(value: unknown, most: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 1 && value <= most;
}

export function list(names: readonly string[]): string {
  return names.join(', ');
}

export function print(value: unknown): string {
  return typeof value === 'string' ? `'${value}'` : (JSON.stringify(value) ?? String(value));
}

export function fault(message: string, facts: Record<string, unknown> = {}): UsageError {
  return new UsageError('INVALID_ARGUMENT', message, facts);
}
