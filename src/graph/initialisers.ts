/**
 * How parameters start. An initialiser is data, so that a plan or checkpoint can print it, and filling depends
 * only on the seed and the parameter's name: not on the order in which parameters were created.
 */
import { deriveSeed, Random, UsageError } from '../base/index.ts';

export type Initialiser =
  | { readonly kind: 'constant'; readonly value: number }
  | { readonly kind: 'uniform'; readonly limit: number }
  | { readonly kind: 'normal'; readonly deviation: number }
  | { readonly kind: 'data'; readonly data: Float32Array }
  | { readonly kind: 'zeroed'; readonly base: Initialiser; readonly start: number; readonly length: number };

export const zeros: Initialiser = { kind: 'constant', value: 0 };
export const ones: Initialiser = { kind: 'constant', value: 1 };

export function uniform(limit: number): Initialiser {
  return { kind: 'uniform', limit };
}

export function normal(deviation: number): Initialiser {
  return { kind: 'normal', deviation };
}

/** Exactly these values. */
export function values(data: Float32Array | readonly number[]): Initialiser {
  return { kind: 'data', data: Float32Array.from(data) };
}

/** As `base`, except that `length` elements from `start` are 0: the padding row of an embedding. */
export function zeroed(base: Initialiser, start: number, length: number): Initialiser {
  return { kind: 'zeroed', base, start, length };
}

/** He et al. 2015, for layers followed by relu. */
export function heUniform(fanIn: number): Initialiser {
  return uniform(Math.sqrt(6 / Math.max(1, fanIn)));
}

/** Glorot and Bengio 2010. */
export function glorotUniform(fanIn: number, fanOut: number): Initialiser {
  return uniform(Math.sqrt(6 / Math.max(1, fanIn + fanOut)));
}

/** The usual default of dense and convolution layers: uniform within 1 / sqrt(fan in). */
export function fanInUniform(fanIn: number): Initialiser {
  return uniform(1 / Math.sqrt(Math.max(1, fanIn)));
}

export function fillInitial(
  target: Float32Array,
  initialiser: Initialiser,
  name: string,
  seed: number,
): void {
  if (initialiser.kind === 'constant') {
    target.fill(initialiser.value);
    return;
  }
  if (initialiser.kind === 'zeroed') {
    fillInitial(target, initialiser.base, name, seed);
    target.fill(0, initialiser.start, initialiser.start + initialiser.length);
    return;
  }
  if (initialiser.kind === 'data') {
    if (initialiser.data.length !== target.length) {
      throw new UsageError(
        'SHAPE_MISMATCH',
        `Parameter ${name} holds ${target.length} values, its initial data ${initialiser.data.length}.`,
      );
    }
    target.set(initialiser.data);
    return;
  }
  const random = new Random(deriveSeed(seed, 'parameter', name));
  if (initialiser.kind === 'uniform') {
    for (let i = 0; i < target.length; i++) target[i] = (2 * random.uniform() - 1) * initialiser.limit;
  } else {
    for (let i = 0; i < target.length; i++) target[i] = random.normal() * initialiser.deviation;
  }
}
