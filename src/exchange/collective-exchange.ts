/**
 * Gradients by collectives, as operations of a step program: dense ones by an allreduce for each
 * message, tables by their rows or as a whole (Parallax, section 3.1). They run in the communication
 * thread while the thread that computes does something else. Averages weigh by samples, so that
 * unequal shares of a batch count as they should. This owns the memory for it.
 * Invariant: collectives of one tag are started in the same order on all workers.
 */
import type { CommunicationThread, OnGroup, TimedHandle } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Operation, Route } from '../plan/index.ts';
import type { LaneHandler, ModelMemory, MovedMessage, StepContext } from '../runtime/index.ts';
import type { SomeWorkers } from './agreement.ts';
import { RowsTable, WholeTable } from './collective-tables.ts';

export interface CollectiveExchangeOptions {
  readonly thread: CommunicationThread;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** Whose samples gradients weigh by. */
  readonly step: StepContext;
  /** Default: 'collective' for dense gradients, 'collective rows' for sparse ones. Those of servers are left alone. */
  readonly routes?: ReadonlyMap<string, Route> | undefined;
  /** Of which workers. Default: all. */
  readonly workers?: SomeWorkers | undefined;
}

export class CollectiveExchange {
  readonly #options: CollectiveExchangeOptions;
  readonly #byRows: ReadonlyMap<string, RowsTable>;
  readonly #whole: ReadonlyMap<string, WholeTable>;
  readonly #counts: RowCounts;
  readonly #onGroup: OnGroup;

  constructor(options: CollectiveExchangeOptions) {
    this.#options = options;
    const { thread, memory, routes, step } = options;
    const { group, size } = options.workers ?? { group: thread.world.id, size: thread.world.size };
    this.#onGroup = { group };
    const tables = [...memory.gradients].flatMap(([name, place]) =>
      place.kind === 'sparse' ? [{ name, place, route: routes?.get(name) ?? 'collective rows' }] : [],
    );
    const by = (route: Route) => tables.filter((table) => table.route === route);
    this.#byRows = new Map(
      by('collective rows').map(({ name, place }) => [name, new RowsTable(thread, place)]),
    );
    this.#whole = new Map(by('collective').map(({ name, place }) => [name, new WholeTable(thread, place)]));
    this.#counts = new RowCounts(thread, [...this.#byRows.values()], step, this.#onGroup, size);
  }

  /** Of its lane: `reduce`, by each form that collectives have. */
  handlerOf({ kind, form, parameters = [], mutates }: Operation): LaneHandler | undefined {
    if (kind !== 'reduce') return undefined;
    const { thread, kernels, step } = this.#options;
    const [name = ''] = parameters;
    switch (form) {
      case 'dense': {
        const region = this.#dense(parameters, mutates.includes('loss'));
        return new CollectiveCall(
          () => thread.allReduce(region, { op: 'mean', weight: step.samples.length, ...this.#onGroup }),
          region.byteLength,
        );
      }
      case 'table': {
        const table = this.#whole.get(name);
        if (!table) return undefined;
        return new CollectiveCall(
          () => table.reduce(thread, kernels, step.samples.length, this.#onGroup),
          table.byteLength,
        );
      }
      case 'row counts':
        return this.#counts;
      case 'rows': {
        const table = this.#byRows.get(name);
        if (!table) return undefined;
        const number = [...this.#byRows.keys()].indexOf(name);
        return new GatheredRows(table, number, this.#counts, thread, kernels, this.#onGroup);
      }
      default:
        return undefined;
    }
  }

  /** After the last operation has ended. */
  async close(): Promise<void> {
    const { thread } = this.#options;
    for (const table of [...this.#byRows.values(), ...this.#whole.values()]) await table.close(thread);
    await this.#counts.close();
  }

  /** Backward's order is memory's: one piece, from the first gradient's line to the last one's end. */
  #dense(names: readonly string[], withLoss: boolean): Region<'float32'> {
    const { memory } = this.#options;
    const regions = names.flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'dense' ? [place.region] : [];
    });
    if (withLoss) regions.unshift(memory.lossAndStates);
    const [first, last] = [regions[0]!, regions.at(-1)!];
    const start = (first.byteOffset - memory.exchanged.byteOffset) / 4;
    return memory.exchanged.slice(start, (last.byteOffset + last.byteLength - first.byteOffset) / 4);
  }
}

/** One collective. */
class CollectiveCall implements LaneHandler {
  readonly #call: () => TimedHandle;
  readonly #bytes: number;
  #handle: TimedHandle | undefined;

  constructor(call: () => TimedHandle, bytes: number) {
    this.#call = call;
    this.#bytes = bytes;
  }

  start(): void {
    this.#handle = this.#call();
  }

  hasEnded(): boolean {
    return hasEnded(this.#handle!, false);
  }

  wait(): void {
    this.#handle!.wait();
  }

  get message(): MovedMessage {
    return messageOf([this.#handle!], this.#bytes);
  }
}

/** What every worker tells before rows travel: its samples, and its rows of each table. */
class RowCounts implements LaneHandler {
  readonly #thread: CommunicationThread;
  readonly #tables: readonly RowsTable[];
  readonly #step: StepContext;
  readonly #onGroup: OnGroup;
  readonly #size: number;
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  #told: TimedHandle | undefined;

  constructor(
    thread: CommunicationThread,
    tables: readonly RowsTable[],
    step: StepContext,
    onGroup: OnGroup,
    size: number,
  ) {
    this.#thread = thread;
    this.#tables = tables;
    this.#step = step;
    this.#onGroup = onGroup;
    this.#size = size;
    this.#own = thread.allocate('int32', 1 + tables.length);
    this.#all = thread.allocate('int32', (1 + tables.length) * size);
  }

  start(): void {
    this.#own.view.set([this.#step.samples.length, ...this.#tables.map(({ place }) => place.count)]);
    this.#told = this.#thread.allGather(this.#own, this.#all, this.#onGroup);
  }

  hasEnded(): boolean {
    return hasEnded(this.#told!, false);
  }

  wait(): void {
    this.#told!.wait();
  }

  get message(): MovedMessage {
    return messageOf([this.#told!], this.#own.byteLength);
  }

  /** What this worker's samples weigh. */
  get share(): number {
    return this.#own.view[0]! / this.#column(0).reduce((sum, one) => sum + one, 0);
  }

  /** Of each worker. */
  rowsOf(table: number): number[] {
    return this.#column(1 + table);
  }

  close(): Promise<void> {
    return this.#thread.free(this.#own, this.#all);
  }

  #column(word: number): number[] {
    const words = this.#own.length;
    return Array.from({ length: this.#size }, (_, rank) => this.#all.view[rank * words + word]!);
  }
}

/** The rows of one table, once it is known how many each worker has; they are added up here. */
class GatheredRows implements LaneHandler {
  readonly #table: RowsTable;
  readonly #number: number;
  readonly #counts: RowCounts;
  readonly #thread: CommunicationThread;
  readonly #kernels: Kernels;
  readonly #onGroup: OnGroup & { readonly tag: number };
  #handles: readonly TimedHandle[] = [];
  #bytes = 0;
  #isSummed = false;

  constructor(
    table: RowsTable,
    number: number,
    counts: RowCounts,
    thread: CommunicationThread,
    kernels: Kernels,
    onGroup: OnGroup,
  ) {
    this.#table = table;
    this.#number = number;
    this.#counts = counts;
    this.#thread = thread;
    this.#kernels = kernels;
    // It does not matter then which worker hears first how many there are.
    this.#onGroup = { ...onGroup, tag: 1 + number };
  }

  start(): void {
    this.#handles = [];
    this.#isSummed = false;
    this.#advance(false);
  }

  hasEnded(): boolean {
    return this.#advance(false);
  }

  wait(): void {
    this.#advance(true);
  }

  get message(): MovedMessage {
    return messageOf(this.#handles, this.#bytes);
  }

  #advance(waits: boolean): boolean {
    if (this.#handles.length === 0) {
      if (waits) this.#counts.wait();
      else if (!this.#counts.hasEnded()) return false;
      const { share } = this.#counts;
      const rows = this.#counts.rowsOf(this.#number);
      this.#bytes = this.#table.ownBytes;
      this.#handles = this.#table.gather(this.#thread, this.#kernels, rows, share, this.#onGroup);
    }
    if (!this.#handles.every((handle) => hasEnded(handle, waits))) return false;
    if (!this.#isSummed) this.#table.sum(this.#kernels);
    this.#isSummed = true;
    return true;
  }
}

/** `waits`: blocks until it has. Throws what went wrong. */
export function hasEnded(handle: TimedHandle, waits: boolean): boolean {
  if (!waits && !handle.settled) return false;
  handle.wait();
  return true;
}

/** Of collectives that follow each other. */
export function messageOf(handles: readonly TimedHandle[], bytes: number): MovedMessage {
  return { bytes, startedMs: handles[0]!.times!.startedMs, endedMs: handles.at(-1)!.times!.endedMs };
}
