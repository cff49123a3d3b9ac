/**
 * The segments of one peer that are mapped here, by the slots under which the peer announced their names. It checks
 * nothing of regions. Invariants: a segment with users stays mapped; of those without, only the most recently used
 * are kept, so that a peer cannot fill this process's space.
 */
import type { Segment, SharedSpace } from '../../memory/index.ts';

const MAX_MAPPED = 16;

export class ForeignSegment {
  readonly segment: Segment;
  /** Regions handed out and not released. */
  users = 0;
  lastUse = 0;
  /** Its slot has another name now; closed when the last user is gone. */
  retired = false;

  constructor(segment: Segment) {
    this.segment = segment;
  }

  release(): void {
    this.users--;
    if (this.retired && this.users === 0) this.segment.close();
  }
}

export class ForeignSegments {
  readonly #space: SharedSpace;
  readonly #directory: string;
  readonly #names: (string | undefined)[] = [];
  readonly #mapped = new Map<number, ForeignSegment>();
  #clock = 0;

  constructor(space: SharedSpace, directory: string) {
    this.#space = space;
    this.#directory = directory;
  }

  /** Without a name: the peer lends and sends nothing from it any more. */
  announce(slot: number, name: string | undefined): void {
    this.#names[slot] = name;
    this.#unmap(slot);
  }

  nameOf(slot: number): string | undefined {
    return this.#names[slot];
  }

  /** The segment of an announced slot, with one user more; throws what `attachSegment` throws. */
  use(slot: number, name: string): ForeignSegment {
    let foreign = this.#mapped.get(slot);
    if (!foreign) {
      if (this.#mapped.size >= MAX_MAPPED) this.#evict();
      const segment = this.#space.attachSegment(name, { directory: this.#directory });
      foreign = new ForeignSegment(segment);
      this.#mapped.set(slot, foreign);
    }
    foreign.lastUse = ++this.#clock;
    foreign.users++;
    return foreign;
  }

  close(): void {
    for (const foreign of this.#mapped.values()) foreign.segment.close();
    this.#mapped.clear();
  }

  #evict(): void {
    let oldestSlot = -1;
    let oldestUse = Infinity;
    for (const [slot, { users, lastUse }] of this.#mapped) {
      if (users > 0 || lastUse >= oldestUse) continue;
      oldestSlot = slot;
      oldestUse = lastUse;
    }
    if (oldestSlot >= 0) this.#unmap(oldestSlot);
  }

  #unmap(slot: number): void {
    const foreign = this.#mapped.get(slot);
    if (!foreign) return;
    this.#mapped.delete(slot);
    foreign.retired = true;
    if (foreign.users === 0) foreign.segment.close();
  }
}
