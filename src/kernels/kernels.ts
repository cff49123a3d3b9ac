/**
 * Typed wrappers of the SIMD kernels on regions of one space: reductions, norms, scaling, dropout masks.
 * Update rules, sparse rows and codecs have their own files. Invariants: sums are added in the order of the
 * sources, so that a result does not depend on how a vector is cut into chunks; every argument is checked
 * before a kernel runs.
 */
import { readFileSync } from 'node:fs';
import { UsageError } from '../base/index.ts';
import { bytesPerElement, webAssembly } from '../memory/index.ts';
import type { Region, SharedSpace, WasmModule } from '../memory/index.ts';
import { checkCount, checkNoPartialOverlap, checkRegion } from './argument-checks.ts';
import type { Eight, KernelExports } from './exports.ts';

/** Types that can be reduced. */
export type Reducible = 'float32' | 'float64' | 'int32';

/** Operations of the pairwise kernels, numbered as in `assembly/reduce.ts`. */
const OPERATIONS = { sum: 0, min: 1, max: 2, product: 3 } as const;
export type ReduceOperation = keyof typeof OPERATIONS;

const COMBINE = { float32: 'combineFloat32', float64: 'combineFloat64', int32: 'combineInt32' } as const;

/** Sources of one pass of the float32 sum. */
const SOURCES_A_PASS = 8;
/** Elements for which all passes run before the next ones, so that the target stays in the first caches. */
const BLOCK_ELEMENTS = 4096;

export interface DropoutOptions {
  /** Chance that an element is dropped, from 0 to below 1. */
  readonly p: number;
  /** Differs by step and by layer; see `deriveSeed`. */
  readonly seed: number;
  /** Identity of each sample, whatever worker it is on. */
  readonly sampleIds: Region<'int32'>;
}

let compiled: WasmModule | undefined;

/** The module is the same for every space and thread of a process, so it is compiled once a thread. */
function compile(): WasmModule {
  if (compiled !== undefined) return compiled;
  const url = new URL('../../build/kernels.wasm', import.meta.url);
  let bytes: Uint8Array;
  try {
    bytes = readFileSync(url);
  } catch (cause) {
    throw new UsageError(
      'MISSING_COMPONENT',
      `the compiled kernels are not at ${url.pathname}; run 'npm run build:kernels'`,
      { path: url.pathname },
      cause,
    );
  }
  compiled = new webAssembly.Module(bytes);
  return compiled;
}

export class Kernels {
  readonly space: SharedSpace;
  /** For the wrappers of this folder only: nothing is checked. */
  readonly exports: KernelExports;

  private constructor(space: SharedSpace, exports: KernelExports) {
    this.space = space;
    this.exports = exports;
  }

  static create(space: SharedSpace): Kernels {
    const instance = new webAssembly.Instance(compile(), { env: { memory: space.memory } });
    return new Kernels(space, instance.exports as unknown as KernelExports);
  }

  /** target = the sum of the sources. The target may be one of the first eight (else two) sources. */
  sum<T extends Reducible>(target: Region<T>, sources: readonly Region<T>[]): void {
    this.#reduce('sum', target, sources);
  }

  /** target = the sum of the sources divided by their number. */
  mean<T extends 'float32' | 'float64'>(target: Region<T>, sources: readonly Region<T>[]): void {
    this.#checkOperands('mean', target, sources, target.dtype === 'float32' ? SOURCES_A_PASS : 2);
    if (target.dtype === 'float32') {
      this.#sumFloat32(target, sources, sources.length);
    } else {
      this.#combine('sum', target, sources);
      this.exports.divideFloat64(target.byteOffset, sources.length, target.length);
    }
  }

  /**
   * Every one of the vectors = their sum, added in their order; divided by `divisor` if one is given. One pass over
   * memory for up to eight float32 vectors. `cached`: whether they are likely to be in a cache; see the kernel.
   */
  sumToAll<T extends Reducible>(vectors: readonly Region<T>[], divisor?: number, cached = true): void {
    const first = vectors[0]!;
    this.#checkOperands('sumToAll', first, vectors, vectors.length);
    if (first.dtype === 'float32' && vectors.length > 1 && vectors.length <= SOURCES_A_PASS) {
      const p: Eight = [0, 0, 0, 0, 0, 0, 0, 0];
      for (let i = 0; i < vectors.length; i++) p[i] = vectors[i]!.byteOffset;
      const n = first.length;
      // Not `...p`: spreading into WebAssembly takes as long as the sum of a short vector.
      // prettier-ignore
      this.exports.sumToAllFloat32(
        vectors.length, !cached, divisor ?? 0, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], n,
      );
      return;
    }
    this.#reduce('sum', first, vectors);
    if (divisor !== undefined) this.divide(first as Region<'float32' | 'float64'>, divisor);
    for (let i = 1; i < vectors.length; i++) this.copy(vectors[i]!, first);
  }

  /** target /= divisor */
  divide(target: Region<'float32' | 'float64'>, divisor: number): void {
    if (target.dtype === 'float64') {
      checkRegion(this.space, 'target of divide', target, 'float64');
      this.exports.divideFloat64(target.byteOffset, divisor, target.length);
    } else {
      checkRegion(this.space, 'target of divide', target, 'float32');
      const at = target.byteOffset;
      this.exports.meanFloat32(1, divisor, at, at, at, at, at, at, at, at, at, target.length);
    }
  }

  min<T extends Reducible>(target: Region<T>, sources: readonly Region<T>[]): void {
    this.#reduce('min', target, sources);
  }

  max<T extends Reducible>(target: Region<T>, sources: readonly Region<T>[]): void {
    this.#reduce('max', target, sources);
  }

  product<T extends Reducible>(target: Region<T>, sources: readonly Region<T>[]): void {
    this.#reduce('product', target, sources);
  }

  /** target *= factor */
  scale(target: Region<'float32' | 'float64'>, factor: number): void {
    if (target.dtype === 'float64') {
      checkRegion(this.space, 'target of scale', target, 'float64');
      this.exports.scaleFloat64(target.byteOffset, factor, target.length);
    } else {
      checkRegion(this.space, 'target of scale', target, 'float32');
      this.exports.scaleFloat32(target.byteOffset, factor, target.length);
    }
  }

  /** target += a * x */
  axpy(target: Region<'float32'>, a: number, x: Region<'float32'>): void {
    checkRegion(this.space, 'target of axpy', target, 'float32');
    checkRegion(this.space, 'x of axpy', x, 'float32', target.length);
    checkNoPartialOverlap('x of axpy', target, x);
    this.exports.axpyFloat32(target.byteOffset, a, x.byteOffset, target.length);
  }

  /** target = keep * target + share * x, as one step of each element: other processes may do the same at the same time. */
  blend(target: Region<'float32'>, keep: number, x: Region<'float32'>, share: number): void {
    checkRegion(this.space, 'target of blend', target, 'float32');
    checkRegion(this.space, 'x of blend', x, 'float32', target.length);
    checkNoPartialOverlap('x of blend', target, x);
    this.exports.blendFloat32(target.byteOffset, keep, x.byteOffset, share, target.length);
  }

  fill(target: Region<'float32'>, value: number): void {
    checkRegion(this.space, 'target of fill', target, 'float32');
    this.exports.fillFloat32(target.byteOffset, value, target.length);
  }

  /** target = source, of any type; the regions may overlap. */
  copy<T extends Region>(target: T, source: T): void {
    checkRegion(this.space, 'target of copy', target, source.dtype);
    checkRegion(this.space, 'source of copy', source, target.dtype, target.length);
    const bytes = target.length * bytesPerElement(target.dtype);
    this.exports.copyBytes(target.byteOffset, source.byteOffset, bytes);
  }

  /** The sum of x[i] * y[i], in float64. */
  dot(x: Region<'float32'>, y: Region<'float32'>): number {
    checkRegion(this.space, 'x of dot', x, 'float32');
    checkRegion(this.space, 'y of dot', y, 'float32', x.length);
    return this.exports.dotFloat32(x.byteOffset, y.byteOffset, x.length);
  }

  /** In float64, so that squares neither overflow nor vanish. */
  sumOfSquares(x: Region<'float32'>): number {
    checkRegion(this.space, 'x of sumOfSquares', x, 'float32');
    return this.exports.sumOfSquaresFloat32(x.byteOffset, x.length);
  }

  l2Norm(x: Region<'float32'>): number {
    return Math.sqrt(this.sumOfSquares(x));
  }

  absSum(x: Region<'float32'>): number {
    checkRegion(this.space, 'x of absSum', x, 'float32');
    return this.exports.absSumFloat32(x.byteOffset, x.length);
  }

  /** The sum of (|x[i]| * factor) ** order, in float64. A factor that brings all to at most 1 avoids overflow. */
  sumOfPowers(x: Region<'float32'>, factor: number, order: number): number {
    checkRegion(this.space, 'x of sumOfPowers', x, 'float32');
    return this.exports.sumOfPowersFloat32(x.byteOffset, factor, order, x.length);
  }

  /** 0 for an empty region, NaN if any element is NaN. */
  absMax(x: Region<'float32'>): number {
    checkRegion(this.space, 'x of absMax', x, 'float32');
    return this.exports.absMaxFloat32(x.byteOffset, x.length);
  }

  /** Clamps to [-limit, limit]; NaN stays NaN. */
  clipByValue(target: Region<'float32'>, limit: number): void {
    checkRegion(this.space, 'target of clipByValue', target, 'float32');
    if (!(limit >= 0)) {
      throw new UsageError('INVALID_ARGUMENT', `limit of clipByValue is ${limit}; give 0 or more`, { limit });
    }
    this.exports.clipFloat32(target.byteOffset, limit, target.length);
  }

  /** Elastic averaging: d = worker - centre; centre += alpha d; worker -= alpha d, both from the old values. */
  elasticAverage(worker: Region<'float32'>, centre: Region<'float32'>, alpha: number): void {
    checkRegion(this.space, 'worker of elasticAverage', worker, 'float32');
    checkRegion(this.space, 'centre of elasticAverage', centre, 'float32', worker.length);
    checkNoPartialOverlap('worker of elasticAverage', centre, worker);
    this.exports.elastic(worker.byteOffset, centre.byteOffset, alpha, worker.length);
  }

  /** Fills target [samples, perSample] with 0 or 1 / (1 - p), by (seed, sample id, element) alone. */
  dropoutMask(target: Region<'float32'>, options: DropoutOptions): void {
    const { p, seed, sampleIds } = options;
    checkRegion(this.space, 'target of dropoutMask', target, 'float32');
    checkRegion(this.space, 'sampleIds of dropoutMask', sampleIds, 'int32');
    const samples = sampleIds.length;
    if (!(p >= 0 && p < 1)) {
      throw new UsageError('INVALID_ARGUMENT', `p of dropoutMask is ${p}; give 0 to below 1`, { p });
    }
    if (samples === 0 ? target.length !== 0 : target.length % samples !== 0) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `target of dropoutMask has ${target.length} elements, which ${samples} samples do not divide; give [samples, elements]`,
        { elements: target.length, samples },
      );
    }
    if (samples === 0) return;
    const threshold = Math.min(Math.round(p * 2 ** 32), 2 ** 32 - 1);
    this.exports.dropoutMask(
      target.byteOffset,
      samples,
      target.length / samples,
      sampleIds.byteOffset,
      seed,
      threshold,
      1 / (1 - p),
    );
  }

  #reduce<T extends Reducible>(op: ReduceOperation, target: Region<T>, sources: readonly Region<T>[]): void {
    const wide = op === 'sum' && target.dtype === 'float32';
    this.#checkOperands(op, target, sources, wide ? SOURCES_A_PASS : 2);
    if (wide) this.#sumFloat32(target, sources, undefined);
    else this.#combine(op, target, sources);
  }

  #sumFloat32(target: Region, sources: readonly Region[], divisor: number | undefined): void {
    const { exports } = this;
    const block = sources.length <= SOURCES_A_PASS ? target.length : BLOCK_ELEMENTS;
    for (let start = 0; start < target.length; start += block) {
      const n = Math.min(block, target.length - start);
      const to = target.byteOffset + 4 * start;
      let next = 0;
      while (next < sources.length) {
        const p: Eight = [0, 0, 0, 0, 0, 0, 0, 0];
        let k = 0;
        if (next > 0) p[k++] = to;
        while (k < SOURCES_A_PASS && next < sources.length) p[k++] = sources[next++]!.byteOffset + 4 * start;
        const isSum = divisor === undefined || next < sources.length;
        if (isSum) exports.sumFloat32(k, to, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], n);
        else exports.meanFloat32(k, divisor, to, p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], n);
      }
    }
  }

  #combine(op: ReduceOperation, target: Region<Reducible>, sources: readonly Region[]): void {
    if (sources.length === 1) {
      this.exports.copyBytes(target.byteOffset, sources[0]!.byteOffset, target.byteLength);
      return;
    }
    const kernel = COMBINE[target.dtype];
    const size = bytesPerElement(target.dtype);
    const block = sources.length === 2 ? target.length : BLOCK_ELEMENTS;
    for (let start = 0; start < target.length; start += block) {
      const n = Math.min(block, target.length - start);
      const to = target.byteOffset + size * start;
      let from = sources[0]!.byteOffset + size * start;
      for (let i = 1; i < sources.length; i++) {
        this.exports[kernel](OPERATIONS[op], to, from, sources[i]!.byteOffset + size * start, n);
        from = to;
      }
    }
  }

  #checkOperands(op: string, target: Region, sources: readonly Region[], inPlace: number): void {
    if (COMBINE[target.dtype as Reducible] === undefined) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `target of ${op} is of ${target.dtype}; reduce float32, float64 or int32`,
        { op, dtype: target.dtype },
      );
    }
    if (target.space !== this.space) checkRegion(this.space, `target of ${op}`, target, target.dtype);
    if (sources.length === 0) checkCount(`number of sources of ${op}`, sources.length, 1);
    for (let i = 0; i < sources.length; i++) this.#checkOperand(op, target, sources[i]!, i, inPlace);
  }

  #checkOperand(op: string, target: Region, source: Region, i: number, inPlace: number): void {
    const apart = Math.abs(source.byteOffset - target.byteOffset) >= target.byteLength;
    const alike = source.dtype === target.dtype && source.length === target.length;
    // The common case builds no messages: a small reduction takes less time than their strings.
    const isTarget = i < inPlace && source.byteOffset === target.byteOffset;
    if ((apart || isTarget) && alike && source.space === target.space) return;
    checkRegion(this.space, `source ${i} of ${op}`, source, target.dtype, target.length);
    checkNoPartialOverlap(`source ${i} of ${op}`, target, source);
    if (i >= inPlace && source.byteOffset === target.byteOffset && target.length > 0) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `source ${i} of ${op} is the target, which is overwritten before it is read; put it among the first ${inPlace} sources`,
        { op, source: i },
      );
    }
  }
}
