/**
 * What a partition is measured against: the exact optimum, for a few sizes, and a bound below it that can be computed
 * for many. Mean and largest size alone are too low for the 4/3 (k + 1 equal sizes on k bins need twice their size), so
 * the bound also counts pairs and triples. Largest first is within (4k - 1) / (3k) of it always: take the last size p
 * in the fullest bin. If 3p is at most the bound, Graham's argument holds word for word; otherwise no bin can have
 * three sizes when p comes, so p is the (k + j)th largest and sits with one no larger than the (k - j + 1)th.
 */

export function optimalMakespan(sizes: readonly number[], bins: number): number {
  const descending = sizes.toSorted((a, b) => b - a);
  const loads = new Array<number>(bins).fill(0);
  let best = sum(sizes);
  const place = (i: number, highest: number): void => {
    if (highest >= best) return;
    if (i === descending.length) {
      best = highest;
      return;
    }
    const tried = new Set<number>();
    for (let bin = 0; bin < bins; bin++) {
      const load = loads[bin]!;
      if (tried.has(load)) continue;
      tried.add(load);
      const heavier = load + descending[i]!;
      loads[bin] = heavier;
      place(i + 1, Math.max(highest, heavier));
      loads[bin] = load;
    }
  };
  place(0, 0);
  return best;
}

export function makespanLowerBound(sizes: readonly number[], bins: number): number {
  const descending = sizes.toSorted((a, b) => b - a);
  /** The nth largest, from 1. */
  const nth = (n: number): number => descending[n - 1] ?? 0;
  let bound = Math.max(sum(sizes) / bins, nth(1), 3 * nth(2 * bins + 1));
  for (let j = 1; j <= bins; j++) {
    const least = nth(bins + j);
    bound = Math.max(bound, Math.min(nth(bins - j + 1) + least, 3 * least));
  }
  return bound;
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
