/**
 * Gradients by parameter servers, as operations of a step program: rows of tables, or whole
 * parameters, are pushed, combined there, and held until all workers know the norm of everything;
 * then the servers update (Parallax, section 3.1). On one host parameters are read in the servers'
 * own memory; between hosts the rows that a batch looks up, and whole parameters, are pulled before
 * it. This owns the memory for it, and what is done with servers between steps.
 * Invariant: every worker pushes every parameter in every step, one without samples too.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { SeededInitialiser, TributaryError } from '../base/index.ts';
import type { ElementSource, InitialKeyState, KeyInit, SeededKeyInit } from '../kvstore/index.ts';
import { tellAll } from './agreement.ts';
import { averageSlot, type KeyOperations, type Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import { namesInShort, type Operation } from '../plan/index.ts';
import type { GradientsElsewhere, LaneHandler, ModelMemory, StepContext } from '../runtime/index.ts';
import { Answer } from './answer.ts';
import { wallMs, type OnMessage, type RemoteTables } from './exchange.ts';
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
  /** Whose samples gradients weigh by, and what clipping leaves of them. */
  readonly step: StepContext;
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

export class ServerExchange {
  readonly #options: ServerExchangeOptions;
  readonly #store: ThreadStore;
  readonly #tables: ReadonlyMap<string, ServerTable>;
  readonly #local: LocalAggregation | undefined;
  /** Of all workers, if they compute norms themselves. */
  readonly #normGroup: number | undefined;
  readonly #whole: readonly { readonly key: string; readonly into: Region<'float32'> }[];
  /** Of this step, in the order of the program. */
  readonly #pushes: Answer<PushStatus | readonly PushStatus[]>[] = [];
  /** Where workers compute the norm themselves: the squares of what they have fetched. */
  #fetchedSquares: Answer<number> | undefined;
  /** Settles when the last update can be read on servers. */
  #applied: Promise<unknown> = Promise.resolve();
  /** Of tables, as the program calls their operation. */
  readonly #pullNames = new Map<string, string>();
  #isClosed = false;
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
    const local = isLocal
      ? await LocalAggregation.open(thread, kernels, new Map(sparse), options.step)
      : undefined;
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
    const { names, boundaryBetweenWorkersAndServers: pullsRowsOnce = true } = options;
    const { thread, memory, kernels, hasExactRows } = options;
    const common = { thread, store, memory, kernels, hasExactRows, pullsRowsOnce };
    const sparse = [...names].flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'sparse' ? [[name, new ServerTable(name, place, common)] as const] : [];
    });
    this.#tables = new Map(sparse);
    this.#whole = Object.freeze(this.#wholeElsewhere());
  }

  /** Parameters that this worker cannot read where the servers have them. */
  get fetched(): readonly string[] {
    const rows = [...this.#tables].flatMap(([name, table]) => (table.fetches ? [name] : []));
    return [...this.#whole.map(({ key }) => key), ...rows];
  }

  /** Combined gradients that are on servers, once all pushes of the step are answered. */
  get elsewhere(): GradientsElsewhere {
    const squares = () =>
      this.#fetchedSquares
        ? this.#fetchedSquares.value
        : this.#pushes.reduce((sum, { value }) => sum + sumOfSquares([value].flat()), 0);
    return {
      names: this.#options.names,
      get sumOfSquares() {
        return squares();
      },
    };
  }

  /** Reports what is fetched outside of a step's operations. */
  traceTo(onMessage: OnMessage): void {
    this.#onMessage = onMessage;
  }

  /** Handlers of one program, in its order; those of the one before are not used any more. */
  handlers(): (operation: Operation) => LaneHandler | undefined {
    this.#pushes.length = 0;
    this.#fetchedSquares = undefined;
    return (operation) => this.#handlerOf(operation);
  }

  #handlerOf({ kind, form, name: shown, parameters = [] }: Operation): LaneHandler | undefined {
    const { memory, step } = this.#options;
    const [name = ''] = parameters;
    const table = this.#tables.get(name);
    switch (kind) {
      case 'pull':
        if (form === 'held') return this.#fetchingSquares();
        // Others may not be able to read what this worker can.
        return this.#answer(
          () => this.#pullWhole(),
          (bytes) => bytes,
        );
      case 'pull rows':
        this.#pullNames.set(name, shown);
        return (
          table &&
          this.#answer(
            () => table.pull(step.samples.length),
            (bytes) => bytes,
          )
        );
      case 'reduce':
        return form === 'rows of a machine' ? this.#local?.table(name) : undefined;
      case 'push': {
        if (form === 'rows') return table && this.#pushing(() => table.push(this.#samplesOf(name)), table);
        const list = Object.freeze(
          parameters.flatMap((key) => {
            const place = memory.gradients.get(key)!;
            return place.kind === 'dense' ? [{ key, gradient: place.region }] : [];
          }),
        );
        const pushedBytes = list.reduce((sum, { gradient }) => sum + gradient.byteLength, 0);
        return this.#pushing(() => this.#store.push(list, { samples: step.samples.length }), { pushedBytes });
      }
      case 'apply':
        return this.#answer(() => this.#apply());
      default:
        return undefined;
    }
  }

  /**
   * Brings the rows of tables that are nowhere else for an evaluation of the batch in the inputs. By
   * any worker, at any time between two steps. `average`: rows of this moving average as well.
   */
  async prepareRows(batch: number, average?: string): Promise<void> {
    const elsewhere = [...this.#tables].filter(([name]) => this.#options.memory.rowBuffers.has(name));
    const pulls = elsewhere.map(async ([name, table]) => {
      const startedMs = wallMs();
      const [bytes] = await Promise.all([
        table.pull(batch),
        average === undefined ? undefined : table.pullAverage(average),
      ]);
      this.#onMessage?.('pull rows', this.#pullNames.get(name) ?? name, startedMs, wallMs(), bytes);
    });
    await Promise.all(pulls);
  }

  /** Tables that are nowhere else, for a checkpoint between two steps. */
  get remoteTables(): RemoteTables {
    const { rowBuffers } = this.#options.memory;
    return new Map([...this.#tables].filter(([name]) => rowBuffers.has(name)));
  }

  /**
   * Brings all that lives on servers here, but for these tables, as for an evaluation or a
   * checkpoint. `average`: this moving average as well.
   */
  async fetchAll(average?: string): Promise<void> {
    const { memory } = this.#options;
    await this.#applied;
    if (average !== undefined) await this.#fetchAverage(average);
    const all = this.#keptHere().map((key) => ({ key, into: memory.parameters.get(key)! }));
    if (all.length === 0) return;
    const startedMs = wallMs();
    await this.#store.pull(all);
    const bytes = all.reduce((sum, { into }) => sum + into.byteLength, 0);
    const names = namesInShort(
      all.map(({ key }) => key),
      memory.parameters.keys(),
    );
    this.#onMessage?.('pull', `pull ${names}`, startedMs, wallMs(), bytes);
  }

  /** The same for its moving averages and what the optimizer keeps of it. */
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

  /** Gives back what this holds. All workers call it; what lives on servers waits for them. */
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

  /** Gives up what this holds without waiting for anybody, as after an error. */
  async abort(): Promise<void> {
    if (!this.#isClosed) for (const table of this.#tables.values()) table.close();
    this.#isClosed = true;
    await this.#options.servers.abort();
  }

  async #pullWhole(): Promise<number> {
    if (this.#whole.length > 0) await this.#store.pull(this.#whole);
    return this.#whole.reduce((sum, { into }) => sum + into.byteLength, 0);
  }

  /** Does not wait for servers: what comes next does, and fails if this does. */
  #apply(): StoreCall<void> {
    const { scale, lr } = this.#options.step;
    const call = this.#store.apply({ scale, ...(lr === undefined ? {} : { lr }) });
    this.#applied = call;
    return call;
  }

  #pushing(
    call: () => StoreCall<PushStatus | readonly PushStatus[]>,
    source: { readonly pushedBytes: number },
  ): LaneHandler {
    const push = this.#answer(call, () => source.pushedBytes);
    this.#pushes.push(push);
    return push;
  }

  /** That its rows count for. */
  #samplesOf(table: string): number {
    return this.#local?.table(table)?.samples ?? this.#options.step.samples.length;
  }

  #answer<T>(ask: () => StoreCall<T>, bytesOf?: (value: T) => number): Answer<T> {
    return new Answer(this.#store, ask, bytesOf);
  }

  /** Of combined gradients, computed here. */
  #fetchingSquares(): LaneHandler {
    return (this.#fetchedSquares = this.#answer(async () => {
      const { memory, kernels, names } = this.#options;
      await Promise.all(this.#pushes.map((push) => push.answered));
      const dense = [...names].flatMap((key) => {
        const place = memory.gradients.get(key)!;
        return place.kind === 'dense' ? [{ key, into: place.region }] : [];
      });
      if (dense.length > 0) await this.#store.pullHeld(dense);
      const squares = dense.map(({ into }) => kernels.sumOfSquares(into));
      for (const table of this.#tables.values()) {
        squares.push(await table.sumOfSquares(this.#normGroup!));
      }
      return squares.reduce((sum, one) => sum + one, 0);
    }));
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

function sumOfSquares(statuses: readonly PushStatus[]): number {
  return statuses.reduce((sum, { sumOfSquares: squares = NaN }) => sum + squares, 0);
}

interface PushStatus {
  readonly sumOfSquares?: number | undefined;
}
