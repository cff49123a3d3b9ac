/**
 * The errors of operations that did not run, and of waits for those that do not end. What an operation itself fails
 * with is passed on as it is. Invariant: every error names the operation and, if it is not to blame, who is.
 */
import { InternalError, PeerError, UsageError } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import type { Damage } from './variable-table.ts';

/**
 * An operation was kept from reading a variable that a failed one left half-written. Class and code are the culprit's,
 * so that who matches on them need not know which of the two it looks at; an error that is not ours becomes CANCELLED.
 */
export function unreadable(operation: string, variable: string, damage: Damage): TributaryError {
  const { writer, culprit, error } = damage;
  const reason = error instanceof Error ? error.message : String(error);
  const blame =
    writer === culprit
      ? `operation '${culprit}' was to write and failed`
      : `operation '${writer}' was to write and did not, since operation '${culprit}' failed`;
  const message =
    `operation '${operation}' did not run: it reads '${variable}', which ${blame} (${reason}); ` +
    `write '${variable}' afresh by an operation that does not read it, then push '${operation}' again`;
  const facts = { operation, variable, writer, culprit };
  if (error instanceof UsageError) return new UsageError(error.code, message, facts, error);
  if (error instanceof InternalError) return new InternalError(error.code, message, facts, error);
  return new PeerError(error instanceof PeerError ? error.code : 'CANCELLED', message, facts, error);
}

export function closedBefore(operation: string): PeerError {
  return new PeerError(
    'CANCELLED',
    `operation '${operation}' did not run: the engine was closed before it could begin; await idle() before close() to let all operations end`,
    { operation },
  );
}

export function closedAlready(operation: string): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `operation '${operation}' was pushed to an engine that is closed; make a new engine`,
    { operation },
  );
}

export function stillWaiting(
  what: string,
  timeoutMs: number,
  underWay: string[],
  waiting: number,
): PeerError {
  const shown = underWay.slice(0, 10).map((name) => `'${name}'`);
  const more = underWay.length - shown.length;
  return new PeerError(
    'TIMEOUT',
    `${what} did not end within ${timeoutMs} ms: under way are ${shown.join(', ') || 'no operations'}` +
      `${more > 0 ? ` and ${more} more` : ''}; ${waiting} have not begun. ` +
      'Find out why those under way do not end (each should have a deadline of its own), or raise timeoutMs',
    { timeoutMs, underWay, waiting },
  );
}
