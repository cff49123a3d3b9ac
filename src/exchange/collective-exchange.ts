/**
 * Gradients by collectives: dense ones by an allreduce for each group, which runs in the communication thread while the next
 * group is computed; tables by their rows or as a whole (Parallax, section 3.1). The loss and the states always come this way.
 * Averages weigh by samples, so that unequal shares of a batch count as they should.
 * Invariant: collectives are started in the same order on all workers.
 */
import type { CommunicationThread, TimedHandle } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Route } from '../plan/index.ts';
import type { Handle } from '../progress/index.ts';
import type { GradientsElsewhere, ModelMemory } from '../runtime/index.ts';
import { RowsTable, WholeTable } from './collective-tables.ts';
import { NOTHING_ELSEWHERE, type Exchange, type SentMessage } from './exchange.ts';

export interface CollectiveExchangeOptions {
  readonly thread: CommunicationThread;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  readonly groups: readonly (readonly string[])[];
  /** Default: 'collective' for dense gradients, 'collective rows' for sparse ones. Those of servers are left alone. */
  readonly routes?: ReadonlyMap<string, Route> | undefined;
  /** Whether this thread has something else to do than to wait for collectives, which is a little slower. Default false. */
  readonly sharesThread?: boolean | undefined;
}

export class CollectiveExchange implements Exchange {
  /** They run in the communication thread. */
  readonly needsThread = false;
  readonly #options: CollectiveExchangeOptions;
  readonly #byRows: readonly RowsTable[];
  readonly #whole: ReadonlyMap<string, WholeTable>;
  /** What every rank says of itself before rows travel: its samples, and its rows of each table. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  readonly #underWay: (Pick<SentMessage, 'name' | 'group' | 'bytes'> & { readonly handle: TimedHandle })[] =
    [];
  #lastMessages: SentMessage[] = [];
  #groups: readonly (readonly string[])[] = [];
  /** The dense gradients of each group, as one message; the first also holds loss and states. */
  #messages: readonly (Region<'float32'> | undefined)[] = [];
  #samples = 0;
  #told: Handle | undefined;

  constructor(options: CollectiveExchangeOptions) {
    this.#options = options;
    const { thread, memory } = options;
    const tables = [...memory.gradients].flatMap(([name, place]) =>
      place.kind === 'sparse' ? [{ name, place, route: this.#routeOf(name) }] : [],
    );
    this.#byRows = tables
      .filter(({ route }) => route === 'collective rows')
      .map(({ place }) => new RowsTable(thread, place));
    this.#whole = new Map(
      tables
        .filter(({ route }) => route === 'collective')
        .map(({ name, place }) => [name, new WholeTable(thread, place)]),
    );
    const words = 1 + this.#byRows.length;
    this.#own = thread.allocate('int32', words);
    this.#all = thread.allocate('int32', words * thread.world.size);
    this.setGroups(options.groups);
  }

  get groups(): readonly (readonly string[])[] {
    return this.#groups;
  }

  setGroups(groups: readonly (readonly string[])[]): void {
    this.#groups = groups;
    this.#messages = groups.map((names, group) => this.#messageOf(names, group === 0));
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
    const message = this.#messages[group];
    if (message) {
      const handle = thread.allReduce(message, { op: 'mean', weight: this.#samples });
      this.#underWay.push({ name: `group ${group}`, group, bytes: message.byteLength, handle });
    }
    for (const name of this.#groups[group]!) {
      const table = this.#whole.get(name);
      if (!table) continue;
      const handle = table.reduce(thread, kernels, this.#samples);
      this.#underWay.push({ name, group, bytes: table.byteLength, handle });
    }
    if (group === this.#groups.length - 1 && this.#byRows.length > 0) {
      this.#byRows.forEach(({ place }, i) => (this.#own.view[1 + i] = place.count));
      this.#told = thread.allGather(this.#own, this.#all);
    }
  }

  /** Blocks this thread unless it is shared: there is nothing else to do in a step. */
  async finish(): Promise<GradientsElsewhere> {
    if (this.#told) await this.#exchangeRows(this.#told);
    const messages: SentMessage[] = [];
    for (const { handle, ...message } of this.#underWay.splice(0)) {
      await this.#ended(handle);
      messages.push({ ...message, ...handle.times! });
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

  async #exchangeRows(told: Handle): Promise<void> {
    await this.#ended(told);
    this.#told = undefined;
    const { thread, kernels } = this.#options;
    const words = this.#own.length;
    const column = (word: number) =>
      Array.from({ length: thread.world.size }, (_, rank) => this.#all.view[rank * words + word]!);
    const share = this.#samples / column(0).reduce((sum, one) => sum + one, 0);
    const gathered = this.#byRows.map((table, i) => table.gather(thread, kernels, column(1 + i), share));
    for (const [i, handles] of gathered.entries()) {
      for (const handle of handles) await this.#ended(handle);
      this.#byRows[i]!.sum(kernels);
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

  /** From the first gradient's line to the last one's end, which is one piece since backward's order is memory's. */
  #messageOf(names: readonly string[], withLoss: boolean): Region<'float32'> | undefined {
    const { memory } = this.#options;
    const regions = names.flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'dense' && this.#routeOf(name) === 'collective' ? [place.region] : [];
    });
    if (withLoss) regions.unshift(memory.lossAndStates);
    const [first, last] = [regions[0], regions.at(-1)];
    if (!first || !last) return undefined;
    const start = (first.byteOffset - memory.exchanged.byteOffset) / 4;
    return memory.exchanged.slice(start, (last.byteOffset + last.byteLength - first.byteOffset) / 4);
  }
}
