/**
 * Gradients by collectives: dense ones by an allreduce for each group, which runs in the communication thread while the next
 * group is computed; tables by their rows or as a whole (Parallax, section 3.1). The loss and the states always come this way.
 * Averages weigh by samples, so that unequal shares of a batch count as they should.
 * Invariant: collectives are started in the same order on all workers.
 */
import type { CommunicationThread, OnGroup, TimedHandle } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Route } from '../plan/index.ts';
import type { Handle } from '../progress/index.ts';
import { namesInShort, type GradientsElsewhere, type ModelMemory } from '../runtime/index.ts';
import type { SomeWorkers } from './agreement.ts';
import { RowsTable, WholeTable } from './collective-tables.ts';
import { NOTHING_ELSEWHERE, type Exchange, type OnMessage, type SentMessage } from './exchange.ts';

export interface CollectiveExchangeOptions {
  readonly thread: CommunicationThread;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  readonly groups: readonly (readonly string[])[];
  /** Default: 'collective' for dense gradients, 'collective rows' for sparse ones. Those of servers are left alone. */
  readonly routes?: ReadonlyMap<string, Route> | undefined;
  /** Of which workers. Default: all. */
  readonly workers?: SomeWorkers | undefined;
  /** Whether this thread has something else to do than to wait for collectives, which is a little slower. Default false. */
  readonly sharesThread?: boolean | undefined;
}

/** Dense gradients that lie behind each other. */
interface DenseMessage {
  readonly names: readonly string[];
  readonly region: Region<'float32'>;
  /** What a trace calls it; empty without one. */
  shown: string;
}

export class CollectiveExchange implements Exchange {
  /** They run in the communication thread. */
  readonly needsThread = false;
  readonly #options: CollectiveExchangeOptions;
  readonly #byRows: readonly RowsTable[];
  readonly #rowNames: readonly string[];
  readonly #whole: ReadonlyMap<string, WholeTable>;
  /** What every rank says of itself before rows travel: its samples, and its rows of each table. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  readonly #underWay: {
    readonly group: number;
    /** Of which it is the gradient; absent for dense ones. */
    readonly table?: string;
    /** Absent for tables. */
    readonly message?: DenseMessage;
    readonly bytes: number;
    readonly handle: TimedHandle;
  }[] = [];
  #lastMessages: SentMessage[] = [];
  #groups: readonly (readonly string[])[] = [];
  /** The dense gradients of each group: neighbours as one message. The first also holds loss and states. */
  #messages: readonly (readonly DenseMessage[])[] = [];
  readonly #onGroup: OnGroup;
  readonly #size: number;
  #samples = 0;
  #told: TimedHandle | undefined;
  #onMessage: OnMessage | undefined;

  constructor(options: CollectiveExchangeOptions) {
    this.#options = options;
    const { thread, memory } = options;
    const tables = [...memory.gradients].flatMap(([name, place]) =>
      place.kind === 'sparse' ? [{ name, place, route: this.#routeOf(name) }] : [],
    );
    const byRows = tables.filter(({ route }) => route === 'collective rows');
    this.#byRows = byRows.map(({ place }) => new RowsTable(thread, place));
    this.#rowNames = byRows.map(({ name }) => name);
    this.#whole = new Map(
      tables
        .filter(({ route }) => route === 'collective')
        .map(({ name, place }) => [name, new WholeTable(thread, place)]),
    );
    const words = 1 + this.#byRows.length;
    this.#own = thread.allocate('int32', words);
    const { group, size } = options.workers ?? { group: thread.world.id, size: thread.world.size };
    this.#onGroup = { group };
    this.#size = size;
    this.#all = thread.allocate('int32', words * size);
    this.setGroups(options.groups);
  }

  get groups(): readonly (readonly string[])[] {
    return this.#groups;
  }

  setGroups(groups: readonly (readonly string[])[]): void {
    this.#groups = groups;
    this.#messages = groups.map((names, group) => this.#messagesOf(names, group === 0));
    if (this.#onMessage) this.traceTo(this.#onMessage);
  }

  /** All parameters are here. */
  get fetches(): undefined {
    return undefined;
  }

  traceTo(onMessage: OnMessage): void {
    this.#onMessage = onMessage;
    for (const message of this.#messages.flat()) {
      message.shown = `allreduce ${message.names.length > 0 ? this.#inShort(message.names) : 'loss'}`;
    }
  }

  prepare(): Promise<void> {
    return Promise.resolve();
  }

  begin(samples: number): void {
    this.#samples = samples;
    this.#own.view[0] = samples;
  }

  start(group: number): void {
    const { thread, kernels } = this.#options;
    for (const message of this.#messages[group]!) {
      const { region } = message;
      const handle = thread.allReduce(region, { op: 'mean', weight: this.#samples, ...this.#onGroup });
      this.#underWay.push({ group, message, bytes: region.byteLength, handle });
    }
    for (const name of this.#groups[group]!) {
      const table = this.#whole.get(name);
      if (!table) continue;
      const handle = table.reduce(thread, kernels, this.#samples, this.#onGroup);
      this.#underWay.push({ group, table: name, bytes: table.byteLength, handle });
    }
    if (group === this.#groups.length - 1 && this.#byRows.length > 0) {
      this.#byRows.forEach(({ place }, i) => (this.#own.view[1 + i] = place.count));
      this.#told = thread.allGather(this.#own, this.#all, this.#onGroup);
    }
  }

  /** Blocks this thread unless it is shared: there is nothing else to do in a step. */
  async finish(): Promise<GradientsElsewhere> {
    if (this.#told) await this.#exchangeRows(this.#told);
    const messages: SentMessage[] = [];
    for (const { handle, group, table, message, bytes } of this.#underWay.splice(0)) {
      await this.#ended(handle);
      const { startedMs, endedMs } = handle.times!;
      messages.push({ group, bytes, startedMs, endedMs });
      if (!this.#onMessage) continue;
      const name = message?.shown ?? `allreduce ${this.#inShort([table!])}`;
      this.#onMessage('reduce', name, startedMs, endedMs, bytes);
    }
    this.#lastMessages = messages;
    return NOTHING_ELSEWHERE;
  }

  get lastMessages(): readonly SentMessage[] {
    return this.#lastMessages;
  }

  apply(): Promise<void> {
    return Promise.resolve();
  }

  fetchAll(): Promise<void> {
    return Promise.resolve();
  }

  fetchState(): Promise<void> {
    return Promise.resolve();
  }

  async close(): Promise<void> {
    const { thread } = this.#options;
    for (const table of [...this.#byRows, ...this.#whole.values()]) await table.close(thread);
    await thread.free(this.#own, this.#all);
  }

  abort(): Promise<void> {
    return Promise.resolve();
  }

  async #exchangeRows(told: TimedHandle): Promise<void> {
    await this.#ended(told);
    this.#told = undefined;
    if (this.#onMessage) tell(this.#onMessage, 'row counts', [told], this.#own.byteLength);
    const { thread, kernels } = this.#options;
    const words = this.#own.length;
    const column = (word: number) =>
      Array.from({ length: this.#size }, (_, rank) => this.#all.view[rank * words + word]!);
    const share = this.#samples / column(0).reduce((sum, one) => sum + one, 0);
    const gathered = this.#byRows.map((table, i) =>
      table.gather(thread, kernels, column(1 + i), share, this.#onGroup),
    );
    for (const [i, handles] of gathered.entries()) {
      for (const handle of handles) await this.#ended(handle);
      const table = this.#byRows[i]!;
      if (this.#onMessage) {
        tell(this.#onMessage, `rows ${this.#inShort([this.#rowNames[i]!])}`, handles, table.ownBytes);
      }
      table.sum(kernels);
    }
  }

  #ended(handle: Handle): PromiseLike<void> | void {
    return this.#options.sharesThread ? handle : handle.wait();
  }

  #routeOf(name: string): Route {
    const { memory, routes } = this.#options;
    const usual = memory.gradients.get(name)!.kind === 'dense' ? 'collective' : 'collective rows';
    return routes?.get(name) ?? usual;
  }

  #inShort(names: readonly string[]): string {
    return namesInShort(names, this.#options.memory.parameters.keys());
  }

  /**
   * Backward's order is memory's: each message is one piece, from its first gradient's line to the last one's end. A gradient that
   * goes to servers ends it, as it must not change on its way.
   */
  #messagesOf(names: readonly string[], withLoss: boolean): DenseMessage[] {
    const { memory } = this.#options;
    const runs: { names: string[]; regions: Region<'float32'>[] }[] = [
      { names: [], regions: withLoss ? [memory.lossAndStates] : [] },
    ];
    for (const name of names) {
      const place = memory.gradients.get(name)!;
      if (place.kind === 'sparse') continue;
      if (this.#routeOf(name) !== 'collective') {
        runs.push({ names: [], regions: [] });
        continue;
      }
      runs.at(-1)!.names.push(name);
      runs.at(-1)!.regions.push(place.region);
    }
    return runs.flatMap(({ names: own, regions }) => {
      const [first, last] = [regions[0], regions.at(-1)];
      if (!first || !last) return [];
      const start = (first.byteOffset - memory.exchanged.byteOffset) / 4;
      const length = (last.byteOffset + last.byteLength - first.byteOffset) / 4;
      return [{ names: own, region: memory.exchanged.slice(start, length), shown: '' }];
    });
  }
}

/** Messages that follow each other count as one. */
function tell(onMessage: OnMessage, name: string, handles: readonly TimedHandle[], bytes: number): void {
  onMessage('reduce', name, handles[0]!.times!.startedMs, handles.at(-1)!.times!.endedMs, bytes);
}
