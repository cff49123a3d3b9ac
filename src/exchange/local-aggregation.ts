/**
 * The workers of a machine add up the rows of their tables before one of them sends the sum to
 * servers (Parallax, section 5.3.2): links between machines carry a row once for each machine that
 * touched it, not once for each worker. Sends nothing itself. Invariants: all workers of a machine
 * begin the same tables in a step, each under a tag of its own, so that it does not matter which
 * goes on first; the sums are averages weighted by samples.
 */
import type { CommunicationThread, OnGroup, TimedHandle } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { SparsePlace } from '../runtime/index.ts';
import { RowsTable } from './collective-tables.ts';

/** Whether there is anything to add up before it travels: several machines, and several workers on one of them. */
export function aggregatesLocally({ world }: CommunicationThread): boolean {
  const machines = new Set(world.hosts).size;
  return machines > 1 && machines < world.size;
}

/** A table whose rows are added up. */
export interface Combined {
  readonly name: string;
  /**
   * That the rows count for which are in the table's place now: 0 on all workers of the machine but
   * the first.
   */
  readonly samples: number;
  /** Milliseconds since 1970. */
  readonly startedMs: number;
  readonly endedMs: number;
}

/** The workers of one machine, as a group. */
interface Machine {
  readonly ranks: readonly number[];
  readonly group: number;
}

export class LocalAggregation {
  readonly #thread: CommunicationThread;
  readonly #machine: Machine;
  readonly #tables: ReadonlyMap<string, LocalTable>;
  /** Under way. */
  readonly #begun = new Set<string>();

  static async open(
    thread: CommunicationThread,
    kernels: Kernels,
    places: ReadonlyMap<string, SparsePlace>,
  ): Promise<LocalAggregation> {
    const { hosts, rank } = thread.world;
    const ranks = hosts.flatMap((host, other) => (host === hosts[rank] ? [other] : []));
    return new LocalAggregation(thread, kernels, places, { ranks, group: await thread.group(ranks) });
  }

  private constructor(
    thread: CommunicationThread,
    kernels: Kernels,
    places: ReadonlyMap<string, SparsePlace>,
    machine: Machine,
  ) {
    this.#thread = thread;
    this.#machine = machine;
    this.#tables = new Map(
      [...places].map(([name, place], i) => [name, new LocalTable(thread, kernels, place, machine, 1 + i)]),
    );
  }

  /** The rows of a table are in its place. */
  begin(name: string, samples: number): void {
    this.#tables.get(name)!.begin(samples);
    this.#begun.add(name);
  }

  /**
   * Goes on as far as it can; `waits`: blocks until all is done. Returns the tables that are done
   * since the last call.
   */
  advance(waits: boolean): Combined[] {
    const done: Combined[] = [];
    // All get on their way before any is waited for.
    for (const isWaiting of waits ? [false, true] : [false]) {
      for (const name of [...this.#begun]) {
        const combined = this.#tables.get(name)!.advance(isWaiting);
        if (combined === undefined) continue;
        this.#begun.delete(name);
        done.push({ name, ...combined });
      }
    }
    return done;
  }

  async close(): Promise<void> {
    await this.#thread.closeGroup(this.#machine.group);
    for (const table of this.#tables.values()) await table.close();
  }
}

/** The workers tell each other how many rows they have, gather them, and the first adds them up. */
class LocalTable {
  readonly #thread: CommunicationThread;
  readonly #kernels: Kernels;
  readonly #table: RowsTable;
  readonly #machine: Machine;
  readonly #options: OnGroup & { readonly tag: number };
  /** What every worker says of itself: its samples, and its rows. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  #told: TimedHandle | undefined;
  #gathered: TimedHandle[] = [];

  constructor(
    thread: CommunicationThread,
    kernels: Kernels,
    place: SparsePlace,
    machine: Machine,
    tag: number,
  ) {
    this.#thread = thread;
    this.#kernels = kernels;
    this.#machine = machine;
    this.#table = new RowsTable(thread, place);
    this.#options = { group: machine.group, tag };
    this.#own = thread.allocate('int32', 2);
    this.#all = thread.allocate('int32', 2 * machine.ranks.length);
  }

  begin(samples: number): void {
    this.#own.view.set([samples, this.#table.place.count]);
    this.#told = this.#thread.allGather(this.#own, this.#all, this.#options);
  }

  advance(waits: boolean): Omit<Combined, 'name'> | undefined {
    const told = this.#told!;
    if (!hasEnded(told, waits)) return undefined;
    const counts = this.#machine.ranks.map((_, i) => this.#all.view[2 * i + 1]!);
    const total = this.#machine.ranks.reduce((sum, _, i) => sum + this.#all.view[2 * i]!, 0);
    if (this.#gathered.length === 0) {
      const share = total === 0 ? 0 : this.#own.view[0]! / total;
      this.#gathered = this.#table.gather(this.#thread, this.#kernels, counts, share, this.#options);
    }
    if (!this.#gathered.every((handle) => hasEnded(handle, waits))) return undefined;
    const times = { startedMs: told.times!.startedMs, endedMs: this.#gathered.at(-1)!.times!.endedMs };
    this.#gathered = [];
    const isFirst = this.#machine.ranks[0] === this.#thread.world.rank;
    if (isFirst) this.#table.sum(this.#kernels);
    else this.#table.place.count = 0;
    return { samples: isFirst ? total : 0, ...times };
  }

  async close(): Promise<void> {
    await this.#table.close(this.#thread);
    await this.#thread.free(this.#own, this.#all);
  }
}

function hasEnded(handle: TimedHandle, waits: boolean): boolean {
  if (!waits && !handle.settled) return false;
  // Settled already, it throws what went wrong.
  handle.wait();
  return true;
}
