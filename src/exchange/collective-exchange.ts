/**
 * Gradients by collectives alone: dense ones by an allreduce for each group, which runs in the communication thread while the next
 * group is computed; rows of tables by an allgather, of which every worker makes the same sum (Parallax, section 3.1).
 * Averages weigh by samples, so that unequal shares of a batch count as they should.
 * Invariant: collectives are started in the same order on all workers.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { planRows, sumRows } from '../kernels/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle } from '../progress/index.ts';
import type { ModelMemory, SparsePlace } from '../runtime/index.ts';
import type { Exchange } from './exchange.ts';

export interface CollectiveExchangeOptions {
  readonly thread: CommunicationThread;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  readonly groups: readonly (readonly string[])[];
}

export class CollectiveExchange implements Exchange {
  readonly #thread: CommunicationThread;
  readonly #memory: ModelMemory;
  readonly #kernels: Kernels;
  readonly #tables: readonly Table[];
  /** What every rank says of itself before rows travel: its samples, and its rows of each table. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  readonly #handles: Handle[] = [];
  #groups: readonly (readonly string[])[] = [];
  /** The dense gradients of each group, as one message; the first also holds the loss. */
  #messages: readonly (Region<'float32'> | undefined)[] = [];
  #samples = 0;
  #told: Handle | undefined;

  constructor({ thread, memory, kernels, groups }: CollectiveExchangeOptions) {
    this.#thread = thread;
    this.#memory = memory;
    this.#kernels = kernels;
    this.#tables = [...memory.gradients.values()].flatMap((place) =>
      place.kind === 'sparse' ? [new Table(thread, place)] : [],
    );
    const words = 1 + this.#tables.length;
    this.#own = thread.allocate('int32', words);
    this.#all = thread.allocate('int32', words * thread.world.size);
    this.setGroups(groups);
  }

  get groups(): readonly (readonly string[])[] {
    return this.#groups;
  }

  setGroups(groups: readonly (readonly string[])[]): void {
    this.#groups = groups;
    this.#messages = groups.map((names, group) => messageOf(this.#memory, names, group === 0));
  }

  begin(samples: number): void {
    this.#samples = samples;
    this.#own.view[0] = samples;
  }

  start(group: number): void {
    const message = this.#messages[group];
    if (message) {
      this.#handles.push(this.#thread.allReduce(message, { op: 'mean', weight: this.#samples }));
    }
    if (group === this.#groups.length - 1 && this.#tables.length > 0) {
      this.#tables.forEach(({ place }, i) => (this.#own.view[1 + i] = place.count));
      this.#told = this.#thread.allGather(this.#own, this.#all);
    }
  }

  finish(): void {
    if (this.#told) this.#exchangeRows(this.#told);
    for (const handle of this.#handles.splice(0)) handle.wait();
  }

  #exchangeRows(told: Handle): void {
    told.wait();
    this.#told = undefined;
    const words = this.#own.length;
    const { size } = this.#thread.world;
    const column = (word: number) =>
      Array.from({ length: size }, (_, rank) => this.#all.view[rank * words + word]!);
    const samples = column(0).reduce((sum, one) => sum + one, 0);
    const gathered = this.#tables.map((table, i) => {
      const { place } = table;
      const own = place.rows.slice(0, place.count * place.rowLength);
      if (own.length > 0) this.#kernels.scale(own, this.#samples / samples);
      return table.gather(this.#thread, column(1 + i));
    });
    gathered.forEach((handles, i) => {
      for (const handle of handles) handle.wait();
      this.#tables[i]!.sum(this.#kernels);
    });
  }
}

/** One table's rows of all ranks. */
class Table {
  readonly place: SparsePlace;
  readonly #indices: Region<'int32'>;
  readonly #rows: Region<'float32'>;
  #count = 0;

  constructor(thread: CommunicationThread, place: SparsePlace) {
    this.place = place;
    const capacity = place.plan.capacity;
    this.#indices = thread.allocate('int32', capacity);
    this.#rows = thread.allocate('float32', capacity * place.rowLength);
  }

  gather(thread: CommunicationThread, counts: readonly number[]): Handle[] {
    const { place } = this;
    const { rowLength } = place;
    this.#count = counts.reduce((sum, count) => sum + count, 0);
    const [indices, rows] = [
      this.#indices.slice(0, this.#count),
      this.#rows.slice(0, this.#count * rowLength),
    ];
    return [
      thread.allGather(place.plan.indices.slice(0, place.count), indices, { counts }),
      thread.allGather(place.rows.slice(0, place.count * rowLength), rows, {
        counts: counts.map((count) => count * rowLength),
      }),
    ];
  }

  /** In the order of the ranks: the same bits everywhere. */
  sum(kernels: Kernels): void {
    const { place } = this;
    const { plan, rowLength, tableRows, rows: rowsOut } = place;
    place.count = planRows(kernels, { indices: this.#indices, count: this.#count, tableRows, plan });
    sumRows(kernels, { plan, unique: place.count, rows: this.#rows, rowLength, rowsOut });
  }
}

/** From the first gradient's line to the last one's end, which is one piece since backward's order is memory's. */
function messageOf(
  memory: ModelMemory,
  names: readonly string[],
  withLoss: boolean,
): Region<'float32'> | undefined {
  const regions = names.flatMap((name) => {
    const place = memory.gradients.get(name)!;
    return place.kind === 'dense' ? [place.region] : [];
  });
  if (withLoss) regions.unshift(memory.loss);
  const [first, last] = [regions[0], regions.at(-1)];
  if (!first || !last) return undefined;
  const start = (first.byteOffset - memory.exchanged.byteOffset) / 4;
  return memory.exchanged.slice(start, (last.byteOffset + last.byteLength - first.byteOffset) / 4);
}
