/**
 * The vector that all peers of `bench allreduce` sum, and how its sum is checked. The programs in `peers/` do the same in
 * C and Python. Invariant: the values are small whole numbers that repeat after 8 elements, so that sums are exact or
 * nearly so, whatever order they are added in.
 */

const PERIOD = 8;
const TOLERANCE = 1e-5;

function valueOf(rank: number, index: number): number {
  return 1 + ((index + 3 * rank) & (PERIOD - 1));
}

export function fillVector(vector: Float32Array, rank: number): void {
  const head = Math.min(PERIOD, vector.length);
  for (let i = 0; i < head; i++) vector[i] = valueOf(rank, i);
  // Copies of what is there already, twice as many each time; a multiple of the period until the end.
  for (let filled = head; filled < vector.length; filled *= 2)
    vector.copyWithin(filled, 0, Math.min(filled, vector.length - filled));
}

/**
 * Whether it is the sum over `ranks` after so many sums in place: what all ranks hold alike is multiplied by their number
 * each time after the first. Of sums into a second buffer give 1.
 */
export function isSummed(vector: Float32Array, ranks: number, sumsInPlace: number): boolean {
  const factor = ranks ** (sumsInPlace - 1);
  const expected = Float32Array.from({ length: PERIOD }, (_, i) => {
    let sum = 0;
    for (let rank = 0; rank < ranks; rank++) sum += valueOf(rank, i);
    return sum * factor;
  });
  for (let i = 0; i < vector.length; i++) {
    const wanted = expected[i & (PERIOD - 1)]!;
    if (!(Math.abs(vector[i]! - wanted) <= TOLERANCE * wanted)) return false;
  }
  return true;
}

/** The most sums in place before float32 overflows, with room to spare. */
export function longestBurst(ranks: number): number {
  return ranks < 2 ? 1000 : Math.floor(30 / Math.log10(ranks));
}
