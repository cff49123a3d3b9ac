/**
 * Gradients by parameter servers: rows of tables, or whole parameters, are pushed, combined there, and held until all workers know
 * the norm of everything; then the servers update (Parallax, section 3.1). On one host parameters are read in the servers' own
 * memory; between hosts the rows that a batch looks up, and whole parameters, are pulled before it.
 * Invariant: every worker pushes every parameter in every step, one without samples too.
 */
import type { RemoteStore } from '../kvstore/index.ts';
import {
  allocateRowPlan,
  copyRows,
  planRows,
  rowPlanBytes,
  type Kernels,
  type RowPlan,
} from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { GradientsElsewhere, ModelMemory, SparsePlace } from '../runtime/index.ts';
import { NOTHING_ELSEWHERE, type Exchange, type RemoteUpdate, type SentMessage } from './exchange.ts';
import { lookedUp } from './looked-up.ts';
import type { RunServers } from './run-servers.ts';

export interface ServerExchangeOptions {
  /** Closed with this. */
  readonly servers: Pick<RunServers, 'store' | 'close'>;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** Those that live on the servers. */
  readonly names: ReadonlySet<string>;
  readonly groups: readonly (readonly string[])[];
  /** Whether rows that nobody touched have updates to catch up with when they are looked at. */
  readonly hasExactRows: boolean;
}

export class ServerExchange implements Exchange {
  readonly #options: ServerExchangeOptions;
  readonly #store: RemoteStore;
  readonly #tables: ReadonlyMap<string, Table>;
  #groups: readonly (readonly string[])[] = [];
  #samples = 0;
  /** In this step. */
  #pushed = { bytes: 0, startedMs: 0 };
  #lastMessages: SentMessage[] = [];
  #pushes: Promise<{ readonly sumOfSquares?: number | undefined }>[] = [];

  /** Takes the parameters to the servers, with the first worker's values. All workers call it together. */
  static async open(options: ServerExchangeOptions): Promise<ServerExchange> {
    const { servers, memory, names } = options;
    await servers.store.init(
      [...names].map((key) => {
        const place = memory.gradients.get(key)!;
        const value = memory.parameters.get(key)!;
        return place.kind === 'sparse' ? { key, value, rowLength: place.rowLength } : { key, value };
      }),
    );
    for (const name of names) {
      const region = servers.store.value(name);
      if (region) memory.relocate(name, region);
    }
    return new ServerExchange(options);
  }

  private constructor(options: ServerExchangeOptions) {
    this.#options = options;
    this.#store = options.servers.store;
    const { memory, names, groups } = options;
    const sparse = [...names].flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'sparse' ? [[name, new Table(name, place, options)] as const] : [];
    });
    this.#tables = new Map(sparse);
    this.setGroups(groups);
  }

  get groups(): readonly (readonly string[])[] {
    return this.#groups;
  }

  setGroups(groups: readonly (readonly string[])[]): void {
    this.#groups = groups;
  }

  async prepare(batch: number): Promise<void> {
    const whole = this.#wholeElsewhere();
    await Promise.all([
      whole.length > 0 ? this.#store.pull(whole) : undefined,
      ...[...this.#tables.values()].map((table) => table.pull(batch)),
    ]);
  }

  begin(samples: number): void {
    this.#samples = samples;
    this.#pushed = { bytes: 0, startedMs: 0 };
  }

  start(group: number): void {
    const { memory, names } = this.#options;
    const store = this.#store;
    const own = this.#groups[group]!.filter((name) => names.has(name));
    const samples = this.#samples;
    if (own.length > 0) this.#pushed.startedMs ||= performance.timeOrigin + performance.now();
    const dense = own.flatMap((key) => {
      const place = memory.gradients.get(key)!;
      return place.kind === 'dense' ? [{ key, gradient: place.region }] : [];
    });
    for (const { gradient } of dense) this.#pushed.bytes += gradient.byteLength;
    if (dense.length > 0) this.#pushes.push(store.push(dense, { samples }).then(added));
    for (const name of own) {
      const place = memory.gradients.get(name)!;
      if (place.kind !== 'sparse') continue;
      const { plan, count, rows, rowLength } = place;
      const indices = plan.indices.view.slice(0, count);
      this.#pushed.bytes += 4 * count * (rowLength + 1);
      this.#pushes.push(store.pushRows(name, indices, rows.slice(0, count * rowLength), { samples }));
    }
  }

  async finish(): Promise<GradientsElsewhere> {
    const { names } = this.#options;
    if (names.size === 0) return NOTHING_ELSEWHERE;
    const statuses = await Promise.all(this.#pushes.splice(0));
    const endedMs = performance.timeOrigin + performance.now();
    this.#lastMessages = [{ name: 'servers', ...this.#pushed, endedMs }];
    return { names, sumOfSquares: statuses.reduce((sum, one) => sum + (one.sumOfSquares ?? NaN), 0) };
  }

  get lastMessages(): readonly SentMessage[] {
    return this.#lastMessages;
  }

  async apply({ scale, lr }: RemoteUpdate): Promise<void> {
    if (this.#options.names.size > 0) await this.#store.apply({ scale, ...(lr === undefined ? {} : { lr }) });
  }

  async fetchAll(): Promise<void> {
    const { memory, names } = this.#options;
    const all = [...names].map((key) => ({ key, into: memory.parameters.get(key)! }));
    if (all.length > 0) await this.#store.pull(all);
  }

  async close(): Promise<void> {
    for (const table of this.#tables.values()) table.close();
    await this.#store.close();
    await this.#options.servers.close();
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

/** The rows of one table that a batch needs here. */
class Table {
  readonly #name: string;
  readonly #place: SparsePlace;
  readonly #options: ServerExchangeOptions;
  readonly #segment: Segment;
  readonly #plan: RowPlan;
  readonly #indices: Region<'int32'>;
  readonly #pulled: Region<'float32'>;

  constructor(name: string, place: SparsePlace, options: ServerExchangeOptions) {
    this.#name = name;
    this.#place = place;
    this.#options = options;
    const capacity = place.positions.length;
    this.#segment = options.memory.segment.space.allocate(rowPlanBytes(capacity) + 4 * capacity + 64);
    this.#plan = allocateRowPlan(this.#segment, capacity);
    this.#indices = this.#segment.allocate('int32', capacity);
    this.#pulled = options.servers.store.allocate(capacity * place.rowLength);
  }

  close(): void {
    this.#segment.close();
  }

  async pull(batch: number): Promise<void> {
    const { servers, memory, kernels, hasExactRows } = this.#options;
    const { store } = servers;
    const parameter = memory.parameters.get(this.#name)!;
    const isHere = isInPlace(store, this.#name, parameter);
    if (isHere && !hasExactRows) return;
    const { rowLength, tableRows } = this.#place;
    let count = 0;
    for (const { view } of lookedUp(memory, this.#place, batch)!) {
      this.#indices.view.set(view, count);
      count += view.length;
    }
    const unique = planRows(kernels, { indices: this.#indices, count, tableRows, plan: this.#plan });
    const needed = this.#plan.indices.slice(0, unique);
    const rows = this.#pulled.slice(0, unique * rowLength);
    await store.pullRows(this.#name, needed.view.slice(), rows);
    if (!isHere) copyRows(kernels, { target: parameter, into: needed, source: rows, rowLength });
  }
}

function isInPlace(store: RemoteStore, key: string, parameter: Region<'float32'>): boolean {
  return store.value(key)?.byteOffset === parameter.byteOffset;
}

function added(statuses: readonly { readonly sumOfSquares?: number | undefined }[]): {
  sumOfSquares: number;
} {
  return { sumOfSquares: statuses.reduce((sum, { sumOfSquares = NaN }) => sum + sumOfSquares, 0) };
}
