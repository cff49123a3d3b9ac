/**
 * What happens to gradients between the backward pass and the update: those of all workers become one. A contract; which way a
 * gradient takes is the implementation's. Invariant: after `finish` every worker holds the same loss and the same gradients,
 * bit for bit, as if one device had computed the whole batch.
 */
export interface Exchange {
  /** Parameters whose gradients leave together, in the order backward makes them; what `Replica` is given. */
  readonly groups: readonly (readonly string[])[];
  /** Between two steps, on all workers the same. */
  setGroups(groups: readonly (readonly string[])[]): void;
  /** The gradients of the next step count for so many samples. Every worker says so, also one without any. */
  begin(samples: number): void;
  /** The gradients of a group are in their places: they may leave while the next ones are computed. */
  start(group: number): void;
  /** Waits until all are combined. */
  finish(): void;
}
