/**
 * A dataset: named columns of equal length, in memory, on SharedArrayBuffers, so that a thread reads it
 * without a copy (`new Dataset(other.columns)` in the thread shares the bytes).
 * It knows nothing of files, batches or order; those are the readers', the loaders' and `SampleOrder`'s.
 * Invariant: every column holds exactly `length` samples of `sampleShape` elements, and never changes.
 */
import { Random, UsageError } from '../base/index.ts';

export type ColumnType = 'float32' | 'int32' | 'uint8';
export type ColumnData = Float32Array | Int32Array | Uint8Array;
/** What a batch is delivered in: int32 columns as Int32Array, float32 and uint8 columns as Float32Array. */
export type BatchArray = Float32Array | Int32Array;

/** A uint8 value v is delivered as the float32 nearest to `v * multiply + add`. */
export interface ColumnScale {
  readonly multiply: number;
  readonly add: number;
}

export interface ColumnInput {
  readonly name: string;
  /** All samples, one after the other. Copied once if it is not on a SharedArrayBuffer. */
  readonly data: ColumnData;
  /** The shape of one sample; [] for one number each. Default []. */
  readonly sampleShape?: readonly number[];
  /** For uint8 columns only. Default: the value itself. */
  readonly scale?: ColumnScale;
}

export interface Column {
  readonly name: string;
  readonly dtype: ColumnType;
  readonly sampleShape: readonly number[];
  /** On a SharedArrayBuffer. */
  readonly data: ColumnData;
  readonly scale?: ColumnScale;
}

export class Dataset {
  readonly length: number;
  readonly columns: readonly Column[];
  readonly #byName: ReadonlyMap<string, Column>;
  readonly #tables = new Map<string, Float32Array>();
  /** Of each sample, its number in the dataset that this one was cut from; undefined: it was not, or from its start. */
  #numbers: Uint32Array | undefined;

  constructor(columns: readonly ColumnInput[]) {
    const built = columns.map(buildColumn);
    const first = built[0];
    if (first === undefined) throw invalid('A dataset needs at least one column; it got none.', {});
    this.length = sampleCount(first);
    for (const column of built) {
      const count = sampleCount(column);
      if (count !== this.length) {
        throw invalid(
          `Column "${column.name}" holds ${count} samples but column "${first.name}" holds ${this.length}; ` +
            'give every column one entry for each sample.',
          { column: column.name, expected: this.length, actual: count },
        );
      }
    }
    this.columns = Object.freeze(built);
    this.#byName = new Map(built.map((column) => [column.name, column]));
    if (this.#byName.size !== built.length) {
      const names = built.map((column) => column.name);
      throw invalid(`Two columns have the same name (${names.join(', ')}); rename one.`, { names });
    }
  }

  column(name: string): Column {
    const column = this.#byName.get(name);
    if (column === undefined) {
      const known = [...this.#byName.keys()].join(', ');
      throw new UsageError(
        'INVALID_ARGUMENT',
        `The dataset has no column "${name}"; it has ${known}. Ask for one of these.`,
        { column: name, known },
      );
    }
    return column;
  }

  /** The number of a sample in the dataset that this one was split or cut from, however often: how its owner knows it. */
  numberOf(sample: number): number {
    return this.#numbers?.[sample] ?? sample;
  }

  /** The same samples with these columns instead. */
  withColumns(columns: readonly ColumnInput[]): Dataset {
    const changed = new Dataset(columns);
    if (changed.length !== this.length) {
      throw invalid(
        `The new columns hold ${changed.length} samples but the dataset holds ${this.length}; give every column one entry for each sample.`,
        { expected: this.length, actual: changed.length },
      );
    }
    changed.#numbers = this.#numbers;
    return changed;
  }

  /** Gathers the given samples of a column, in that order, into the start of `target`. */
  read(samples: Uint32Array | readonly number[], column: string, target: BatchArray): void {
    const source = this.column(column);
    const size = sampleSize(source.sampleShape);
    checkTarget(source, samples.length * size, target);
    for (const sample of samples) checkSample(sample, this.length);
    const table = this.deliveryTable(column);
    let to = 0;
    for (const sample of samples) {
      const from = sample * size;
      if (table !== undefined) {
        const bytes = source.data;
        for (let i = 0; i < size; i++) target[to + i] = table[bytes[from + i]!]!;
      } else if (size === 1) {
        target[to] = source.data[from]!;
      } else {
        target.set(source.data.subarray(from, from + size), to);
      }
      to += size;
    }
  }

  /** For a uint8 column the float32 delivered for each of the 256 values; undefined for the others. */
  deliveryTable(name: string): Float32Array | undefined {
    const column = this.column(name);
    if (column.dtype !== 'uint8') return undefined;
    let table = this.#tables.get(name);
    if (table === undefined) {
      const { multiply, add } = column.scale ?? { multiply: 1, add: 0 };
      table = Float32Array.from({ length: 256 }, (_, value) => value * multiply + add);
      this.#tables.set(name, table);
    }
    return table;
  }

  /** A dataset of the given samples in that order (a copy). */
  subset(samples: Uint32Array | readonly number[]): Dataset {
    for (const sample of samples) checkSample(sample, this.length);
    const part = new Dataset(
      this.columns.map((column) => {
        const size = sampleSize(column.sampleShape);
        const data = allocate(column.dtype, samples.length * size);
        let to = 0;
        for (const sample of samples) {
          data.set(column.data.subarray(sample * size, (sample + 1) * size), to);
          to += size;
        }
        return { ...column, data };
      }),
    );
    part.#numbers = Uint32Array.from(samples, (sample) => this.numberOf(sample));
    return part;
  }

  /** The samples from `start` to `end` (exclusive), on the same memory. */
  slice(start: number, end: number): Dataset {
    if (
      !Number.isInteger(start) ||
      !Number.isInteger(end) ||
      start < 0 ||
      end <= start ||
      end > this.length
    ) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `Cannot take samples ${start} to ${end} of a dataset of ${this.length}; give 0 <= start < end <= ${this.length}.`,
        { start, end, length: this.length },
      );
    }
    const part = new Dataset(
      this.columns.map((column) => {
        const size = sampleSize(column.sampleShape);
        return { ...column, data: column.data.subarray(start * size, end * size) };
      }),
    );
    const isBeginning = start === 0 && this.#numbers === undefined;
    if (!isBeginning)
      part.#numbers = Uint32Array.from({ length: end - start }, (_, i) => this.numberOf(start + i));
    return part;
  }

  /** Two disjoint random parts; the first holds `fraction` of the samples (at least one, as does the second). */
  split(fraction: number, seed: number): [Dataset, Dataset] {
    if (!(fraction > 0 && fraction < 1) || this.length < 2) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `Cannot split ${this.length} samples by the fraction ${fraction}; give a fraction between 0 and 1 and at least 2 samples.`,
        { fraction, length: this.length },
      );
    }
    const order = Uint32Array.from({ length: this.length }, (_, i) => i);
    new Random(seed).shuffle(order);
    const first = Math.min(this.length - 1, Math.max(1, Math.round(this.length * fraction)));
    return [this.subset(order.subarray(0, first)), this.subset(order.subarray(first))];
  }
}

/** The number of elements in one sample. */
export function sampleSize(sampleShape: readonly number[]): number {
  return sampleShape.reduce((product, extent) => product * extent, 1);
}

/** A zeroed column array on a SharedArrayBuffer. */
export function allocate(dtype: ColumnType, elements: number): ColumnData {
  if (dtype === 'uint8') return new Uint8Array(new SharedArrayBuffer(elements));
  const buffer = new SharedArrayBuffer(elements * 4);
  return dtype === 'int32' ? new Int32Array(buffer) : new Float32Array(buffer);
}

/** Refuses a target of the wrong type or too short for `elements` of the column. */
export function checkTarget(column: Column, elements: number, target: BatchArray): void {
  const wanted = column.dtype === 'int32' ? 'Int32Array' : 'Float32Array';
  const fits = column.dtype === 'int32' ? target instanceof Int32Array : target instanceof Float32Array;
  if (!fits || target.length < elements) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `Column "${column.name}" needs a ${wanted} of at least ${elements} elements as target, ` +
        `not a ${target.constructor.name} of ${target.length}; pass a fitting one.`,
      { column: column.name, expected: elements, actual: target.length },
    );
  }
}

function checkSample(sample: number, length: number): void {
  if (Number.isInteger(sample) && sample >= 0 && sample < length) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `Sample ${sample} is not in the dataset of ${length} samples; use ids from 0 to ${length - 1}.`,
    { sample, length },
  );
}

function buildColumn(input: ColumnInput): Column {
  const { name, data, scale } = input;
  const sampleShape = Object.freeze([...(input.sampleShape ?? [])]);
  const size = sampleSize(sampleShape);
  if (![Float32Array, Int32Array, Uint8Array].some((type) => data instanceof type)) {
    // As a caller in JavaScript may write it.
    const given = (data as object | undefined)?.constructor.name ?? String(data);
    throw invalid(
      `Column "${name}" has data of type ${given}; give a Float32Array, an Int32Array or a Uint8Array, such as Float32Array.from(values).`,
      { column: name, actual: given },
    );
  }
  if (!sampleShape.every((extent) => Number.isInteger(extent) && extent > 0) || !Number.isSafeInteger(size)) {
    throw invalid(
      `Column "${name}" has the sample shape [${sampleShape.join(', ')}]; give positive whole numbers.`,
      { column: name, sampleShape },
    );
  }
  if (data.length === 0 || data.length % size !== 0) {
    throw invalid(
      `Column "${name}" has ${data.length} elements, not a positive multiple of the ${size} of one sample ` +
        `[${sampleShape.join(', ')}]; check the data and the shape.`,
      { column: name, actual: data.length, sampleElements: size },
    );
  }
  const dtype = data instanceof Uint8Array ? 'uint8' : data instanceof Int32Array ? 'int32' : 'float32';
  if (scale !== undefined && (dtype !== 'uint8' || !Number.isFinite(scale.multiply + scale.add))) {
    throw invalid(
      `Column "${name}" of ${dtype} has the scale ${JSON.stringify(scale)}; only uint8 columns take one, of finite numbers.`,
      { column: name, dtype, scale },
    );
  }
  const column = { name, dtype, sampleShape, data: onSharedMemory(data, dtype) } as const;
  return Object.freeze(scale === undefined ? column : { ...column, scale: Object.freeze({ ...scale }) });
}

function onSharedMemory(data: ColumnData, dtype: ColumnType): ColumnData {
  if (data.buffer instanceof SharedArrayBuffer) return data;
  const shared = allocate(dtype, data.length);
  shared.set(data);
  return shared;
}

function sampleCount(column: Column): number {
  return column.data.length / sampleSize(column.sampleShape);
}

function invalid(message: string, facts: Record<string, unknown>): UsageError {
  return new UsageError('INVALID_DATA', message, facts);
}
