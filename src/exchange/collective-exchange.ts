/**
 * Gradients by collectives: dense ones by an allreduce for each group, which runs in the communication thread while the next
 * group is computed; tables by their rows or as a whole (Parallax, section 3.1). The loss always comes this way.
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
}

export class CollectiveExchange implements Exchange {
  readonly #options: CollectiveExchangeOptions;
  readonly #byRows: readonly RowsTable[];
  readonly #whole: ReadonlyMap<string, WholeTable>;
  /** What every rank says of itself before rows travel: its samples, and its rows of each table. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  readonly #underWay: { readonly name: string; readonly bytes: number; readonly handle: TimedHandle }[] = [];
  #lastMessages: SentMessage[] = [];
  #groups: readonly (readonly string[])[] = [];
  /** The dense gradients of each group, as one message; the first also holds the loss. */
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
      this.#underWay.push({ name: `group ${group}`, bytes: message.byteLength, handle });
    }
    for (const name of this.#groups[group]!) {
      const table = this.#whole.get(name);
      if (!table) continue;
      const handle = table.reduce(thread, kernels, this.#samples);
      this.#underWay.push({ name, bytes: table.byteLength, handle });
    }
    if (group === this.#groups.length - 1 && this.#byRows.length > 0) {
      this.#byRows.forEach(({ place }, i) => (this.#own.view[1 + i] = place.count));
      this.#told = thread.allGather(this.#own, this.#all);
    }
  }

  /** Blocks this thread: there is nothing else to do in a step. */
  finish(): Promise<GradientsElsewhere> {
    if (this.#told) this.#exchangeRows(this.#told);
    this.#lastMessages = this.#underWay.splice(0).map(({ name, bytes, handle }) => {
      handle.wait();
      return { name, bytes, ...handle.times! };
    });
    return Promise.resolve(NOTHING_ELSEWHERE);
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

  close(): Promise<void> {
    return Promise.resolve();
  }

  #exchangeRows(told: Handle): void {
    told.wait();
    this.#told = undefined;
    const { thread, kernels } = this.#options;
    const words = this.#own.length;
    const column = (word: number) =>
      Array.from({ length: thread.world.size }, (_, rank) => this.#all.view[rank * words + word]!);
    const share = this.#samples / column(0).reduce((sum, one) => sum + one, 0);
    const gathered = this.#byRows.map((table, i) => table.gather(thread, kernels, column(1 + i), share));
    gathered.forEach((handles, i) => {
      for (const handle of handles) handle.wait();
      this.#byRows[i]!.sum(kernels);
    });
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
    if (withLoss) regions.unshift(memory.loss);
    const [first, last] = [regions[0], regions.at(-1)];
    if (!first || !last) return undefined;
    const start = (first.byteOffset - memory.exchanged.byteOffset) / 4;
    return memory.exchanged.slice(start, (last.byteOffset + last.byteLength - first.byteOffset) / 4);
  }
}
