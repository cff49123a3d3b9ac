/**
 * Gradients by parameter servers: rows of tables, or whole parameters, are pushed, combined there, and held until all workers know
 * the norm of everything; then the servers update (Parallax, section 3.1). On one host parameters are read in the servers' own
 * memory; between hosts the rows that a batch looks up, and whole parameters, are pulled before it.
 * Invariant: every worker pushes every parameter in every step, one without samples too.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { SeededInitialiser, TributaryError } from '../base/index.ts';
import type { ElementSource, InitialKeyState, KeyInit, SeededKeyInit } from '../kvstore/index.ts';
import { tellAll } from './agreement.ts';
import { averageSlot, type KeyOperations, type Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import { namesInShort } from '../plan/index.ts';
import type { GradientsElsewhere, ModelMemory } from '../runtime/index.ts';
import {
  NOTHING_ELSEWHERE,
  wallMs,
  type Exchange,
  type OnMessage,
  type RemoteUpdate,
  type SentMessage,
} from './exchange.ts';
import { aggregatesLocally, LocalAggregation } from './local-aggregation.ts';
import type { RunServers } from './run-servers.ts';
import { isInPlace, ServerTable } from './server-table.ts';
import type { StoreCall, ThreadStore } from './thread-store.ts';

/** What Parallax moves to where fewer bytes travel; each can be switched off to see what it is worth. */
export interface ServerPlacement {
  /** Whether the workers of a machine add up rows before one of them sends them. Default true. */
  readonly localAggregation?: boolean | undefined;
  /** Whether servers compute the norm of what they hold; otherwise every worker fetches it for that. Default true. */
  readonly boundaryAmongServers?: boolean | undefined;
  /** Whether a row that a batch looks up several times is fetched once, not once for each lookup. Default true. */
  readonly boundaryBetweenWorkersAndServers?: boolean | undefined;
}

export interface ServerExchangeOptions extends ServerPlacement {
  readonly thread: CommunicationThread;
  /** Closed with this. */
  readonly servers: Pick<RunServers, 'store' | 'close' | 'abort'>;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** Those that live on the servers. */
  readonly names: ReadonlySet<string>;
  /** What servers do around the updates of each. */
  readonly operations: ReadonlyMap<string, KeyOperations>;
  readonly groups: readonly (readonly string[])[];
  /** That the parameters have behind them. */
  readonly steps: number;
  /** Of each of the optimizer's slots, what it holds before the first step. */
  readonly firstSlots: ReadonlyMap<string, number>;
  /** What becomes of values of an earlier training. Default: there are none. */
  readonly found?: FoundValues | undefined;
  /** Whether rows that nobody touched have updates to catch up with when they are looked at. */
  readonly hasExactRows: boolean;
}

/** They get those of this run; or the run ends with this error. */
export type FoundValues = 'replace' | TributaryError;

export class ServerExchange implements Exchange {
  readonly #options: ServerExchangeOptions;
  readonly #store: ThreadStore;
  readonly #tables: ReadonlyMap<string, ServerTable>;
  readonly #local: LocalAggregation | undefined;
  /** Of all workers, if they compute norms themselves. */
  readonly #normGroup: number | undefined;
  #groups: readonly (readonly string[])[] = [];
  #samples = 0;
  #isClosed = false;
  /**
   * Of each group what is dense, as one list for all steps; and dense parameters that cannot be
   * read where the servers have them.
   */
  #dense: readonly DenseList[] = [];
  readonly #whole: readonly { readonly key: string; readonly into: Region<'float32'> }[];
  /** Of this step. */
  #pushes: Promise<PushStatus>[] = [];
  #messages: SentMessage[] = [];
  /** Of the last step; settles when its update can be read on servers. */
  #applied: Promise<void> = Promise.resolve();
  #onMessage: OnMessage | undefined;

  /** Takes the parameters to the servers, with the first worker's values and optimizer state. All workers call it together. */
  static async open(options: ServerExchangeOptions): Promise<ServerExchange> {
    const { servers, memory, names, operations, steps } = options;
    const inits = [...names].map((key) => ({
      ...firstValuesOf(memory, key),
      operations: operations.get(key),
    }));
    await servers.store.init(inits);
    const hasFound = options.found !== undefined && findsValues(options.thread, servers.store.foundValues);
    if (hasFound && options.found !== 'replace') throw options.found;
    if (steps > 0 || hasFound) {
      const states = [...names].map((key) => ({ key, steps, ...stateOf(options, key, hasFound) }));
      await servers.store.initState(states);
    }
    const { thread, kernels, localAggregation = true } = options;
    const sparse = [...names].flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'sparse' ? [[name, place] as const] : [];
    });
    const isLocal = localAggregation && sparse.length > 0 && aggregatesLocally(thread);
    const local = isLocal ? await LocalAggregation.open(thread, kernels, new Map(sparse)) : undefined;
    const fetches = options.boundaryAmongServers === false;
    const normGroup = fetches ? await thread.group(thread.world.hosts.map((_, rank) => rank)) : undefined;
    // Servers have them now, and the file may go.
    for (const buffer of memory.rowBuffers.values()) buffer.stored = undefined;
    // Last: what fails before leaves the replica with memory of its own.
    for (const name of names) {
      const buffer = memory.rowBuffers.get(name);
      // Where servers on this host can write rows.
      const region = buffer
        ? servers.store.allocate(buffer.capacity * buffer.rowLength)
        : servers.store.value(name);
      if (region) memory.relocate(name, region);
    }
    return new ServerExchange(options, local, normGroup);
  }

  private constructor(
    options: ServerExchangeOptions,
    local: LocalAggregation | undefined,
    normGroup: number | undefined,
  ) {
    this.#options = options;
    this.#local = local;
    this.#normGroup = normGroup;
    const { store } = options.servers;
    this.#store = store;
    const { names, groups, boundaryBetweenWorkersAndServers: pullsRowsOnce = true } = options;
    const { thread, memory, kernels, hasExactRows } = options;
    const common = { thread, store, memory, kernels, hasExactRows, pullsRowsOnce };
    const sparse = [...names].flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'sparse' ? [[name, new ServerTable(name, place, common)] as const] : [];
    });
    this.#tables = new Map(sparse);
    this.#whole = Object.freeze(this.#wholeElsewhere());
    this.setGroups(groups);
  }

  get groups(): readonly (readonly string[])[] {
    return this.#groups;
  }

  setGroups(groups: readonly (readonly string[])[]): void {
    this.#groups = groups;
    const { memory, names } = this.#options;
    this.#dense = groups.map((group) => {
      const list = group.flatMap((key) => {
        const place = memory.gradients.get(key)!;
        return names.has(key) && place.kind === 'dense' ? [{ key, gradient: place.region }] : [];
      });
      return {
        list: Object.freeze(list),
        bytes: list.reduce((sum, one) => sum + one.gradient.byteLength, 0),
      };
    });
  }

  get fetches(): Exchange['fetches'] {
    if (this.#whole.length > 0) return 'pull';
    if ([...this.#tables.values()].some((table) => table.fetches)) return 'pull rows';
    return this.#options.names.size > 0 ? 'wait' : undefined;
  }

  traceTo(onMessage: OnMessage): void {
    this.#onMessage = onMessage;
  }

  async prepare(batch: number): Promise<void> {
    const whole = this.#whole;
    const onMessage = this.#onMessage;
    const startedMs = onMessage ? wallMs() : 0;
    const pulled = [
      whole.length > 0 ? this.#store.pull(whole) : undefined,
      ...[...this.#tables.values()].map((table) => table.pull(batch, onMessage)),
    ];
    this.#store.settle();
    // Pulls see the update that was asked for before them; what is read in place waits for it.
    await Promise.all([this.#applied, ...pulled]);
    // Until all is here, rows too: a promise of its own would be needed to know better.
    if (onMessage && whole.length > 0) this.#tellOfPull(onMessage, whole, startedMs);
  }

  async prepareRows(batch: number, average?: string): Promise<void> {
    const elsewhere = [...this.#tables].filter(([name]) => this.#options.memory.rowBuffers.has(name));
    await Promise.all(
      elsewhere.flatMap(([, table]) => [
        table.pull(batch, this.#onMessage),
        ...(average === undefined ? [] : [table.pullAverage(average)]),
      ]),
    );
  }

  begin(samples: number): void {
    this.#samples = samples;
    this.#messages = [];
  }

  /** Nothing waits, but for the other workers of this machine behind the last group. */
  start(group: number): void {
    const samples = this.#samples;
    const { list, bytes } = this.#dense[group]!;
    if (list.length > 0) this.#note(this.#store.push(list, { samples }), group, list, bytes);
    for (const name of this.#groups[group]!) {
      const table = this.#tables.get(name);
      if (table === undefined) continue;
      if (this.#local) this.#local.begin(name, samples);
      else this.#note(table.push(samples), group, [{ key: name }], table.pushedBytes);
    }
    const isLast = group === this.#groups.length - 1;
    for (const { name, samples: combined, startedMs, endedMs } of this.#local?.advance(isLast) ?? []) {
      const table = this.#tables.get(name)!;
      const shown = `rows ${table.shownName} of this machine`;
      this.#onMessage?.('reduce', shown, startedMs, endedMs, table.pushedBytes);
      this.#note(table.push(combined), group, [{ key: name }], table.pushedBytes);
    }
  }

  async finish(): Promise<GradientsElsewhere> {
    const { names } = this.#options;
    if (names.size === 0) return NOTHING_ELSEWHERE;
    this.#store.settle();
    const statuses = await Promise.all(this.#pushes.splice(0));
    const squares =
      this.#normGroup === undefined
        ? statuses.map(({ sumOfSquares = NaN }) => sumOfSquares)
        : await this.#fetchedSquares(this.#normGroup);
    return { names, sumOfSquares: squares.reduce((sum, one) => sum + one, 0) };
  }

  get lastMessages(): readonly SentMessage[] {
    return this.#messages;
  }

  /** Does not wait for servers: what comes next does, and fails if this does. */
  apply({ scale, lr }: RemoteUpdate): void {
    if (this.#options.names.size === 0) return;
    const onMessage = this.#onMessage;
    const startedMs = onMessage ? wallMs() : 0;
    const call = this.#store.apply({ scale, ...(lr === undefined ? {} : { lr }) });
    this.#applied = call.then(() => onMessage?.('apply', 'apply', startedMs, call.endedMs ?? wallMs()));
    this.#applied.catch(() => undefined);
  }

  get remoteTables(): Exchange['remoteTables'] {
    const { rowBuffers } = this.#options.memory;
    return new Map([...this.#tables].filter(([name]) => rowBuffers.has(name)));
  }

  async fetchAll(average?: string): Promise<void> {
    const { memory } = this.#options;
    await this.#applied;
    if (average !== undefined) await this.#fetchAverage(average);
    const all = this.#keptHere().map((key) => ({ key, into: memory.parameters.get(key)! }));
    if (all.length === 0) return;
    const startedMs = wallMs();
    await this.#store.pull(all);
    if (this.#onMessage) this.#tellOfPull(this.#onMessage, all, startedMs);
  }

  async fetchState(): Promise<void> {
    const { memory } = this.#options;
    await this.#applied;
    for (const name of this.#keptHere()) {
      await this.#store.pullState(name, { ...memory.slots.get(name), ...memory.averagesOf(name) });
    }
  }

  async #fetchAverage(average: string): Promise<void> {
    const slot = averageSlot(average);
    for (const name of this.#keptHere()) {
      const into = this.#options.memory.averagesOf(name)[slot];
      if (into) await this.#store.pullSlot(name, slot, into);
    }
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    try {
      await this.#applied;
    } finally {
      for (const table of this.#tables.values()) table.close();
      await this.#local?.close();
      if (this.#normGroup !== undefined) await this.#options.thread.closeGroup(this.#normGroup);
      await this.#options.servers.close();
    }
  }

  async abort(): Promise<void> {
    if (!this.#isClosed) for (const table of this.#tables.values()) table.close();
    this.#isClosed = true;
    await this.#options.servers.abort();
  }

  /** What goes wrong is said when all are waited for, by `finish`; if that is never called, something else has gone wrong before. */
  #note(
    call: StoreCall<PushStatus | readonly PushStatus[]>,
    group: number,
    keys: readonly { readonly key: string }[],
    bytes: number,
  ): void {
    const startedMs = wallMs();
    const push = call.then((statuses): PushStatus => {
      const endedMs = call.endedMs ?? wallMs();
      this.#messages.push({ group, bytes, startedMs, endedMs });
      this.#onMessage?.('push', `push ${this.#inShort(keys)}`, startedMs, endedMs, bytes);
      return added([statuses].flat());
    });
    push.catch(() => undefined);
    this.#pushes.push(push);
  }

  #tellOfPull(
    onMessage: OnMessage,
    pulled: readonly { readonly key: string; readonly into: Region<'float32'> }[],
    startedMs: number,
  ): void {
    const bytes = pulled.reduce((sum, { into }) => sum + into.byteLength, 0);
    onMessage('pull', `pull ${this.#inShort(pulled)}`, startedMs, wallMs(), bytes);
  }

  #inShort(keys: readonly { readonly key: string }[]): string {
    const names = keys.map(({ key }) => key);
    return namesInShort(names, this.#options.memory.parameters.keys());
  }

  /** Of combined gradients, computed here. */
  async #fetchedSquares(group: number): Promise<number[]> {
    const { memory, kernels, names } = this.#options;
    const startedMs = wallMs();
    const dense = [...names].flatMap((key) => {
      const place = memory.gradients.get(key)!;
      return place.kind === 'dense' ? [{ key, into: place.region }] : [];
    });
    if (dense.length > 0) await this.#store.pullHeld(dense);
    const squares = dense.map(({ into }) => kernels.sumOfSquares(into));
    for (const table of this.#tables.values()) squares.push(await table.sumOfSquares(group));
    this.#onMessage?.('pull', 'pull combined gradients', startedMs, wallMs());
    return squares;
  }

  /** Those that have a place here for all of them. */
  #keptHere(): string[] {
    const { memory, names } = this.#options;
    return [...names].filter((name) => !memory.rowBuffers.has(name));
  }

  /** Dense parameters that cannot be read where the servers have them. */
  #wholeElsewhere(): { readonly key: string; readonly into: Region<'float32'> }[] {
    const { memory, names } = this.#options;
    return [...names].flatMap((key) => {
      const into = memory.parameters.get(key)!;
      return this.#tables.has(key) || isInPlace(this.#store, key, into) ? [] : [{ key, into }];
    });
  }
}

/** Of one parameter; the first worker's values count, where servers do not make them. */
function firstValuesOf(memory: ModelMemory, key: string): KeyInit | SeededKeyInit {
  const buffer = memory.rowBuffers.get(key);
  if (buffer) {
    const { rowLength, tableRows, seed } = buffer;
    const initialiser = buffer.parameter.initialiser as SeededInitialiser;
    return {
      ...{ key, length: tableRows * rowLength, rowLength },
      ...{ initialiser, seed },
    };
  }
  const place = memory.gradients.get(key)!;
  const value = memory.parameters.get(key)!;
  return place.kind === 'sparse' ? { key, value, rowLength: place.rowLength } : { key, value };
}

/** The first worker brings the values, and knows. */
function findsValues(thread: CommunicationThread, own: boolean): boolean {
  return tellAll(thread, [Number(own)], 'whether servers had values').some(([found]) => found === 1);
}

/** What a run goes on from, where the first values are not those of the seed, or others are there. */
function stateOf(
  { memory, firstSlots }: ServerExchangeOptions,
  key: string,
  hasFound: boolean,
): Pick<InitialKeyState, 'slots' | 'value'> {
  const buffer = memory.rowBuffers.get(key);
  if (buffer === undefined) {
    const slots = { ...memory.slots.get(key), ...memory.averagesOf(key) };
    return hasFound ? { slots, value: memory.parameters.get(key)! } : { slots };
  }
  if (buffer.stored) return buffer.stored;
  const first = buffer.firstValues;
  const length = first.length;
  const ofRule = [...firstSlots].map(([slot, value]): [string, ElementSource] => [
    slot,
    { length, read: (_, target) => void target.fill(value) },
  ]);
  const averages = Object.keys(memory.averagesOf(key)).map((slot): [string, ElementSource] => [slot, first]);
  return { value: first, slots: Object.fromEntries([...ofRule, ...averages]) };
}

function added(statuses: readonly PushStatus[]): PushStatus {
  return { sumOfSquares: statuses.reduce((sum, { sumOfSquares = NaN }) => sum + sumOfSquares, 0) };
}

interface DenseList {
  readonly list: readonly { readonly key: string; readonly gradient: Region<'float32'> }[];
  readonly bytes: number;
}

interface PushStatus {
  readonly sumOfSquares?: number | undefined;
}
