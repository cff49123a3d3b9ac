/**
 * Gradient clipping by the norm over all gradients together, as PyTorch does it: the scale is
 * `min(1, maxNorm / (norm + 1e-6))`. Clipping by value is `Kernels.clipByValue`. Invariant: norms are taken
 * in float64, so that norms of disjoint parts can be combined without loss.
 *
 * The norm of order p is the p-th root of the sum of |x|^p, for any p from 1; of order Infinity the largest |x|.
 */
import { UsageError } from '../base/index.ts';
import type { Region } from '../memory/index.ts';
import type { Kernels } from './kernels.ts';

const EPS = 1e-6;

/** The norm of all regions together. */
export function globalNorm(kernels: Kernels, regions: readonly Region<'float32'>[], order: number): number {
  checkOrder(order);
  const sum = (part: (region: Region<'float32'>) => number) =>
    regions.reduce((total, region) => total + part(region), 0);
  if (order === 1) return sum((region) => kernels.absSum(region));
  if (order === 2) return Math.sqrt(sum((region) => kernels.sumOfSquares(region)));
  const largest = regions.reduce((max, region) => Math.max(max, kernels.absMax(region)), 0);
  if (order === Infinity || largest === 0 || !Number.isFinite(largest)) return largest;
  // Magnitudes are divided by the largest: powers of other orders would overflow float64, or vanish.
  return largest * sum((region) => kernels.sumOfPowers(region, 1 / largest, order)) ** (1 / order);
}

/** The norm, from those of disjoint parts: the norm of norms of one order is that of everything. */
export function combineNorms(norms: readonly number[], order: number): number {
  checkOrder(order);
  const largest = Math.max(0, ...norms);
  if (order === Infinity || largest === 0 || !Number.isFinite(largest)) return largest;
  return largest * norms.reduce((sum, norm) => sum + (norm / largest) ** order, 0) ** (1 / order);
}

function checkOrder(order: number): void {
  if (order >= 1) return;
  throw new UsageError('INVALID_ARGUMENT', `the order of a norm is ${order}; give 1 or more, or Infinity`, {
    order,
  });
}

/** The factor that brings a gradient of this norm to at most `maxNorm`. */
export function clipFactor(norm: number, maxNorm: number): number {
  if (!(maxNorm > 0)) {
    throw new UsageError('INVALID_ARGUMENT', `maxNorm is ${maxNorm}; give a positive number`, { maxNorm });
  }
  return Math.min(1, maxNorm / (norm + EPS));
}

/** Scales all regions by one factor so that their norm is at most `maxNorm`; returns the norm before. */
export function clipByGlobalNorm(
  kernels: Kernels,
  regions: readonly Region<'float32'>[],
  maxNorm: number,
  order = 2,
): number {
  const norm = globalNorm(kernels, regions, order);
  const factor = clipFactor(norm, maxNorm);
  if (factor !== 1) for (const region of regions) kernels.scale(region, factor);
  return norm;
}
