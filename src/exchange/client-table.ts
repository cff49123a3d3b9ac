/**
 * One table on servers as a client sees it: the rows that a batch of the client looks up are pulled
 * by its first worker and shared, the rows of its gradient pushed. Where the model computes which
 * rows it looks up, the whole table is pulled: that follows from the model, not from the batch, so
 * that all workers do the same. Invariant: all workers of the client have the same rows afterwards.
 */
import type { CommunicationThread } from '../communication/index.ts';
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
import type { ModelMemory, SparsePlace } from '../runtime/index.ts';
import type { SomeWorkers } from './agreement.ts';
import type { ClientLink } from './client-link.ts';
import { lookedUp } from './looked-up.ts';

export interface ClientTableOptions {
  readonly thread: CommunicationThread;
  readonly link: ClientLink;
  /** Of the first worker of the client. */
  readonly store: RemoteStore | undefined;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** The first workers of all clients, for one of them that needs the rows of all. */
  readonly leaders: SomeWorkers | undefined;
}

export class ClientTable {
  readonly name: string;
  readonly #place: SparsePlace;
  readonly #options: ClientTableOptions;
  readonly #isKnown: boolean;
  readonly #segment: Segment;
  readonly #plan: RowPlan;
  readonly #own: Region<'int32'>;
  readonly #gathered: Region<'int32'>;
  readonly #rows: Region<'float32'>;
  readonly #count: Region<'int32'>;
  readonly #counts: Region<'int32'>;

  constructor(name: string, place: SparsePlace, options: ClientTableOptions) {
    this.name = name;
    this.#place = place;
    this.#options = options;
    const { thread, memory, link, leaders } = options;
    this.#isKnown = lookedUp(memory, place, 1) !== undefined;
    const { capacity } = place.plan;
    this.#segment = memory.segment.space.allocate(rowPlanBytes(capacity));
    this.#plan = allocateRowPlan(this.#segment, capacity);
    this.#own = thread.allocate('int32', place.positions.length);
    this.#gathered = thread.allocate('int32', capacity);
    this.#rows = thread.allocate('float32', capacity * place.rowLength);
    this.#count = thread.allocate('int32', 1);
    this.#counts = thread.allocate('int32', Math.max(link.workers.size, leaders?.size ?? 1));
  }

  /** What `init` is told of it. */
  get rowLength(): number {
    return this.#place.rowLength;
  }

  /** Brings the rows here that the client's batch in the inputs looks up. */
  async pull(batch: number): Promise<void> {
    const { memory, kernels, link, store } = this.#options;
    const parameter = memory.parameters.get(this.name)!;
    if (!this.#isKnown) {
      await link.lead(() => store!.pull({ key: this.name, into: parameter }));
      return link.share([parameter]);
    }
    const count = await this.#union(this.#lookedUpBy(batch), link.workers);
    if (count === 0) return;
    const { rowLength } = this.#place;
    const rows = this.#rows.slice(0, count * rowLength);
    const indices = this.#plan.indices.slice(0, count);
    await link.lead(() => store!.pullRows(this.name, indices.view.slice(), rows));
    await link.share([rows]);
    copyRows(kernels, { target: parameter, into: indices, source: rows, rowLength });
  }

  /** By the first worker of the client: the rows of its gradient. */
  async push(options: Parameters<RemoteStore['pushRows']>[3]): Promise<void> {
    const { plan, count, rows, rowLength } = this.#place;
    const own = options?.isSkipped ? 0 : count;
    const indices = plan.indices.view.slice(0, own);
    await this.#options.store!.pushRows(this.name, indices, rows.slice(0, own * rowLength), options);
  }

  /**
   * By the first worker: the combined rows of all clients, which have all pushed theirs, in the
   * place of its gradient.
   */
  async pullSum(isSkipped: boolean): Promise<void> {
    const { store, leaders } = this.#options;
    const { plan, rowLength, rows } = this.#place;
    const own = plan.indices.slice(0, isSkipped ? 0 : this.#place.count);
    const count = await this.#union(own, leaders!);
    plan.indices.slice(0, count).view.set(this.#plan.indices.view.subarray(0, count));
    this.#place.count = count;
    if (count === 0) return;
    const combined = rows.slice(0, count * rowLength);
    await store!.pullRows(this.name, plan.indices.view.slice(0, count), combined);
  }

  /** The first worker's combined rows are those of all workers of the client. */
  async shareSum(): Promise<void> {
    const { link } = this.#options;
    const { plan, rowLength, rows } = this.#place;
    this.#count.view[0] = this.#place.count;
    await link.share([this.#count]);
    const count = (this.#place.count = this.#count.view[0]);
    await link.share([plan.indices.slice(0, count), rows.slice(0, count * rowLength)]);
  }

  async close(): Promise<void> {
    this.#segment.close();
    await this.#options.thread.free(this.#own, this.#gathered, this.#rows, this.#count, this.#counts);
  }

  #lookedUpBy(batch: number): Region<'int32'> {
    if (batch === 0) return this.#own.slice(0, 0);
    let count = 0;
    for (const { view } of lookedUp(this.#options.memory, this.#place, batch)!) {
      this.#own.view.set(view, count);
      count += view.length;
    }
    return this.#own.slice(0, count);
  }

  /** How many rows some workers need together; they are in the plan, ascending. */
  async #union(own: Region<'int32'>, { group, size }: SomeWorkers): Promise<number> {
    const { thread, kernels } = this.#options;
    const { tableRows } = this.#place;
    if (size === 1) {
      this.#gathered.view.set(own.view);
      return planRows(kernels, { indices: this.#gathered, count: own.length, tableRows, plan: this.#plan });
    }
    this.#count.view[0] = own.length;
    const counts = this.#counts.slice(0, size);
    await thread.allGather(this.#count, counts, { group });
    const each = [...counts.view];
    const total = each.reduce((sum, one) => sum + one, 0);
    if (total === 0) return 0;
    await thread.allGather(own, this.#gathered.slice(0, total), { group, counts: each });
    return planRows(kernels, { indices: this.#gathered, count: total, tableRows, plan: this.#plan });
  }
}
