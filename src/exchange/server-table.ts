/**
 * One table whose rows live on servers, as this worker sees it: the rows that a batch looks up are
 * pulled before the forward pass, and the rows of its gradient pushed when they are there, while
 * the backward pass goes on. When is the business of `server-exchange.ts`.
 */
import type { CommunicationThread } from '../communication/index.ts';
import {
  allocateRowPlan,
  averageSlot,
  copyRows,
  planRows,
  rowPlanBytes,
  type Kernels,
  type RowPlan,
} from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { ModelMemory, SparsePlace } from '../runtime/index.ts';
import type { RemoteTable } from './exchange.ts';
import { lookedUp } from './looked-up.ts';
import { PIECE_ELEMENTS, type StoreCall, type ThreadStore } from './thread-store.ts';

export interface ServerTableOptions {
  readonly thread: CommunicationThread;
  readonly store: ThreadStore;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** Whether rows that nobody touched have updates to catch up with when they are looked at. */
  readonly hasExactRows: boolean;
  /** Whether a row that a batch looks up several times is pulled once; otherwise once for each lookup. */
  readonly pullsRowsOnce: boolean;
}

export class ServerTable implements RemoteTable {
  readonly #name: string;
  readonly #place: SparsePlace;
  readonly #options: ServerTableOptions;
  /** For rows that are copied into a table of this worker. */
  readonly #room: RoomForPulled | undefined;
  #all: RoomForAll | undefined;

  constructor(name: string, place: SparsePlace, options: ServerTableOptions) {
    this.#name = name;
    this.#place = place;
    this.#options = options;
    this.#room = options.memory.rowBuffers.has(name) ? undefined : this.#roomForPulled();
  }

  /** Of what the next push hands over. */
  get pushedBytes(): number {
    const { count, rowLength } = this.#place;
    return 4 * count * (1 + rowLength);
  }

  /** Whether `pull` has to ask the servers. */
  get fetches(): boolean {
    const { store, memory, hasExactRows } = this.#options;
    return hasExactRows || !isInPlace(store, this.#name, memory.parameters.get(this.#name)!);
  }

  /** Brings the rows here that the batch in the inputs looks up. Returns their bytes. */
  async pull(batch: number): Promise<number> {
    const { store, memory, kernels, hasExactRows } = this.#options;
    const parameter = memory.parameters.get(this.#name)!;
    const buffer = memory.rowBuffers.get(this.#name);
    const { rowLength } = this.#place;
    if (buffer) {
      return this.#fetch(buffer.indices, parameter.slice(0, buffer.count * rowLength));
    }
    const isHere = isInPlace(store, this.#name, parameter);
    if (isHere && !hasExactRows) return 0;
    const needed = this.#needed(batch);
    const rows = this.#room!.pulled.slice(0, needed.length * rowLength);
    const bytes = await this.#fetch(needed.view.slice(), rows);
    if (!isHere) copyRows(kernels, { target: parameter, into: needed, source: rows, rowLength });
    return bytes;
  }

  /** Of a table that is on servers only: rows of a moving average that the batch looks up. */
  async pullAverage(average: string): Promise<void> {
    const { store, memory } = this.#options;
    const { indices, count } = memory.rowBuffers.get(this.#name)!;
    const into = memory.averages.get(average)?.get(this.#name);
    if (!into) return;
    const rows = into.slice(0, count * this.#place.rowLength);
    await store.pullRows(this.#name, indices, rows, averageSlot(average));
  }

  /** Settles when the rows of all workers are combined. */
  push(samples: number): StoreCall<{ readonly sumOfSquares?: number | undefined }> {
    const { plan, count, rows, rowLength } = this.#place;
    const indices = plan.indices.view.slice(0, count);
    return this.#options.store.pushRows(this.#name, indices, rows.slice(0, count * rowLength), { samples });
  }

  /** Fetches the combined gradient, whosever rows are in it, and adds up its squares. `group` is one of all workers. */
  async sumOfSquares(group: number): Promise<number> {
    const { thread, store, kernels } = this.#options;
    const { plan: ownPlan, count, rowLength, tableRows } = this.#place;
    const { own, all, indices, plan, rows } = (this.#all ??= this.#roomForAll());
    own.view[0] = count;
    await thread.allGather(own, all, { group });
    const counts = [...all.view];
    const total = counts.reduce((sum, one) => sum + one, 0);
    if (total === 0) return 0;
    await thread.allGather(ownPlan.indices.slice(0, count), indices.slice(0, total), { group, counts });
    const unique = planRows(kernels, { indices, count: total, tableRows, plan });
    const combined = rows.slice(0, unique * rowLength);
    await store.pullHeldRows(this.#name, plan.indices.view.slice(0, unique), combined);
    return kernels.sumOfSquares(combined);
  }

  *pieces(slot?: string): Generator<Promise<Region<'float32'>>, void> {
    const { store, memory } = this.#options;
    const elements = this.#place.tableRows * this.#place.rowLength;
    const segment = memory.segment.space.allocate(4 * Math.min(elements, PIECE_ELEMENTS) + 64);
    try {
      const room = segment.allocate('float32', Math.min(elements, PIECE_ELEMENTS));
      for (let first = 0; first < elements; first += PIECE_ELEMENTS) {
        const piece = room.slice(0, Math.min(PIECE_ELEMENTS, elements - first));
        yield store.pullElements(this.#name, first, piece, slot).then(() => piece);
      }
    } finally {
      segment.close();
    }
  }

  close(): void {
    this.#room?.segment.close();
    this.#all?.segment.close();
  }

  async #fetch(indices: Int32Array, into: Region<'float32'>): Promise<number> {
    await this.#options.store.pullRows(this.#name, indices, into);
    return into.byteLength;
  }

  /** The rows that the batch looks up. */
  #needed(batch: number): Region<'int32'> {
    const { memory, kernels, pullsRowsOnce } = this.#options;
    const { indices, plan } = this.#room!;
    let count = 0;
    for (const { view } of lookedUp(memory, this.#place, batch)!) {
      indices.view.set(view, count);
      count += view.length;
    }
    if (!pullsRowsOnce) return indices.slice(0, count);
    const unique = planRows(kernels, { indices, count, tableRows: this.#place.tableRows, plan });
    return plan.indices.slice(0, unique);
  }

  #roomForPulled(): RoomForPulled {
    const { memory, store } = this.#options;
    const { rowLength, positions } = this.#place;
    const capacity = positions.length;
    const segment = memory.segment.space.allocate(rowPlanBytes(capacity) + 4 * capacity + 64);
    const plan = allocateRowPlan(segment, capacity);
    return {
      ...{ segment, plan, indices: segment.allocate('int32', capacity) },
      pulled: store.allocate(capacity * rowLength),
    };
  }

  #roomForAll(): RoomForAll {
    const { thread, store, memory } = this.#options;
    const { plan, rowLength } = this.#place;
    const { capacity } = plan;
    const segment = memory.segment.space.allocate(rowPlanBytes(capacity));
    return {
      segment,
      own: thread.allocate('int32', 1),
      all: thread.allocate('int32', thread.world.size),
      plan: allocateRowPlan(segment, capacity),
      indices: thread.allocate('int32', capacity),
      rows: store.allocate(capacity * rowLength),
    };
  }
}

interface RoomForPulled {
  readonly segment: Segment;
  readonly plan: RowPlan;
  readonly indices: Region<'int32'>;
  readonly pulled: Region<'float32'>;
}

/** For the rows of all workers. */
interface RoomForAll {
  readonly segment: Segment;
  /** How many each worker pushed. */
  readonly own: Region<'int32'>;
  readonly all: Region<'int32'>;
  readonly plan: RowPlan;
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
}

/** Whether a parameter is read where its server has it. */
export function isInPlace(store: ThreadStore, key: string, parameter: Region<'float32'>): boolean {
  return store.value(key)?.byteOffset === parameter.byteOffset;
}
