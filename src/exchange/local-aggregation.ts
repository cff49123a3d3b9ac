/**
 * The workers of a machine add up the rows of their tables before one of them sends the sum to servers (Parallax, section 5.3.2): links
 * between machines carry a row once for each machine that touched it, not once for each worker. Sends nothing itself.
 * Invariants: all workers of a machine call it at the same place of a step; the sums are averages weighted by samples.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { SparsePlace } from '../runtime/index.ts';
import { RowsTable } from './collective-tables.ts';

/** Whether there is anything to add up before it travels: several machines, and several workers on one of them. */
export function aggregatesLocally({ world }: CommunicationThread): boolean {
  const machines = new Set(world.hosts).size;
  return machines > 1 && machines < world.size;
}

export class LocalAggregation {
  readonly #thread: CommunicationThread;
  readonly #kernels: Kernels;
  readonly #group: number;
  readonly #ranks: readonly number[];
  readonly #tables: readonly RowsTable[];
  /** What every worker says of itself: its samples, and its rows of each table. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;

  static async open(
    thread: CommunicationThread,
    kernels: Kernels,
    places: readonly SparsePlace[],
  ): Promise<LocalAggregation> {
    const { hosts, rank } = thread.world;
    const ranks = hosts.flatMap((host, other) => (host === hosts[rank] ? [other] : []));
    return new LocalAggregation(thread, kernels, places, ranks, await thread.group(ranks));
  }

  private constructor(
    thread: CommunicationThread,
    kernels: Kernels,
    places: readonly SparsePlace[],
    ranks: readonly number[],
    group: number,
  ) {
    this.#thread = thread;
    this.#kernels = kernels;
    this.#ranks = ranks;
    this.#group = group;
    this.#tables = places.map((place) => new RowsTable(thread, place));
    const words = 1 + places.length;
    this.#own = thread.allocate('int32', words);
    this.#all = thread.allocate('int32', words * ranks.length);
  }

  /**
   * Blocks. Afterwards the places of the machine's first worker hold the rows of all, those of the others none; returns the
   * samples that they count for.
   */
  combine(samples: number): number {
    if (this.#ranks.length === 1) return samples;
    const onGroup = { group: this.#group };
    this.#own.view.set([samples, ...this.#tables.map(({ place }) => place.count)]);
    this.#thread.allGather(this.#own, this.#all, onGroup).wait();
    const words = this.#own.length;
    const column = (word: number) => this.#ranks.map((_, i) => this.#all.view[i * words + word]!);
    const total = column(0).reduce((sum, one) => sum + one, 0);
    const share = total === 0 ? 0 : samples / total;
    const gathered = this.#tables.map((table, i) =>
      table.gather(this.#thread, this.#kernels, column(1 + i), share, onGroup),
    );
    const isFirst = this.#ranks[0] === this.#thread.world.rank;
    gathered.forEach((handles, i) => {
      for (const handle of handles) handle.wait();
      const table = this.#tables[i]!;
      if (isFirst) table.sum(this.#kernels);
      else table.place.count = 0;
    });
    return isFirst ? total : 0;
  }

  async close(): Promise<void> {
    await this.#thread.closeGroup(this.#group);
    for (const table of this.#tables) await table.close(this.#thread);
    await this.#thread.free(this.#own, this.#all);
  }
}
