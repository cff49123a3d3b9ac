/**
 * The checkpoints of a run, on one device or on several workers: the first worker writes and reads files, the others take part and
 * get its values, so that machines need not share a folder. When to write is the runner's to decide.
 * Invariants: after `begin` all workers have the same values and the same step, bit for bit; a checkpoint holds what one device
 * would have written, whoever computed.
 */
import { UsageError, type ScheduleSpec } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import type { SampleOrderState } from '../data/index.ts';
import { agree, NO_TABLES, type RemoteTables } from '../exchange/index.ts';
import { averageSlot } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import {
  carriedOver,
  checkRunState,
  CheckpointStore,
  readRunState,
  stepOffsetOf,
  writeRunState,
  type Evaluation,
  type LatestCheckpoint,
  type LoadedCheckpoint,
  type Replica,
  type StoredTensor,
  type StreamedTensor,
  type UsedFolderOptions,
} from '../runtime/index.ts';
import { attemptTogether } from './joint-attempt.ts';

export interface CheckpointOptions extends UsedFolderOptions {
  /** Folder for checkpoints, on the machine of the first worker. Default: none are written. */
  readonly checkpointDirectory?: string | undefined;
  /** Default: at the end of every epoch and of every run only. */
  readonly checkpointEverySteps?: number | undefined;
  /** Go on from the newest good checkpoint of the folder, if there is one, by the same calls of `run`, none of them left early. Default false. */
  readonly resume?: boolean | undefined;
}

/** Told to the first worker only. */
export type CheckpointEvent =
  | { readonly type: 'resumed'; readonly path: string; readonly step: number }
  | { readonly type: 'checkpoint-skipped'; readonly path: string; readonly reason: string }
  | {
      /**
       * An older checkpoint is no longer kept, but could not be removed; the next one tries again.
       */
      readonly type: 'checkpoint-not-removed';
      readonly path: string;
      readonly reason: string;
    }
  | { readonly type: 'checkpoint'; readonly path: string; readonly step: number };

export interface RunCheckpointsParts {
  readonly replica: Replica;
  readonly options: CheckpointOptions;
  readonly seed: number;
  /** Over all workers. */
  readonly batchSize: number;
  /** Samples that all workers together go through in a step. */
  readonly stepSamples: number;
  readonly schedule?: ScheduleSpec | undefined;
  /** To the other workers. Default: there are none. */
  readonly thread?: CommunicationThread | undefined;
  readonly onEvent?: ((event: CheckpointEvent) => void) | undefined;
}

/** Where in the samples of a dataset a run has stopped. */
export interface PlaceInSamples {
  readonly state: SampleOrderState;
  /** Of the dataset. Absent if nothing is known of it. */
  readonly length?: number | undefined;
}

interface Found {
  readonly path: string;
  /** For people: what is carried over from another way to train. */
  readonly note?: string | undefined;
  readonly step: number;
  readonly stepOffset: number;
  readonly place: PlaceInSamples;
}

export class RunCheckpoints {
  readonly #parts: RunCheckpointsParts;
  readonly #store: CheckpointStore | undefined;
  #savedStep = -1;
  #path: string | undefined;
  /**
   * Steps of the replica that do not count as such of this run: a step of the run before had
   * another number of samples.
   */
  stepOffset = 0;
  /** For people, after `begin`: the run goes on in another way than the checkpoint's. */
  note: string | undefined;

  constructor(parts: RunCheckpointsParts) {
    this.#parts = parts;
    const { checkpointDirectory } = parts.options;
    const onNotRemoved = (path: string, reason: string) =>
      this.#tell({ type: 'checkpoint-not-removed', path, reason });
    this.#store =
      checkpointDirectory === undefined
        ? undefined
        : new CheckpointStore(checkpointDirectory, { onNotRemoved });
  }

  /** Whether there is a folder for them; the same on all workers. */
  get isOn(): boolean {
    return this.#store !== undefined;
  }

  /** Whether this step has one. */
  get isSaved(): boolean {
    return this.#savedStep === this.#parts.replica.step;
  }

  /** The newest one that was written or resumed from. */
  get path(): string | undefined {
    return this.#path;
  }

  /**
   * Where in the samples the newest good checkpoint was made, if the run is to go on from one and there is one. Refuses a folder
   * of an earlier run unless the options say what becomes of it. All workers call it before the first step.
   */
  begin(): PlaceInSamples | undefined {
    const { replica, thread, options } = this.#parts;
    const store = this.#store;
    if (!store) return undefined;
    const tables = this.#storedNames();
    const isLeft = tables.size === 0 ? undefined : (tensor: string) => tables.has(tensor);
    const read = () => (this.#isFirst ? this.#read(store.begin(options, isLeft)) : undefined);
    const own = thread ? attemptTogether(thread, read) : read();
    const found = thread ? agree<Found | null>(thread, own ?? null) : (own ?? null);
    if (!found) return undefined;
    if (thread) this.#broadcast(thread);
    if (!this.#isFirst) this.#awaitTables();
    replica.step = found.step;
    this.#note(found.path, found.step);
    this.note = found.note;
    this.stepOffset = found.stepOffset;
    this.#tell({ type: 'resumed', path: found.path, step: found.step });
    return found.place;
  }

  /**
   * Writes a checkpoint, unless this step has one. All workers call it at the same step, when all parameters are in their
   * replicas, but for `tables`, which are brought from servers while they are written.
   */
  async save(
    { state: order, length }: PlaceInSamples,
    evaluation: Evaluation | undefined,
    tables: RemoteTables = NO_TABLES,
  ): Promise<void> {
    const { replica, seed, batchSize, stepSamples, schedule } = this.#parts;
    const { step } = replica;
    if (!this.#store || this.isSaved) return;
    if (!this.#isFirst) {
      this.#savedStep = step;
      return;
    }
    if (!replica.isFinite()) throw this.notANumber(NaN);
    const { tensors, optimizer } = replica.snapshotHere();
    const state = writeRunState({
      ...{ seed, batchSize, stepSamples, datasetLength: length, optimizer: replica.optimizer.spec },
      ...{ schedule, order, evaluation, trainedBy: this.#trainedBy, stepOffset: this.stepOffset },
    });
    const common = { step, epoch: order.epoch, state };
    const path =
      tables.size === 0
        ? this.#store.save({ ...common, tensors, optimizer })
        : await this.#store.saveAwaiting({
            ...common,
            tensors: { ...tensors, ...this.#streamedValues(tables), ...this.#streamedAverages(tables) },
            optimizer: { ...optimizer, ...this.#streamedSlots(tables) },
          });
    this.#note(path, step);
    this.#tell({ type: 'checkpoint', path, step });
  }

  notANumber(loss: number): UsageError {
    const { step } = this.#parts.replica;
    const kept = !this.isOn
      ? 'The parameters are those of the step before'
      : !this.#isFirst
        ? 'The first worker knows the last good checkpoint'
        : this.#path === undefined
          ? 'No checkpoint was written yet'
          : `The last good checkpoint is ${this.#path}`;
    return new UsageError(
      'NOT_A_NUMBER',
      `The loss is ${loss} at step ${step}. ${kept}. Lower the learning rate, clip gradients, or look for broken values in the data.`,
      { step, checkpoint: this.#path },
    );
  }

  get #trainedBy(): string {
    const { thread } = this.#parts;
    return thread ? `${thread.world.size} workers` : 'one process';
  }

  get #isFirst(): boolean {
    const { thread } = this.#parts;
    return !thread || thread.world.rank === 0;
  }

  #read(latest: LatestCheckpoint | undefined): Found | undefined {
    const { replica, seed, batchSize, stepSamples } = this.#parts;
    const { checkpoint, path, skipped = [] } = latest ?? {};
    for (const { path: bad, reason } of skipped)
      this.#tell({ type: 'checkpoint-skipped', path: bad, reason });
    if (!checkpoint || path === undefined) return undefined;
    const state = readRunState(checkpoint.state);
    checkRunState(path, state, { seed, batchSize, optimizer: replica.optimizer.spec });
    const { step } = checkpoint;
    replica.restore(checkpoint, step);
    this.#takeStored(path, checkpoint);
    const stepOffset = stepOffsetOf(state, step, stepSamples);
    const note = carriedOver(path, state, {
      ...{ trainedBy: this.#trainedBy, stepSamples, done: step - stepOffset },
    });
    const { order, datasetLength } = state;
    return {
      ...{ path, step, stepOffset, note },
      place: { state: order, ...(datasetLength === undefined ? {} : { length: datasetLength }) },
    };
  }

  #streamedValues(tables: RemoteTables): Record<string, StreamedTensor> {
    const { replica } = this.#parts;
    const checked = (piece: Region<'float32'>) => {
      if (!Number.isFinite(replica.kernels.absSum(piece))) throw this.notANumber(NaN);
      return bytesOf(piece);
    };
    return Object.fromEntries(
      [...tables].map(([name, table]) => [name, this.#streamed(name, () => table.pieces(), checked)]),
    );
  }

  #streamedAverages(tables: RemoteTables): Record<string, StreamedTensor> {
    const all = [...tables].flatMap(([name, table]) =>
      this.#averagesOf(name).map(
        ({ tensor, slot }) => [tensor, this.#streamed(name, () => table.pieces(slot), bytesOf)] as const,
      ),
    );
    return Object.fromEntries(all);
  }

  /** The names that the averages of a table have in a checkpoint and on servers. */
  #averagesOf(table: string): readonly { readonly tensor: string; readonly slot: string }[] {
    return [...this.#parts.replica.memory.averages].flatMap(([average, regions]) =>
      regions.has(table) ? [{ tensor: `${average}/${table}`, slot: averageSlot(average) }] : [],
    );
  }

  #streamedSlots(tables: RemoteTables): Record<string, StreamedTensor> {
    const { slots } = this.#parts.replica.optimizer;
    const all = [...tables].flatMap(([name, table]) =>
      slots.map(
        (slot) => [`${name}/${slot}`, this.#streamed(name, () => table.pieces(slot), bytesOf)] as const,
      ),
    );
    return Object.fromEntries(all);
  }

  #streamed(
    name: string,
    bring: () => Iterable<Promise<Region<'float32'>>>,
    bytes: (piece: Region<'float32'>) => Uint8Array,
  ): StreamedTensor {
    const { shape } = this.#parts.replica.model.graph.parameters.get(name)!;
    return {
      ...{ dtype: 'float32', shape },
      *pieces() {
        for (const piece of bring()) yield piece.then(bytes);
      },
    };
  }

  /**
   * The names that tables on servers, and their slots, have in a checkpoint: each with its table.
   */
  #storedNames(): ReadonlyMap<string, string> {
    const { memory, optimizer } = this.#parts.replica;
    return new Map(
      [...memory.rowBuffers.keys()].flatMap((name) =>
        [
          name,
          ...optimizer.slots.map((slot) => `${name}/${slot}`),
          ...this.#averagesOf(name).map(({ tensor }) => tensor),
        ].map((one) => [one, name] as const),
      ),
    );
  }

  /** Tables of the checkpoint stay in its files until servers have them. */
  #takeStored(path: string, { stored }: LoadedCheckpoint): void {
    const { memory, optimizer } = this.#parts.replica;
    for (const [name, buffer] of memory.rowBuffers) {
      const take = (tensor: string, from: Readonly<Record<string, StoredTensor>> = {}) => {
        const one = from[tensor];
        const shape = buffer.parameter.shape;
        if (one?.dtype === 'float32' && one.shape.join() === shape.join()) return one;
        throw new UsageError(
          'CHECKPOINT_MISMATCH',
          `${path} has ${one ? `${one.dtype}[${one.shape.join(', ')}]` : 'nothing'} for ${tensor}, this run expects float32[${shape.join(', ')}]. Use the configuration it was made with, or start in another folder.`,
          { name: tensor },
        );
      };
      const slots = [
        ...optimizer.slots.map((slot) => [slot, take(`${name}/${slot}`, stored?.optimizer)] as const),
        ...this.#averagesOf(name).map(({ tensor, slot }) => [slot, take(tensor, stored?.tensors)] as const),
      ];
      buffer.stored = { value: take(name, stored?.tensors), slots: Object.fromEntries(slots) };
    }
  }

  /** Where another worker has them. */
  #awaitTables(): void {
    const { memory, optimizer } = this.#parts.replica;
    for (const [name, buffer] of memory.rowBuffers) {
      const length = buffer.tableRows * buffer.rowLength;
      const elsewhere = { length, read: notHere };
      const slots = [...optimizer.slots, ...this.#averagesOf(name).map(({ slot }) => slot)];
      buffer.stored = {
        value: elsewhere,
        slots: Object.fromEntries(slots.map((slot) => [slot, elsewhere])),
      };
    }
  }

  /** All that a snapshot has: the first worker's values are everybody's. */
  #broadcast(thread: CommunicationThread): void {
    const { parameters, rowBuffers, states, averages, slots } = this.#parts.replica.memory;
    const whole = (of: ReadonlyMap<string, Region<'float32'>>) =>
      [...of].flatMap(([name, region]) => (rowBuffers.has(name) ? [] : [region]));
    const regions = [
      ...[...whole(parameters), ...states.values()],
      ...[...averages.values()].flatMap(whole),
      ...[...slots.values()].flatMap((own) => Object.values(own)),
    ];
    for (const region of regions) thread.broadcast(region, { name: 'values of a checkpoint' }).wait();
  }

  #note(path: string, step: number): void {
    this.#path = path;
    this.#savedStep = step;
  }

  #tell(event: CheckpointEvent): void {
    if (this.#isFirst) this.#parts.onEvent?.(event);
  }
}

function bytesOf({ view }: Region<'float32'>): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

/** Until servers have them, tables of a checkpoint are with the first worker. */
function notHere(): never {
  throw new UsageError(
    'INVALID_ARGUMENT',
    'Before the first step only worker 0 can read the tables of the checkpoint that the run goes on from (serverTables). Evaluate shard(data) instead of the whole dataset, or after a step.',
  );
}
