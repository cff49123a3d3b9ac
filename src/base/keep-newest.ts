/**
 * Which checkpoints of a folder stay: the newest that are good, everything that is newer than the
 * oldest of those, and those that somebody still needs. It knows nothing of what they hold, nor how
 * they are told apart. Invariant: nothing is removed before so many newer ones were found good, and
 * what cannot be removed costs room, not safety: nothing fails, and the next call tries again.
 */
export interface KeepNewestOptions<Name> {
  readonly newestFirst: readonly Name[];
  /** How many good ones stay. */
  readonly keep: number;
  readonly isGood: (name: Name) => boolean;
  /** Whether it stays however old it is. Default: none does. */
  readonly isNeeded?: ((name: Name) => boolean) | undefined;
  readonly remove: (name: Name) => void;
  /** Receives each one that could not be removed, and why. */
  readonly onNotRemoved: (name: Name, reason: string) => void;
}

/** Returns the good ones that stay, newest first. */
export function keepNewest<Name>(options: KeepNewestOptions<Name>): Name[] {
  const { newestFirst, keep, isGood, isNeeded, remove, onNotRemoved } = options;
  const kept: Name[] = [];
  for (const name of newestFirst) {
    if (kept.length < keep || isNeeded?.(name)) {
      if (isGood(name)) kept.push(name);
      continue;
    }
    try {
      remove(name);
    } catch (error) {
      onNotRemoved(name, error instanceof Error ? error.message : String(error));
    }
  }
  return kept;
}
