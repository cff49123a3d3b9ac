/**
 * How parameters start, as data that a plan, a message or a checkpoint can carry, and the one place
 * that turns it into numbers. Filling depends only on the seed and the place of an element in its
 * parameter, so that any part can be filled by anybody. Invariant: however a parameter is cut, and
 * whoever fills the parts, its bits are those of filling it at once.
 */
import { Random } from './random.ts';

/** Values that follow from a seed: whoever knows it can make them. */
export type SeededInitialiser =
  | { readonly kind: 'constant'; readonly value: number }
  | { readonly kind: 'uniform'; readonly limit: number }
  | { readonly kind: 'normal'; readonly deviation: number }
  | {
      readonly kind: 'zeroed';
      readonly base: SeededInitialiser;
      readonly start: number;
      readonly length: number;
    };

export type Initialiser =
  | SeededInitialiser
  | { readonly kind: 'data'; readonly data: Float32Array }
  | { readonly kind: 'zeroed'; readonly base: Initialiser; readonly start: number; readonly length: number };

export function isSeeded(initialiser: Initialiser): initialiser is SeededInitialiser {
  if (initialiser.kind === 'zeroed') return isSeeded(initialiser.base);
  return initialiser.kind !== 'data';
}

/**
 * Fills the target with the elements of a parameter from `first` on. `seed`: of this parameter
 * alone.
 */
export function fillElements(
  target: Float32Array,
  initialiser: Initialiser,
  seed: number,
  first: number,
): void {
  switch (initialiser.kind) {
    case 'constant':
      target.fill(initialiser.value);
      return;
    case 'data':
      target.set(initialiser.data.subarray(first, first + target.length));
      return;
    case 'zeroed': {
      fillElements(target, initialiser.base, seed, first);
      const from = Math.max(0, initialiser.start - first);
      const to = Math.max(from, initialiser.start + initialiser.length - first);
      target.fill(0, from, to);
      return;
    }
    case 'uniform': {
      const random = Random.after(seed, first);
      for (let i = 0; i < target.length; i++) target[i] = (2 * random.uniform() - 1) * initialiser.limit;
      return;
    }
    case 'normal': {
      const random = Random.after(seed, DRAWS_OF_NORMAL * first);
      for (let i = 0; i < target.length; i++) target[i] = random.normal() * initialiser.deviation;
    }
  }
}

/** Numbers that one call of `Random.normal` draws. */
const DRAWS_OF_NORMAL = 2;
