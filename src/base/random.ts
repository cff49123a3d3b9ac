/**
 * Seeded random numbers. Not cryptographic. The same seed gives the same sequence on every machine;
 * the whole state is one 32-bit integer, so that a checkpoint can hold it.
 */
/** Of splitmix32, between two states. */
const STEP = 0x9e3779b9;

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** As after so many calls of `uint32`, without making them. */
  static after(seed: number, draws: number): Random {
    // Beyond 2^32 draws the sequence is the same again.
    return new Random(seed + Math.imul(draws % 0x100000000, STEP));
  }

  get state(): number {
    return this.#state;
  }

  /** A uniform 32-bit unsigned integer (splitmix32). */
  uint32(): number {
    this.#state = (this.#state + STEP) >>> 0;
    return mix(this.#state);
  }

  /** Uniform in [0, 1) with 24 bits, exact in float32. */
  uniform(): number {
    return (this.uint32() >>> 8) / 0x1000000;
  }

  /** Uniform integer in [0, bound). */
  below(bound: number): number {
    return Math.floor((this.uint32() / 0x100000000) * bound);
  }

  /** Standard normal (Box-Muller, one of the pair). */
  normal(): number {
    const u = (this.uint32() + 1) / 0x100000001;
    const v = this.uint32() / 0x100000000;
    return Math.sqrt(-2 * Math.log(u)) * Math.cos(2 * Math.PI * v);
  }

  /** Fisher-Yates, in place. */
  shuffle(values: Uint32Array | number[]): void {
    for (let i = values.length - 1; i > 0; i--) {
      const j = this.below(i + 1);
      const held = values[i]!;
      values[i] = values[j]!;
      values[j] = held;
    }
  }
}

/** A good 32-bit mixer; also derives independent seeds: `deriveSeed(seed, 'shuffle', epoch)`. */
export function mix(value: number): number {
  let z = value >>> 0;
  z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
  z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
  return (z ^ (z >>> 15)) >>> 0;
}

export function deriveSeed(seed: number, ...parts: readonly (string | number)[]): number {
  let state = mix(seed);
  for (const part of parts) {
    if (typeof part === 'number') state = mix(state ^ mix(part));
    else for (let i = 0; i < part.length; i++) state = mix((state ^ part.charCodeAt(i)) + 0x9e3779b9);
  }
  return state;
}
