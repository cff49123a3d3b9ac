/**
 * First values that servers make by themselves, as a worker asks for them, and the checks of every
 * field. Pure. Invariant: what `readFirstValues` returns can be filled into any key: its numbers
 * are finite, and it is nested no deeper than a layer makes it.
 */
import type { SeededInitialiser } from '../../base/index.ts';
import { check, finiteOf, isCount, malformed, objectOf } from './fields.ts';

/** The elements of a parameter from `first` on, by the seed of this parameter alone. */
export interface FirstValues {
  readonly initialiser: SeededInitialiser;
  readonly seed: number;
  readonly first: number;
}

const MAX_SEED = 2 ** 32 - 1;
const MAX_NESTED = 4;

export function readFirstValues(value: unknown): FirstValues | undefined {
  if (value === undefined) return undefined;
  const { initialiser, seed, first } = objectOf(value, 'first values');
  check(isCount(seed, MAX_SEED) && isCount(first), 'first values', value);
  return { initialiser: readInitialiser(initialiser, MAX_NESTED), seed, first };
}

function readInitialiser(value: unknown, mayNest: number): SeededInitialiser {
  const given = objectOf(value, 'initialiser');
  const { kind } = given;
  switch (kind) {
    case 'constant':
      return { kind, value: finiteOf(given, 'value') };
    case 'uniform':
      return { kind, limit: finiteOf(given, 'limit') };
    case 'normal':
      return { kind, deviation: finiteOf(given, 'deviation') };
    case 'zeroed': {
      const { start, length, base } = given;
      check(isCount(start) && isCount(length) && mayNest > 0, 'initialiser', given);
      return { kind, base: readInitialiser(base, mayNest - 1), start, length };
    }
    default:
      throw malformed('initialiser', given);
  }
}
