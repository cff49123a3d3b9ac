/**
 * The call of a script that its further processes come to. They run the script from its beginning,
 * so what a later call starts comes to the first one: that is refused where it would train
 * something else. Starts nothing. Invariant: it is for the process that the user has started;
 * further ones find out by their assignment.
 */
import { UsageError } from '../base/index.ts';

export type FurtherProcesses = 'workers' | 'learners';

interface Call {
  readonly kind: FurtherProcesses;
  readonly what: string;
}

let first: Call | undefined;

/**
 * Before any is started. Calls with the same `what` are alike: it does not matter to which of them
 * a process comes.
 */
export function claimFurtherProcesses(kind: FurtherProcesses, what = ''): void {
  first ??= { kind, what };
  if (first.kind === kind && first.what === what) return;
  const other =
    first.kind === kind
      ? `${kind} for another model, other data or other settings`
      : `${first.kind}, and now asks for ${kind}`;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `This script has started ${other}; further processes run it from its beginning and would come to the first call instead of this one. Train each in a process of its own.`,
    { first: first.kind, kind },
  );
}
