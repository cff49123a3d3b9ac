/**
 * The order in which samples are visited: in each epoch every sample once, shuffled by a seed derived from the
 * run's seed and the epoch alone. Holds no data.
 * Invariant: `state` is the whole memory; an order restored from it gives the same batches from there on,
 * on every machine and whatever was drawn before.
 */
import { Random, UsageError, deriveSeed } from '../base/index.ts';

export interface SampleOrderState {
  readonly seed: number;
  /** The epoch of the next sample, from 0; also the number of finished epochs. */
  readonly epoch: number;
  /** How many samples of this epoch are behind. */
  readonly position: number;
  /**
   * From where to where later samples of this epoch are behind as well, in order. Default: none.
   */
  readonly ahead?: readonly (readonly [start: number, end: number])[] | undefined;
}

export interface SampleOrderOptions {
  /** Default 0. */
  readonly seed?: number;
  /** Whether each epoch is shuffled; else the samples come in their own order. Default true. */
  readonly shuffle?: boolean;
  /** Whether the samples that do not fill the last batch of an epoch are left out. Default false. */
  readonly dropLast?: boolean;
}

export interface Draw {
  /** The ids; the caller's own copy. */
  readonly samples: Uint32Array;
  /** The epoch they belong to. */
  readonly epoch: number;
  /** Whether the next batch of this size belongs to the next epoch. */
  readonly last: boolean;
}

/** What a loader needs of an order. */
export interface BatchOrder {
  readonly length: number;
  readonly state: SampleOrderState;
  draw(size: number): Draw;
}

export class SampleOrder implements BatchOrder {
  readonly length: number;
  readonly seed: number;
  readonly shuffle: boolean;
  readonly dropLast: boolean;
  readonly #order: Uint32Array;
  #epoch = 0;
  #position = 0;
  /** See `SampleOrderState`. */
  #ahead: NonNullable<SampleOrderState['ahead']> = [];
  /** The epoch that `#order` was shuffled for. */
  #shuffled = -1;

  constructor(length: number, options: SampleOrderOptions = {}) {
    const { seed = 0, shuffle = true, dropLast = false } = options;
    if (!Number.isInteger(length) || length < 1 || length > 0xffffffff) {
      throw bad(`An order needs from 1 to 2^32 - 1 samples, not ${length}; give the length of the dataset.`, {
        length,
      });
    }
    if (!Number.isSafeInteger(seed)) throw bad(`The seed is ${seed}; give a whole number.`, { seed });
    this.length = length;
    this.seed = seed;
    this.shuffle = shuffle;
    this.dropLast = dropLast;
    this.#order = new Uint32Array(length);
  }

  /** Continues from a stored state, which is checked; its seed replaces that of the options. */
  static restore(
    length: number,
    state: unknown,
    options: Omit<SampleOrderOptions, 'seed'> = {},
  ): SampleOrder {
    const { seed, epoch, position, ahead = [] } = (state ?? {}) as Record<string, unknown>;
    if (![seed, epoch, position].every(Number.isSafeInteger)) {
      throw bad(
        `The state of the sample order is ${JSON.stringify(state)}; expected whole numbers seed, epoch and position. Use one as it was stored.`,
        { state },
      );
    }
    const order = new SampleOrder(length, { ...options, seed: seed as number });
    if ((epoch as number) < 0 || (position as number) < 0 || (position as number) >= length) {
      throw bad(
        `The state of the sample order has epoch ${String(epoch)} and position ${String(position)}, but there are ${length} samples. ` +
          'Resume with the dataset the run was started with.',
        { epoch, position, length },
      );
    }
    if (!isAhead(ahead, position as number, length)) {
      throw bad(
        `The state of the sample order has samples ahead in ${JSON.stringify(ahead)}; expected ranges behind ${String(position)}, in order. Use one as it was stored.`,
        { ahead, position },
      );
    }
    order.#epoch = epoch as number;
    order.#position = position as number;
    order.#ahead = ahead;
    return order;
  }

  get state(): SampleOrderState {
    const place = { seed: this.seed, epoch: this.#epoch, position: this.#position };
    return this.#ahead.length === 0 ? place : { ...place, ahead: this.#ahead };
  }

  /** Goes on from a place of an epoch, whatever was drawn before. */
  seek(epoch: number, position: number): this {
    if (!(Number.isSafeInteger(epoch) && epoch >= 0 && position >= 0 && position < this.length)) {
      throw bad(
        `There is no sample ${position} of ${this.length} in epoch ${epoch}; seek one that there is.`,
        {
          ...{ epoch, position, length: this.length },
        },
      );
    }
    this.#epoch = epoch;
    this.#position = position;
    this.#ahead = [];
    return this;
  }

  /** The next sample ids, fewer than `size` at the end of an epoch unless `dropLast`. */
  nextBatch(size: number): Uint32Array {
    return this.draw(size).samples;
  }

  draw(size: number): Draw {
    if (!Number.isInteger(size) || size < 1 || (this.dropLast && size > this.length)) {
      throw bad(
        `A batch of ${size} cannot be drawn from ${this.length} samples${this.dropLast ? ' with dropLast' : ''}; ` +
          `give a whole number from 1${this.dropLast ? ` to ${this.length}` : ''}.`,
        { size, length: this.length },
      );
    }
    // Only after a restore with another batch size can a rest be left that is too short.
    if (this.dropLast && this.length - this.#position < size) this.#nextEpoch();
    this.#prepare();
    const epoch = this.#epoch;
    const samples = this.#ahead.length === 0 ? this.#take(size) : this.#takeAround(size);
    const last = this.length - this.#position < (this.dropLast ? size : 1);
    if (last) this.#nextEpoch();
    return { samples, epoch, last };
  }

  #take(size: number): Uint32Array {
    const end = Math.min(this.length, this.#position + size);
    const samples = this.#order.slice(this.#position, end);
    this.#position = end;
    return samples;
  }

  /** Passes over what is behind already. */
  #takeAround(size: number): Uint32Array {
    const parts: number[] = [];
    for (;;) {
      // One may begin where another ends.
      while (this.#ahead[0]?.[0] === this.#position) {
        [, this.#position] = this.#ahead[0];
        this.#ahead = this.#ahead.slice(1);
      }
      const end = this.#ahead[0]?.[0] ?? this.length;
      const most = Math.min(size - parts.length, end - this.#position);
      if (most === 0) break;
      for (const sample of this.#take(most)) parts.push(sample);
    }
    return Uint32Array.from(parts);
  }

  #nextEpoch(): void {
    this.#epoch++;
    this.#position = 0;
    this.#ahead = [];
  }

  #prepare(): void {
    if (this.#shuffled === this.#epoch) return;
    for (let i = 0; i < this.length; i++) this.#order[i] = i;
    if (this.shuffle) new Random(deriveSeed(this.seed, 'order', this.#epoch)).shuffle(this.#order);
    this.#shuffled = this.#epoch;
  }
}

/** Ranges, each behind the one before it. */
function isAhead(
  value: unknown,
  position: number,
  length: number,
): value is NonNullable<SampleOrderState['ahead']> {
  if (!Array.isArray(value)) return false;
  let before = position;
  for (const range of value as unknown[]) {
    const [start, end] = (Array.isArray(range) ? range : []) as unknown[];
    if (!Number.isSafeInteger(start) || !Number.isSafeInteger(end)) return false;
    if ((start as number) < before || (end as number) <= (start as number)) return false;
    before = end as number;
  }
  return before <= length;
}

/**
 * The share of one rank of a batch: consecutive, in rank order, the first (length mod count) ranks get one more.
 * It may be empty when there are more ranks than samples.
 */
export function batchPart(samples: Uint32Array, index: number, count: number): Uint32Array {
  if (!Number.isInteger(count) || !Number.isInteger(index) || count < 1 || index < 0 || index >= count) {
    throw bad(`There is no part ${index} of ${count}; give 0 <= index < count.`, { index, count });
  }
  const base = Math.floor(samples.length / count);
  const longer = samples.length % count;
  const start = index * base + Math.min(index, longer);
  return samples.subarray(start, start + base + (index < longer ? 1 : 0));
}

function bad(message: string, facts: Record<string, unknown>): UsageError {
  return new UsageError('INVALID_ARGUMENT', message, facts);
}
