/**
 * What reducing means for an operation and a type: combining vectors, the neutral element, and the weights and the
 * division of an average. Invariant: `combine` adds in the order of its sources, so that a result depends on the
 * algorithm and the number of ranks, never on who came first.
 */
import { UsageError } from '../base/index.ts';
import type { Kernels, Reducible } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';

export const REDUCE_OPERATIONS = ['sum', 'mean', 'min', 'max', 'product'] as const;
export type CollectiveOperation = (typeof REDUCE_OPERATIONS)[number];

const REDUCIBLE: readonly string[] = ['float32', 'float64', 'int32'];
const SOURCES_WITH_TARGET = { float32: 8, float64: 2, int32: 2 } as const;

const BLOCK_ELEMENTS = 8192;
/** About what the last cache of a server's processor holds; beyond it vectors come from main memory. */
const CACHE_BYTES = 16 * 2 ** 20;

const NEUTRAL: Readonly<Record<CollectiveOperation, { readonly float: number; readonly int: number }>> = {
  sum: { float: 0, int: 0 },
  mean: { float: 0, int: 0 },
  min: { float: Infinity, int: 2 ** 31 - 1 },
  max: { float: -Infinity, int: -(2 ** 31) },
  product: { float: 1, int: 1 },
};

export class Reduction {
  readonly op: CollectiveOperation;
  readonly dtype: Reducible;
  readonly kernels: Kernels;

  constructor(kernels: Kernels, op: CollectiveOperation, dtype: string) {
    if (!REDUCE_OPERATIONS.includes(op)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `op is '${String(op)}'; give one of ${REDUCE_OPERATIONS.join(', ')}`,
        { op },
      );
    }
    if (!REDUCIBLE.includes(dtype)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `a region of ${dtype} cannot be reduced; give ${REDUCIBLE.join(', ')}`,
        { dtype },
      );
    }
    if (op === 'mean' && dtype === 'int32') {
      throw new UsageError(
        'INVALID_ARGUMENT',
        'the mean of int32 is no whole number; reduce by sum, or give float32',
        { op, dtype },
      );
    }
    this.kernels = kernels;
    this.op = op;
    this.dtype = dtype as Reducible;
  }

  get neutral(): number {
    return NEUTRAL[this.op][this.dtype === 'int32' ? 'int' : 'float'];
  }

  /** target = the sources combined; an average is divided later. The target may be among the first two sources. */
  combine(target: Region, sources: readonly Region[]): void {
    const to = target as Region<Reducible>;
    const from = sources as readonly Region<Reducible>[];
    const { kernels } = this;
    switch (this.op) {
      case 'sum':
      case 'mean':
        return kernels.sum(to, from);
      case 'min':
        return kernels.min(to, from);
      case 'max':
        return kernels.max(to, from);
      case 'product':
        return kernels.product(to, from);
    }
  }

  /**
   * Every one of the vectors = all of them combined, divided by the weight for an average. They may be parts of longer
   * ones that other ranks work on: `totalBytes` are those of all.
   */
  combineToAll(vectors: readonly Region[], weight: number, totalBytes: number): void {
    if (this.op === 'sum' || this.op === 'mean') {
      const divisor = this.op === 'mean' && weight > 0 ? weight : undefined;
      this.kernels.sumToAll(vectors as readonly Region<Reducible>[], divisor, totalBytes <= CACHE_BYTES);
      return;
    }
    // Block by block, so that the result is still in the cache when it is copied.
    const { length } = vectors[0]!;
    for (let start = 0; start < length; start += BLOCK_ELEMENTS) {
      const block = Math.min(BLOCK_ELEMENTS, length - start);
      const pieces = vectors.map((vector) => vector.slice(start, block));
      this.combine(pieces[0]!, pieces);
      for (let i = 1; i < pieces.length; i++) this.kernels.copy(pieces[i]!, pieces[0]!);
    }
  }

  /** How many of the first sources of `combine` may be its target. */
  get sourcesWithTarget(): number {
    return this.op === 'sum' || this.op === 'mean' ? SOURCES_WITH_TARGET[this.dtype] : 2;
  }

  /** Ends an average over contributions of this weight in all. */
  finish(target: Region, weight: number): void {
    if (this.op !== 'mean' || weight === 1 || weight <= 0) return;
    this.kernels.divide(target as Region<'float32' | 'float64'>, weight);
  }

  /** Whether `weigh` changes a contribution of this weight. */
  changes(weight: number): boolean {
    return this.op === 'mean' && weight !== 1;
  }

  /** A contribution that counts more or less than one; of weight 0 it is zeros, whatever it held. */
  weigh(target: Region, weight: number): void {
    if (!this.changes(weight)) return;
    const averaged = target as Region<'float32' | 'float64'>;
    // Nothing times infinity would be no number.
    if (weight === 0) averaged.view.fill(0);
    else this.kernels.scale(averaged, weight);
  }
}

export function checkWeight(weight: number): void {
  if (weight >= 0 && Number.isFinite(weight)) return;
  throw new UsageError('INVALID_ARGUMENT', `weight is ${weight}; give a finite number of 0 or more`, {
    weight,
  });
}
