/**
 * The exchange that all sides of `bench exchange` do, with its known result: gradients of small whole numbers are summed
 * over the ranks, and SGD with momentum moves weights that begin at zero. The peer in Python does the same. Invariant: the
 * sums are exact in any order, and the rate is a power of two, so that the weights are equal bit by bit on every side,
 * whether it multiplies and adds in one rounding or in two.
 */
export const LEARNING_RATE = 2 ** -10;
export const MOMENTUM = 0.9;
/** A turn ends with so many exchanges from fresh weights, whose result is checked. */
export const CHECKED_EXCHANGES = 3;

/** Gradients and weights repeat after so many elements. It divides no length of a chunk: what is misplaced is seen. */
const PERIOD = 61;
/** Above all values of the pattern: a rank that is missing or counted twice is seen. */
const RANK_STEP = 64;

/** The gradient of a rank; `first` is where the vector begins in the model, all tensors counted as one. */
export function fillGradient(gradient: Float32Array, rank: number, first = 0): void {
  const head = Math.min(PERIOD, gradient.length);
  for (let i = 0; i < head; i++) gradient[i] = 1 + ((first + i) % PERIOD) + RANK_STEP * rank;
  // Copies of what is there already, twice as many each time; a multiple of the period until the end.
  for (let filled = head; filled < gradient.length; filled *= 2)
    gradient.copyWithin(filled, 0, Math.min(filled, gradient.length - filled));
}

/** The first weights after so many exchanges among so many ranks, or among those listed; the others repeat them. */
export function expectedWeights(ranks: number | readonly number[], exchanges: number): Float32Array {
  const sum = new Float32Array(PERIOD);
  const own = new Float32Array(PERIOD);
  for (const rank of typeof ranks === 'number' ? Array(ranks).keys() : ranks) {
    fillGradient(own, rank);
    for (let i = 0; i < PERIOD; i++) sum[i] = sum[i]! + own[i]!;
  }
  const [buffer, weights] = [new Float32Array(PERIOD), new Float32Array(PERIOD)];
  const keep = Math.fround(MOMENTUM);
  for (let exchange = 0; exchange < exchanges; exchange++) {
    for (let i = 0; i < PERIOD; i++) {
      // The product is rounded before the sum, as in the kernel.
      buffer[i] = Math.fround(keep * buffer[i]!) + sum[i]!;
      weights[i] = weights[i]! - LEARNING_RATE * buffer[i]!;
    }
  }
  return weights;
}

/** Whether the weights are those, bit by bit; `first` as in `fillGradient`. */
export function hasWeights(weights: Float32Array, expected: Float32Array, first = 0): boolean {
  let at = first % PERIOD;
  for (let i = 0; i < weights.length; i++) {
    if (weights[i] !== expected[at]) return false;
    at = at + 1 === PERIOD ? 0 : at + 1;
  }
  return true;
}

/**
 * The sum of the bits of the elements, modulo 2^32: that of a model is the sum of those of its tensors, in any order. Of
 * several tensors pass the last sum on.
 */
export function checksum(weights: Float32Array, before = 0): number {
  const bits = new Int32Array(weights.buffer, weights.byteOffset, weights.length);
  let sum = before | 0;
  for (let i = 0; i < bits.length; i++) sum = (sum + bits[i]!) | 0;
  return sum >>> 0;
}

/** As a rank reports it, in place of the algorithm that it chose. */
export function formatChecksum(sum: number): string {
  return sum.toString(16).padStart(8, '0');
}
