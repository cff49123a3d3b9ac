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
import type { LaneHandler, MovedMessage, SparsePlace, StepContext } from '../runtime/index.ts';
import { hasEnded, messageOf } from './collective-exchange.ts';
import { RowsTable } from './collective-tables.ts';

/** Whether there is anything to add up before it travels: several machines, and several workers on one of them. */
export function aggregatesLocally({ world }: CommunicationThread): boolean {
  const machines = new Set(world.hosts).size;
  return machines > 1 && machines < world.size;
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

  static async open(
    thread: CommunicationThread,
    kernels: Kernels,
    places: ReadonlyMap<string, SparsePlace>,
    step: StepContext,
  ): Promise<LocalAggregation> {
    const { hosts, rank } = thread.world;
    const ranks = hosts.flatMap((host, other) => (host === hosts[rank] ? [other] : []));
    const machine = { ranks, group: await thread.group(ranks) };
    const tables = [...places].map(
      ([name, place], i) => [name, new LocalTable(thread, kernels, place, machine, 1 + i, step)] as const,
    );
    return new LocalAggregation(thread, machine, new Map(tables));
  }

  private constructor(
    thread: CommunicationThread,
    machine: Machine,
    tables: ReadonlyMap<string, LocalTable>,
  ) {
    this.#thread = thread;
    this.#machine = machine;
    this.#tables = tables;
  }

  table(name: string): LocalTable | undefined {
    return this.#tables.get(name);
  }

  async close(): Promise<void> {
    await this.#thread.closeGroup(this.#machine.group);
    for (const table of this.#tables.values()) await table.close();
  }
}

/** The workers tell each other how many rows they have, gather them, and the first adds them up. */
export class LocalTable implements LaneHandler {
  readonly #thread: CommunicationThread;
  readonly #kernels: Kernels;
  readonly #table: RowsTable;
  readonly #machine: Machine;
  readonly #step: StepContext;
  readonly #options: OnGroup & { readonly tag: number };
  /** What every worker says of itself: its samples, and its rows. */
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  #told: TimedHandle | undefined;
  #gathered: TimedHandle[] = [];
  #bytes = 0;
  /** That the rows in the table's place count for: 0 on all workers of the machine but the first. Undefined until they are added up. */
  #samples: number | undefined;

  constructor(
    thread: CommunicationThread,
    kernels: Kernels,
    place: SparsePlace,
    machine: Machine,
    tag: number,
    step: StepContext,
  ) {
    this.#thread = thread;
    this.#kernels = kernels;
    this.#machine = machine;
    this.#step = step;
    this.#table = new RowsTable(thread, place);
    this.#options = { group: machine.group, tag };
    this.#own = thread.allocate('int32', 2);
    this.#all = thread.allocate('int32', 2 * machine.ranks.length);
  }

  /** See `#samples`. */
  get samples(): number {
    return this.#samples!;
  }

  start(): void {
    this.#own.view.set([this.#step.samples.length, this.#table.place.count]);
    this.#gathered = [];
    this.#samples = undefined;
    this.#told = this.#thread.allGather(this.#own, this.#all, this.#options);
  }

  hasEnded(): boolean {
    return this.#advance(false);
  }

  wait(): void {
    this.#advance(true);
  }

  get message(): MovedMessage {
    return messageOf([this.#told!, ...this.#gathered], this.#bytes);
  }

  #advance(waits: boolean): boolean {
    if (this.#samples !== undefined) return true;
    if (!hasEnded(this.#told!, waits)) return false;
    const counts = this.#machine.ranks.map((_, i) => this.#all.view[2 * i + 1]!);
    const total = this.#machine.ranks.reduce((sum, _, i) => sum + this.#all.view[2 * i]!, 0);
    if (this.#gathered.length === 0) {
      const share = total === 0 ? 0 : this.#own.view[0]! / total;
      this.#bytes = this.#table.ownBytes;
      this.#gathered = this.#table.gather(this.#thread, this.#kernels, counts, share, this.#options);
    }
    if (!this.#gathered.every((handle) => hasEnded(handle, waits))) return false;
    const isFirst = this.#machine.ranks[0] === this.#thread.world.rank;
    if (isFirst) this.#table.sum(this.#kernels);
    else this.#table.place.count = 0;
    this.#samples = isFirst ? total : 0;
    return true;
  }

  async close(): Promise<void> {
    await this.#table.close(this.#thread);
    await this.#thread.free(this.#own, this.#all);
  }
}
