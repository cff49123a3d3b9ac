/**
 * Refuses options that a call does not have, for callers whom no compiler checks: a misspelt name would otherwise
 * mean its default. Values are checked elsewhere. Invariant: a list of names is complete, or it does not compile.
 */
import { UsageError } from './errors.ts';
import { didYouMean } from './nearest.ts';

/** The names of an interface of options, each once. */
export type OptionNames<T> = { readonly [Name in keyof T]-?: true };

/** `caller` is the function that was called: 'fit'. An option that is undefined is one that was not given. */
export function refuseUnknownOptions<T extends object>(
  caller: string,
  given: T,
  known: OptionNames<T>,
): void {
  const names = Object.keys(known);
  const unknown = Object.entries(given).flatMap(([name, value]) =>
    value === undefined || Object.hasOwn(known, name) ? [] : [name],
  );
  if (unknown.length === 0) return;
  const hints = unknown.map((name) => didYouMean(name, names));
  const faults = unknown.map((name, i) => `${caller} has no option "${name}".${hints[i]!}`);
  const listed = hints.includes('') ? ` Its options: ${names.join(', ')}.` : '';
  throw new UsageError('INVALID_ARGUMENT', `${faults.join(' ')}${listed}`, { caller, unknown });
}
