/**
 * What learners, their server and their watchdog share, in one segment: the board, the words by which they tell each other
 * to go on or to stop, locks, what lies in gradient slots, the loss of each batch, how much each process has done, and the
 * weights. Lays out and counts; decides nothing. Invariant: every process with the same layout finds the same bytes in the same places.
 */
import { PeerError } from '../base/index.ts';
import { futexWait, futexWake, REGION_ALIGNMENT } from '../memory/index.ts';
import type { Region, Segment, SegmentOptions, SharedSpace } from '../memory/index.ts';
import { Board, SERVER, sharedWords } from './board.ts';
import type { BoardShape, Identity } from './board.ts';

export interface LearnerLayout {
  readonly board: BoardShape;
  /** Parameters with a gradient, each of which has a lock; the states of the model have one more together. */
  readonly parameters: number;
  readonly weightBytes: number;
}

/** What the processes of one number have done, all that had it: signs of life, not what counts as trained. */
export interface Work {
  /** Batches that it finished with: applied, or handed to the server. */
  readonly batches: number;
  /** Sum over what it applied of the updates by others between reading the weights and applying the gradient. */
  readonly staleness: number;
}

export interface AttachOptions extends SegmentOptions {
  /** Whether the watchdog lives, without which nobody frees the locks of the dead. Default: it does. */
  readonly isWatched?: () => boolean;
}

/** Each on a line of its own: they are written by different processes. */
const WORDS_A_LINE = 16;
const NUMBERS_A_LINE = 8;
const REGIONS = 7;
const [VERSION, STOP, BELL, CONTROL_LINES] = [0, 1, 2, 3] as const;
const TRIES_BEFORE_SLEEP = 200;
const LOCK_SLEEP_MS = 1;
/** Sleeps for a lock between two looks at the watchdog. */
const SLEEPS_BEFORE_LOOK = 100;
/** Of a lock's word that name the process; the rest names its generation. */
const HOLDER_BITS = 10;

export class LearnerMemory {
  readonly board: Board;
  readonly #space: SharedSpace;
  readonly #segment: Segment;
  readonly #layout: LearnerLayout;
  readonly #isWatched: () => boolean;
  readonly #control: Region<'int32'>;
  readonly #locks: Region<'int32'>;
  readonly #slots: Region<'int32'>;
  readonly #work: Region<'float64'>;
  readonly #losses: Region<'float32'>;
  readonly #weights: Region<'uint8'>;

  private constructor(
    space: SharedSpace,
    segment: Segment,
    layout: LearnerLayout,
    isWatched: () => boolean = () => true,
  ) {
    const { board: shape, weightBytes } = layout;
    this.#space = space;
    this.#segment = segment;
    this.#layout = layout;
    this.#isWatched = isWatched;
    this.#control = segment.allocate('int32', CONTROL_LINES * WORDS_A_LINE);
    this.#locks = segment.allocate('int32', lockCount(layout) * WORDS_A_LINE);
    this.#slots = segment.allocate('int32', Math.max(1, shape.learners * shape.slots * slotWords(layout)));
    this.#work = segment.allocate('float64', (shape.learners + 1) * NUMBERS_A_LINE);
    this.#losses = segment.allocate('float32', shape.batches);
    this.board = new Board(sharedWords(segment.allocate('int32', Board.words(shape)).view), shape);
    this.#weights = segment.allocate('uint8', weightBytes);
  }

  /** Of the segment that holds all of it. */
  static bytes(layout: LearnerLayout): number {
    const { board: shape, weightBytes } = layout;
    const words =
      (CONTROL_LINES + lockCount(layout)) * WORDS_A_LINE +
      Math.max(1, shape.learners * shape.slots * slotWords(layout)) +
      Board.words(shape);
    const numbers = NUMBERS_A_LINE * (shape.learners + 1);
    return 4 * (words + shape.batches) + 8 * numbers + REGIONS * REGION_ALIGNMENT + weightBytes;
  }

  static create(
    space: SharedSpace,
    name: string,
    layout: LearnerLayout,
    options: SegmentOptions = {},
  ): LearnerMemory {
    const segment = space.createSegment(name, LearnerMemory.bytes(layout), options);
    return new LearnerMemory(space, segment, layout);
  }

  static attach(
    space: SharedSpace,
    name: string,
    layout: LearnerLayout,
    { isWatched, ...options }: AttachOptions = {},
  ): LearnerMemory {
    return new LearnerMemory(space, space.attachSegment(name, options), layout, isWatched);
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

  /**
   * Runs something while nobody else holds the lock of a parameter. Waits as long as the watchdog lives, which frees the locks of
   * the dead and ends those that do not move; without it, PEER_LOST.
   */
  whileLocked(self: Identity, parameter: number, act: () => void): void {
    this.#whileHolding(self, parameter, act);
  }

  /** The same for the states of the model, which are read and written together. */
  whileStatesLocked(self: Identity, act: () => void): void {
    this.#whileHolding(self, this.#layout.parameters, act);
  }

  #whileHolding(self: Identity, lock: number, act: () => void): void {
    const at = lock * WORDS_A_LINE;
    for (let tries = 1; ; tries++) {
      const holder = Atomics.compareExchange(this.#locks.view, at, 0, holderWord(self));
      if (holder === 0) break;
      if (tries % TRIES_BEFORE_SLEEP !== 0) continue;
      if (tries % (TRIES_BEFORE_SLEEP * SLEEPS_BEFORE_LOOK) === 0 && !this.#isWatched())
        throw this.#orphaned(self);
      futexWait(this.#locks, at, holder, LOCK_SLEEP_MS);
    }
    try {
      act();
    } finally {
      Atomics.compareExchange(this.#locks.view, at, holderWord(self), 0);
    }
  }

  #orphaned({ number }: Identity): PeerError {
    const who = number === SERVER ? 'the server' : `learner ${number}`;
    return new PeerError(
      'PEER_LOST',
      `The watchdog has died while ${who} waited for a lock (${this.heldLocks}), which nobody frees now; start the run again with resume`,
      { learner: number === SERVER ? undefined : number },
    );
  }

  /** Watchdog, when the process is surely dead: what it held is free. Returns the locks it held, that of the states last. */
  releaseLocks(dead: Identity): number[] {
    return Array.from({ length: lockCount(this.#layout) }, (_, lock) => lock).filter(
      (lock) =>
        Atomics.compareExchange(this.#locks.view, lock * WORDS_A_LINE, holderWord(dead), 0) ===
        holderWord(dead),
    );
  }

  /** Which locks are held by whom, in words for people; empty if none is. */
  get heldLocks(): string {
    const { parameters } = this.#layout;
    return Array.from({ length: lockCount(this.#layout) }, (_, lock) => lock)
      .flatMap((lock) => {
        const word = Atomics.load(this.#locks.view, lock * WORDS_A_LINE);
        if (word === 0) return [];
        const number = (word & (2 ** HOLDER_BITS - 1)) - 1;
        const holder = number === SERVER ? 'the server' : `learner ${number}`;
        return [`${holder} holds the lock of ${lock === parameters ? 'the states' : `parameter ${lock}`}`];
      })
      .join(', ');
  }

  /** What the gradient in a slot is: words for the version it was computed from, and the rows of each sparse one. */
  slotFacts(learner: number, slot: number): Int32Array {
    const words = slotWords(this.#layout);
    const at = (learner * this.#layout.board.slots + slot) * words;
    return this.#slots.view.subarray(at, at + words);
  }

  /**
   * Watchdog: a new epoch; `done` are batches that the weights contain already, whose losses nobody
   * knows any more. Of the others at most so many are given out.
   */
  open(epoch: number, done: Iterable<number> = [], most = Infinity): void {
    this.#losses.view.fill(NaN);
    this.board.open(epoch, done, most);
  }

  /** Learner, before the gradient of the batch can begin to be applied: whatever is applied has its loss here. */
  noteLoss(batch: number, loss: number): void {
    this.#losses.view[batch] = loss;
  }

  /** Mean over the samples of the batch; NaN if it was not computed since the epoch was opened. */
  lossOf(batch: number): number {
    return this.#losses.view[batch]!;
  }

  /** One writer for each number. */
  countWork({ number }: Identity, staleness: number): void {
    const at = this.#lineOf(number);
    this.#work.view[at]! += 1;
    this.#work.view[at + 1]! += staleness;
  }

  /** Of the learner of that number, or of the server. */
  workOf(number: number): Work {
    const at = this.#lineOf(number);
    return { batches: this.#work.view[at]!, staleness: this.#work.view[at + 1]! };
  }

  /** Mean over all that was applied. */
  get meanStaleness(): number {
    const { learners, slots } = this.#layout.board;
    const appliers = slots > 0 ? [SERVER] : Array.from({ length: learners }, (_, number) => number);
    const all = appliers.map((number) => this.workOf(number));
    const sum = (name: keyof Work) => all.reduce((total, one) => total + one[name], 0);
    return sum('staleness') / Math.max(1, sum('batches'));
  }

  /** Watchdog, when nobody is alive: no lock is held, and nothing was done yet. */
  clear(): void {
    this.#locks.view.fill(0);
    this.#work.view.fill(0);
  }

  close(): void {
    this.#segment.close();
  }

  /** The last line is the server's. */
  #lineOf(number: number): number {
    return (number === SERVER ? this.#layout.board.learners : number) * NUMBERS_A_LINE;
  }
}

function lockCount({ parameters }: LearnerLayout): number {
  return parameters + 1;
}

function slotWords({ parameters }: LearnerLayout): number {
  return Math.ceil((1 + parameters) / WORDS_A_LINE) * WORDS_A_LINE;
}

function holderWord({ number, generation }: Identity): number {
  return (number + 1) | (generation << HOLDER_BITS);
}
