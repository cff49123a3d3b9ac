/**
 * Where independent copies wait for each other behind every step, if they are to keep in step: the least that any training in lock step
 * costs on this machine, whatever it exchanges and however. A word of shared memory that all count up; waiting is looking.
 * Invariant: nobody passes the n-th meeting before all have come to it.
 */
import { PeerError } from '../../base/index.ts';
import { SharedSpace, type Segment } from '../../memory/index.ts';

export interface MeetingPlaceOptions {
  /** Of the segment; the first copy makes it. */
  readonly name: string;
  readonly index: number;
  readonly count: number;
}

/** The turns in which copies meet behind every step. */
export const IN_STEP = 'in-step';

const LONGEST_MS = 60_000;
const LOOKS_A_CLOCK = 1024;

export class MeetingPlace {
  readonly #options: MeetingPlaceOptions;
  readonly #segment: Segment;
  readonly #arrived: Int32Array;
  #meetings = 0;

  constructor(options: MeetingPlaceOptions) {
    this.#options = options;
    const space = SharedSpace.create({ maxBytes: 2 ** 20 });
    const { name, index } = options;
    this.#segment = index === 0 ? space.createSegment(name, 64) : space.attachSegment(name);
    this.#arrived = this.#segment.allocate('int32', 1).view;
  }

  /** Returns when all have come. */
  meet(): void {
    const all = ++this.#meetings * this.#options.count;
    Atomics.add(this.#arrived, 0, 1);
    const startedMs = performance.now();
    for (let looks = 1; Atomics.load(this.#arrived, 0) < all; looks++) {
      if (looks % LOOKS_A_CLOCK !== 0 || performance.now() - startedMs < LONGEST_MS) continue;
      const { index, count } = this.#options;
      throw new PeerError(
        'PEER_LOST',
        `copy ${index + 1} of ${count} has waited ${LONGEST_MS} ms for the others behind step ${this.#meetings}; look at what they say`,
        { index, count },
      );
    }
  }

  close(): void {
    this.#segment.close();
  }
}
