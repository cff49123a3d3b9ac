/**
 * Gradient clipping by the norm over all gradients together, as PyTorch does it: the scale is
 * `min(1, maxNorm / (norm + 1e-6))`. Clipping by value is `Kernels.clipByValue`. Invariant: norms are taken
 * in float64, so that partial norms of several workers can be combined (`combine` below) without loss.
 */
import { UsageError } from '../base/index.ts';
import type { Region } from '../memory/index.ts';
import type { Kernels } from './kernels.ts';

/** l2: root of the sum of squares; l1: sum of magnitudes; inf: largest magnitude. */
export type NormType = 'l1' | 'l2' | 'inf';

const EPS = 1e-6;

/** The part of a norm that adds up over regions and workers: sum (l1), sum of squares (l2) or maximum (inf). */
export function partialNorm(kernels: Kernels, regions: readonly Region<'float32'>[], type: NormType): number {
  let total = 0;
  for (const region of regions) {
    const part =
      type === 'l2'
        ? kernels.sumOfSquares(region)
        : type === 'l1'
          ? kernels.absSum(region)
          : kernels.absMax(region);
    total = type === 'inf' ? Math.max(total, part) : total + part;
  }
  return total;
}

/** The norm, from partial norms of disjoint parts. */
export function combineNorms(partials: readonly number[], type: NormType): number {
  if (type === 'inf') return Math.max(0, ...partials);
  const sum = partials.reduce((total, part) => total + part, 0);
  return type === 'l2' ? Math.sqrt(sum) : sum;
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
  type: NormType = 'l2',
): number {
  const norm = combineNorms([partialNorm(kernels, regions, type)], type);
  const factor = clipFactor(norm, maxNorm);
  if (factor !== 1) for (const region of regions) kernels.scale(region, factor);
  return norm;
}
