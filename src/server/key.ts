/**
 * One key as one core of a server holds it: the value, the chunks of it that belong to this core for their whole life, what
 * was pushed and not yet applied, and who has pushed and pulled what. Invariant: `version` counts the updates that
 * were applied; a push is applied once, however often it is sent.
 */
import { keyText, UsageError } from '../base/index.ts';
import type { StoreKey, TributaryError } from '../base/index.ts';
import type { KeyOperations, Slots } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Contribution, PushReply } from './contribution.ts';
import { Clocks } from './consistency.ts';
import type { WaitingAnswers } from './consistency.ts';
import type { HeldGradient } from './held-gradient.ts';
import type { RowHistory } from './row-history.ts';
import type { UpdateRule } from './update-rule.ts';

/** A range of a key's elements. */
export interface ChunkRange {
  readonly start: number;
  readonly length: number;
}

export interface KeyOptions {
  readonly name: StoreKey;
  /** What messages call it. Default its name. */
  readonly title?: StoreKey | undefined;
  /** The value, with all elements of the key; only those in `chunks` are touched. */
  readonly value: Region<'float32'>;
  readonly chunks: readonly ChunkRange[];
  /** For a table: elements of a row; rows can then be pushed and pulled. Default: not a table. */
  readonly rowLength?: number | undefined;
  /** What is done around its updates. Default: nothing. */
  readonly operations?: KeyOperations | undefined;
}

/** A chunk, or several that follow each other, with what the update needs, cut once. */
export interface Chunk extends ChunkRange {
  readonly value: Region<'float32'>;
  readonly slots: Slots;
}

export interface Waiting {
  readonly contribution: Contribution;
  readonly isSkipped: boolean;
  /** Told when it has been applied. */
  readonly reply: (reply: PushReply) => void;
  /** Told when it never will be. */
  readonly fail: (error: TributaryError) => void;
  /** The last request that sent the same push again; it is answered, too. */
  repeated?: Pick<Waiting, 'reply' | 'fail'> | undefined;
}

/** Pushes that will not be applied after all. */
export function refuseAll(pushes: readonly Waiting[], error: TributaryError): void {
  for (const { fail, repeated } of pushes) {
    fail(error);
    repeated?.fail(error);
  }
}

export class Key {
  readonly name: StoreKey;
  readonly title: StoreKey;
  readonly value: Region<'float32'>;
  readonly rowLength: number | undefined;
  readonly clocks: Clocks;
  readonly operations: KeyOperations | undefined;
  /** With averages behind it, where the key has some; what rows miss is made up for by `missed`. */
  rules: { readonly update: UpdateRule; readonly missed: UpdateRule } | undefined;
  /** For a table whose rows are exact, or that averages follow. */
  history: RowHistory | undefined;
  /** Where updates are held. */
  held: HeldGradient | undefined;
  version = 0;
  chunks: readonly Chunk[];
  slots: Slots = {};
  /** Pushes of the step under way, by worker. */
  readonly waiting = new Map<number, Waiting>();
  /** The last step of each worker that was taken. */
  readonly lastSteps = new Map<number, number>();
  /** The version that each worker pulled last. */
  readonly pulled = new Map<number, number>();
  readonly #cut = new WeakMap<Region<'float32'>, readonly Region<'float32'>[]>();

  constructor(
    { name, title = name, value, chunks, rowLength, operations }: KeyOptions,
    staleness: number,
    answers: WaitingAnswers,
  ) {
    if (rowLength !== undefined && !(rowLength > 0 && Number.isInteger(value.length / rowLength))) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `key ${keyText(title)} has ${value.length} elements, which are no rows of ${rowLength}; give the table's row length`,
        { key: name, length: value.length, rowLength },
      );
    }
    this.name = name;
    this.title = title;
    this.value = value;
    this.rowLength = rowLength;
    this.operations = operations;
    this.clocks = new Clocks(staleness, answers);
    this.chunks = stretchesOf(chunks).map((chunk) => ({
      ...chunk,
      value: value.slice(chunk.start, chunk.length),
      slots: {},
    }));
  }

  /** The elements of the key that are this core's are kept by these regions, each as long as the key. */
  setSlots(slots: Slots): void {
    this.slots = slots;
    this.chunks = this.chunks.map(({ start, length, value }) => ({
      ...{ start, length, value },
      slots: Object.fromEntries(
        Object.entries(slots).map(([name, region]) => [name, region.slice(start, length)]),
      ),
    }));
  }

  /** The chunks of a gradient, cut once: workers push from the same memory again and again. */
  chunksOf(gradient: Region<'float32'>): readonly Region<'float32'>[] {
    let cut = this.#cut.get(gradient);
    if (cut === undefined) {
      cut = this.chunks.map(({ start, length }) => gradient.slice(start, length));
      this.#cut.set(gradient, cut);
    }
    return cut;
  }

  /** Updates since the worker's last pull. */
  stalenessOf(worker: number): number {
    return this.version - (this.pulled.get(worker) ?? this.version);
  }
}

/** Few enough that the sum of a stretch stays in the cache of its core until it is used. */
const STRETCH_ELEMENTS = 65_536;

/** Chunks that follow each other are worked on in one go: a call of a kernel costs as much as some kilobytes. */
function stretchesOf(chunks: readonly ChunkRange[]): ChunkRange[] {
  const stretches: { start: number; length: number }[] = [];
  for (const { start, length } of chunks) {
    const last = stretches.at(-1);
    const follows = last && last.start + last.length === start;
    if (follows && last.length + length <= STRETCH_ELEMENTS) last.length += length;
    else stretches.push({ start, length });
  }
  return stretches;
}
