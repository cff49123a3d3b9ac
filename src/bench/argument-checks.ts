/** What benchmarks ask of the numbers that they are given. */
import { UsageError } from '../base/index.ts';

/** Each is a whole number above 0, or left out. */
export function requireCounts(counts: Readonly<Record<string, number | undefined>>): void {
  for (const [name, value] of Object.entries(counts)) {
    if (value === undefined || (Number.isSafeInteger(value) && value >= 1)) continue;
    throw new UsageError('INVALID_ARGUMENT', `${name} is ${value}; give a whole number above 0`, {
      [name]: value,
    });
  }
}
