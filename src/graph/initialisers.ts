/**
 * How parameters start, in the words of people who build models. An initialiser is data, and
 * filling depends only on the seed and the parameter's name: not on the order in which parameters
 * were created.
 */
import { deriveSeed, fillElements, UsageError, type Initialiser } from '../base/index.ts';

export type { Initialiser } from '../base/index.ts';

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
  checkLength(target.length, initialiser, name);
  fillElements(target, initialiser, parameterSeed(seed, name), 0);
}

/** Of one parameter, by that of the model. */
export function parameterSeed(seed: number, name: string): number {
  return deriveSeed(seed, 'parameter', name);
}

function checkLength(length: number, initialiser: Initialiser, name: string): void {
  if (initialiser.kind === 'zeroed') return checkLength(length, initialiser.base, name);
  if (initialiser.kind !== 'data' || initialiser.data.length === length) return;
  throw new UsageError(
    'SHAPE_MISMATCH',
    `Parameter ${name} holds ${length} values, its initial data ${initialiser.data.length}.`,
  );
}
