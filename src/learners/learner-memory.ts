/**
 * What learners, their server and their watchdog share, in one segment: the board, the words by which they tell each other
 * to go on or to stop, locks, what lies in gradient slots, what each learner has done so far, and the weights. Lays out
 * and counts; decides nothing. Invariant: every process with the same layout finds the same bytes in the same places.
 */
import { futexWait, futexWake } from '../memory/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import { Board, sharedWords } from './board.ts';
import type { BoardShape, Identity } from './board.ts';

export interface LearnerLayout {
  readonly board: BoardShape;
  /** Parameters with a gradient, each of which has a lock. */
  readonly parameters: number;
  readonly weightBytes: number;
}

/** Of one learner number, over all processes that had it. */
export interface LearnerTally {
  readonly batches: number;
  readonly samples: number;
  /** Sum of the losses of its batches, each weighing by its samples. */
  readonly loss: number;
  /** Sum over its batches of the updates by others between reading the weights and applying the gradient. */
  readonly staleness: number;
}

const TALLIES = ['batches', 'samples', 'loss', 'staleness'] as const;
/** Each on a line of its own: they are written by different processes. */
const WORDS_A_LINE = 16;
const NUMBERS_A_LINE = 8;
const [VERSION, STOP, BELL, CONTROL_LINES] = [0, 1, 2, 3] as const;
const TRIES_BEFORE_SLEEP = 200;
const LOCK_SLEEP_MS = 1;

export class LearnerMemory {
  readonly board: Board;
  readonly #space: SharedSpace;
  readonly #segment: Segment;
  readonly #layout: LearnerLayout;
  readonly #control: Region<'int32'>;
  readonly #locks: Region<'int32'>;
  readonly #slots: Region<'int32'>;
  readonly #tallies: Region<'float64'>;
  readonly #weights: Region<'uint8'>;

  private constructor(space: SharedSpace, segment: Segment, layout: LearnerLayout) {
    const { board: shape, parameters, weightBytes } = layout;
    this.#space = space;
    this.#segment = segment;
    this.#layout = layout;
    this.#control = segment.allocate('int32', CONTROL_LINES * WORDS_A_LINE);
    this.#locks = segment.allocate('int32', Math.max(1, parameters) * WORDS_A_LINE);
    this.#slots = segment.allocate('int32', Math.max(1, shape.learners * shape.slots * slotWords(layout)));
    // The last one is the server's.
    this.#tallies = segment.allocate('float64', (shape.learners + 1) * NUMBERS_A_LINE);
    this.board = new Board(sharedWords(segment.allocate('int32', Board.words(shape)).view), shape);
    this.#weights = segment.allocate('uint8', weightBytes);
  }

  static create(space: SharedSpace, name: string, layout: LearnerLayout): LearnerMemory {
    const { board: shape, parameters, weightBytes } = layout;
    const words =
      (CONTROL_LINES + Math.max(1, parameters)) * WORDS_A_LINE +
      Math.max(1, shape.learners * shape.slots * slotWords(layout)) +
      Board.words(shape);
    const bytes = 4 * words + 8 * NUMBERS_A_LINE * (shape.learners + 1) + 6 * 64 + weightBytes;
    return new LearnerMemory(space, space.createSegment(name, bytes), layout);
  }

  static attach(space: SharedSpace, name: string, layout: LearnerLayout): LearnerMemory {
    return new LearnerMemory(space, space.attachSegment(name), layout);
  }

  /** The weights, to be laid out from their start. */
  weights(): Segment {
    const { byteOffset, byteLength } = this.#weights;
    return this.#space.adoptSegment({ byteOffset, byteLength });
  }

  /** Updates that the weights have seen, or are seeing. */
  get version(): number {
    return Atomics.load(this.#control.view, VERSION * WORDS_A_LINE);
  }

  set version(version: number) {
    Atomics.store(this.#control.view, VERSION * WORDS_A_LINE, version);
  }

  /** Counts one more update; returns its number, from 1. */
  countUpdate(): number {
    return Atomics.add(this.#control.view, VERSION * WORDS_A_LINE, 1) + 1;
  }

  get isStopped(): boolean {
    return Atomics.load(this.#control.view, STOP * WORDS_A_LINE) !== 0;
  }

  /** Everybody ends after the batch that they are at. */
  stop(): void {
    Atomics.store(this.#control.view, STOP * WORDS_A_LINE, 1);
    this.ring();
  }

  /** Wakes everybody who waits. */
  ring(): void {
    Atomics.add(this.#control.view, BELL * WORDS_A_LINE, 1);
    futexWake(this.#control, BELL * WORDS_A_LINE, Infinity);
  }

  get heard(): number {
    return Atomics.load(this.#control.view, BELL * WORDS_A_LINE);
  }

  /** Sleeps until somebody rings after `heard` was read, at most so long. */
  sleep(heard: number, timeoutMs: number): void {
    futexWait(this.#control, BELL * WORDS_A_LINE, heard, timeoutMs);
  }

  /** Runs something while nobody else holds the lock of a parameter. Who dies in between is noticed by the watchdog. */
  whileLocked(self: Identity, parameter: number, act: () => void): void {
    const at = parameter * WORDS_A_LINE;
    for (let tries = 1; ; tries++) {
      const holder = Atomics.compareExchange(this.#locks.view, at, 0, holderWord(self));
      if (holder === 0) break;
      if (tries % TRIES_BEFORE_SLEEP === 0) futexWait(this.#locks, at, holder, LOCK_SLEEP_MS);
    }
    try {
      act();
    } finally {
      Atomics.compareExchange(this.#locks.view, at, holderWord(self), 0);
    }
  }

  /** Watchdog, when the process is surely dead: what it held is free. Returns the parameters whose locks it held. */
  releaseLocks(dead: Identity): number[] {
    return Array.from({ length: this.#layout.parameters }, (_, parameter) => parameter).filter(
      (parameter) =>
        Atomics.compareExchange(this.#locks.view, parameter * WORDS_A_LINE, holderWord(dead), 0) ===
        holderWord(dead),
    );
  }

  /** What the gradient in a slot is: words for the version it was computed from, and the rows of each sparse one. */
  slotFacts(learner: number, slot: number): Int32Array {
    const words = slotWords(this.#layout);
    const at = (learner * this.#layout.board.slots + slot) * words;
    return this.#slots.view.subarray(at, at + words);
  }

  /** One writer for each learner number. */
  count(learner: number, more: LearnerTally): void {
    TALLIES.forEach((name, i) => {
      this.#tallies.view[learner * NUMBERS_A_LINE + i]! += more[name];
    });
  }

  /** By the server, which alone knows it when it applies what learners have counted. */
  countStaleness(staleness: number): void {
    this.count(this.#layout.board.learners, { batches: 0, samples: 0, loss: 0, staleness });
  }

  /** Of all learners, and of the server. */
  total(): LearnerTally {
    const all = Array.from({ length: this.#layout.board.learners + 1 }, (_, number) => this.tallyOf(number));
    const sum = (name: (typeof TALLIES)[number]) => all.reduce((total, one) => total + one[name], 0);
    return {
      ...{ batches: sum('batches'), samples: sum('samples'), loss: sum('loss') },
      staleness: sum('staleness'),
    };
  }

  tallyOf(learner: number): LearnerTally {
    const at = learner * NUMBERS_A_LINE;
    const entries = TALLIES.map((name, i) => [name, this.#tallies.view[at + i]!] as const);
    return Object.fromEntries(entries) as unknown as LearnerTally;
  }

  close(): void {
    this.#segment.close();
  }
}

function slotWords({ parameters }: LearnerLayout): number {
  return Math.ceil((1 + parameters) / WORDS_A_LINE) * WORDS_A_LINE;
}

function holderWord({ number, generation }: Identity): number {
  return (number + 1) | (generation << 10);
}
