/**
 * The segments that the ranks of a lane lend from: each rank keeps a small table of names in the lane; the others map a
 * segment when they first meet it. Invariant: a mapping is used only for the version it was made for; a peer's
 * entries are checked before they are believed.
 */
import type { DType, Region, Segment, SharedSpace } from '../../memory/index.ts';
import { MAX_NAME_BYTES, nameWord, NameWord, SEGMENTS } from './layout.ts';

interface Mapped {
  readonly version: number;
  readonly segment: Segment;
}

export class LentSegments {
  readonly #space: SharedSpace;
  readonly #words: Int32Array;
  readonly #rank: number;
  readonly #own = new Map<Segment, number>();
  readonly #owners: (Segment | undefined)[] = [];
  readonly #mapped = new Map<number, Mapped>();
  #next = 0;

  constructor(space: SharedSpace, words: Int32Array, rank: number) {
    this.#space = space;
    this.#words = words;
    this.#rank = rank;
  }

  /** The place of a segment of this rank in its table. */
  indexOf(segment: Segment): number {
    this.#withdrawClosed();
    const known = this.#own.get(segment);
    if (known !== undefined) return known;
    const index = this.#next++ % SEGMENTS;
    const before = this.#owners[index];
    if (before) this.#own.delete(before);
    this.#owners[index] = segment;
    this.#own.set(segment, index);
    const at = nameWord(this.#rank, index);
    const name = Buffer.from(segment.name!, 'latin1');
    new Uint8Array(this.#words.buffer, this.#words.byteOffset + (at + NameWord.NAME) * 4, name.length).set(
      name,
    );
    this.#words[at + NameWord.BYTES] = name.length;
    this.#words[at + NameWord.VERSION]!++;
    return index;
  }

  versionOf(index: number): number {
    return this.#words[nameWord(this.#rank, index) + NameWord.VERSION]!;
  }

  /** A region of a peer's segment, mapped here; throws if there is none. */
  regionOf(
    rank: number,
    index: number,
    version: number,
    dtype: DType,
    offset: number,
    length: number,
  ): Region {
    const key = rank * SEGMENTS + (index & (SEGMENTS - 1));
    this.#letGoOfWithdrawn(rank);
    let mapped = this.#mapped.get(key);
    if (mapped?.version !== version) {
      mapped?.segment.close();
      this.#mapped.delete(key);
      mapped = { version, segment: this.#space.attachSegment(this.#nameOf(rank, index & (SEGMENTS - 1))) };
      this.#mapped.set(key, mapped);
    }
    return mapped.segment.region(dtype, offset >>> 0, length);
  }

  close(): void {
    for (const { segment } of this.#mapped.values()) segment.close();
    this.#mapped.clear();
  }

  /** Nothing is lent from a closed segment any more: a new version tells the others so. */
  #withdrawClosed(): void {
    this.#owners.forEach((owner, index) => {
      if (!owner?.closed) return;
      this.#own.delete(owner);
      this.#owners[index] = undefined;
      this.#words[nameWord(this.#rank, index) + NameWord.VERSION]!++;
    });
  }

  #letGoOfWithdrawn(rank: number): void {
    for (let index = 0; index < SEGMENTS; index++) {
      const key = rank * SEGMENTS + index;
      const mapped = this.#mapped.get(key);
      if (!mapped || mapped.version === this.#words[nameWord(rank, index) + NameWord.VERSION]) continue;
      mapped.segment.close();
      this.#mapped.delete(key);
    }
  }

  #nameOf(rank: number, index: number): string {
    const at = nameWord(rank, index);
    const bytes = Math.min(Math.max(0, this.#words[at + NameWord.BYTES]!), MAX_NAME_BYTES);
    const start = this.#words.byteOffset + (at + NameWord.NAME) * 4;
    return Buffer.from(new Uint8Array(this.#words.buffer, start, bytes)).toString('latin1');
  }
}
