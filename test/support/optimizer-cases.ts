/** The oracle cases of optimizers, for whoever runs an update: kernels, servers. */
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { Tolerance, Written } from '../kernels/arena.ts';

export type Tensors = Readonly<Record<string, readonly Written[]>>;

export interface OptimizerCase {
  readonly name: string;
  readonly kind: string;
  readonly optimizer: string;
  readonly hyper: Readonly<Record<string, unknown>>;
  readonly params: readonly { readonly name: string; readonly data: readonly Written[] }[];
  readonly grads: readonly Tensors[];
  readonly params_after: readonly Tensors[];
  readonly lr_per_step?: readonly number[];
  readonly state_end: { readonly slots: Readonly<Record<string, Tensors>> };
  readonly tolerance: Tolerance;
  readonly state_tolerance: Readonly<Record<string, Tolerance>>;
}

export interface EasgdCase {
  readonly name: string;
  readonly kind: string;
  readonly alpha: number;
  readonly centre: readonly Written[];
  readonly workers: readonly (readonly Written[])[];
  readonly exchanges: readonly {
    readonly worker: number;
    readonly local_update: readonly Written[];
    readonly worker_after: readonly Written[];
    readonly centre_after: readonly Written[];
  }[];
  readonly tolerance: Tolerance;
}

/** `weight_decay` of the vectors is `weightDecay` of the specification. */
export function specOf({ optimizer, hyper }: OptimizerCase): OptimizerSpec {
  const renamed = Object.entries(hyper).map(([key, value]) => {
    const name = key === 'initial_accumulator_value' ? 'initialAccumulator' : key;
    return [name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()), value];
  });
  return { name: optimizer, ...Object.fromEntries(renamed) } as OptimizerSpec;
}
