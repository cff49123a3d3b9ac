/** The check of a root rank, for the collectives that have one. */
import { UsageError } from '../base/index.ts';
import type { Group } from '../cluster/index.ts';

export function checkRoot(group: Group, what: string, root: number): number {
  if (Number.isInteger(root) && root >= 0 && root < group.size) return root;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `root of ${what} is ${root}, but group ${group.id} has the ranks 0 to ${group.size - 1}; give one of them`,
    { root, size: group.size },
  );
}
