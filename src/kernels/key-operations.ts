/**
 * What may be done around the update of one parameter by whoever has it, as plain data: transforms
 * of the combined gradient before the rule, in the order of one device, and moving averages behind
 * it. No arithmetic here. Invariant: it can be sent as JSON.
 */
export type GradientOperation =
  /** Every element is limited to [-limit, limit]. */
  | { readonly kind: 'clip'; readonly limit: number }
  /** rate * parameter is added; of a table to the rows that have a gradient. */
  | { readonly kind: 'decay'; readonly rate: number }
  /** Where the factor of clipping by the norm comes in: the norm is of what those before it leave. */
  | { readonly kind: 'scale' };

export interface AverageOperation {
  readonly name: string;
  /** average = decay * average + (1 - decay) * parameter, after every update. */
  readonly decay: number;
}

export interface KeyOperations {
  /** Of the combined gradient, in their order. Without 'scale' the factor comes first. */
  readonly gradient: readonly GradientOperation[];
  /** Each is the slot `average/<name>` of the parameter. */
  readonly averages: readonly AverageOperation[];
}

/** The slot in which whoever updates keeps an average. */
export function averageSlot(name: string): string {
  return `average/${name}`;
}
