/** What a benchmark refuses was typed by whoever called `tributary bench`: the same words as an error of the command line. */
import { UsageError } from '../../base/index.ts';

export function asTyped(error: unknown): never {
  if (!(error instanceof UsageError) || error.code !== 'INVALID_ARGUMENT') throw error;
  throw new UsageError('INVALID_COMMAND', error.message, error.facts, error);
}
