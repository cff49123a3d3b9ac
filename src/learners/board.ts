/**
 * The board on which learners and their watchdog agree who works on which batch: one word for each batch of the epoch, and
 * one for each gradient slot, in memory that all processes share. It holds no data and waits for nothing.
 *
 * Every change of a batch is one atomic exchange of its word, which names state and owner together, so a process can die
 * between any two changes and the word still says what was going on. The transitions, by the names of the methods:
 *
 *   FREE -take-> COMPUTING -begin-> APPLYING -finish-> DONE                    a learner that applies its own gradient
 *   FREE -take-> COMPUTING -fill, publish-> PUBLISHED -accept-> APPLYING -finish-> DONE -recycle->     with a server
 *   COMPUTING -reclaim-> FREE, APPLYING -reclaim-> DONE                       the owner has died
 *
 * A batch that is LATER stays so: a run that ends within an epoch holds it back.
 *
 * Invariants: a gradient begins to be applied once at most for each batch and epoch; a batch that is DONE stays DONE until
 * the next epoch; only the owner that a word names moves it on, and the watchdog once that owner is surely dead.
 */

/** One process in the run: a number, and how often it has been started. */
export interface Identity {
  /** Of a learner from 0; SERVER for the server. */
  readonly number: number;
  /** 0 for the first process of this number, one more for each that replaced it. */
  readonly generation: number;
}

export interface BoardShape {
  /** Of an epoch. */
  readonly batches: number;
  readonly learners: number;
  /** Gradient slots of each learner; 0 where learners apply their own gradients. */
  readonly slots: number;
}

/** A gradient that lies in a slot. */
export interface Filled {
  readonly batch: number;
  readonly learner: number;
  readonly slot: number;
}

export interface Reclaimed {
  /** Batches that were being computed: others may take them. */
  readonly returned: readonly number[];
  /** Batches of which a part of the gradient may be in the weights: they count as done, and are not given out again. */
  readonly torn: readonly number[];
}

/** What a word has room for. */
export const MAX_LEARNERS = 254;
export const SERVER = 255;

const [FREE, COMPUTING, PUBLISHED, APPLYING, DONE, LATER] = [0, 1, 2, 3, 4, 5] as const;
type Phase = typeof COMPUTING | typeof PUBLISHED | typeof APPLYING;

const NUMBER_SHIFT = 3;
const GENERATION_SHIFT = 11;
const MAX_GENERATION = 2 ** 20 - 1;
/** Words before those of the batches: the epoch, and where a free batch may be; apart from them, on lines of their own. */
const HEADER_WORDS = 16;
const [EPOCH, HINT] = [0, 1] as const;

/** Words that several processes change; each call is one step that no other process sees a part of. */
export interface AtomicWords {
  load(at: number): number;
  store(at: number, value: number): void;
  /** Puts `to` there if `from` is; returns what was there. */
  exchange(at: number, from: number, to: number): number;
}

export function sharedWords(words: Int32Array): AtomicWords {
  return {
    load: (at) => Atomics.load(words, at),
    store: (at, value) => void Atomics.store(words, at, value),
    exchange: (at, from, to) => Atomics.compareExchange(words, at, from, to),
  };
}

export class Board {
  readonly shape: BoardShape;
  readonly #words: AtomicWords;
  /** Batches before this one were seen DONE, and stay so until this object opens the next epoch. */
  #seenDone = 0;

  /** Over zeroed words, or those of a board that is in use. */
  constructor(words: AtomicWords, shape: BoardShape) {
    this.shape = shape;
    this.#words = words;
  }

  static words({ batches, learners, slots }: BoardShape): number {
    return HEADER_WORDS + batches + learners * slots;
  }

  get epoch(): number {
    return this.#words.load(EPOCH);
  }

  /**
   * Watchdog: whether every batch that was given out has been applied. Goes on where it came to the
   * last time: asked often.
   */
  get isDone(): boolean {
    const { batches } = this.shape;
    const isOver = (word: number) => word === DONE || word === LATER;
    while (this.#seenDone < batches && isOver(this.#words.load(this.#wordOf(this.#seenDone)))) {
      this.#seenDone++;
    }
    return this.#seenDone === batches;
  }

  doneBatches(): number[] {
    return this.#where((word) => word === DONE);
  }

  /**
   * Watchdog, when all batches are done or nobody is there: everything can be taken again but what
   * a checkpoint contains, and what is more than `most`. The epoch is written first: whoever takes
   * a batch reads it afterwards.
   */
  open(epoch: number, done: Iterable<number> = [], most = Infinity): void {
    this.#words.store(EPOCH, epoch);
    this.#words.store(HINT, 0);
    this.#seenDone = 0;
    const isDone = new Set(done);
    for (let slot = 0; slot < this.shape.learners * this.shape.slots; slot++) {
      this.#words.store(this.#slotWord(0, slot), 0);
    }
    let given = 0;
    for (let batch = 0; batch < this.shape.batches; batch++) {
      const word = isDone.has(batch) ? DONE : given++ < most ? FREE : LATER;
      this.#words.store(this.#wordOf(batch), word);
    }
  }

  /** Learner: a batch to compute; undefined if none is free, which may change while others are at work. */
  take(self: Identity): number | undefined {
    const { batches } = this.shape;
    const hint = this.#words.load(HINT);
    for (let i = 0; i < batches; i++) {
      const batch = (hint + i) % batches;
      if (!this.#move(batch, FREE, wordFor(COMPUTING, self))) continue;
      this.#words.store(HINT, (batch + 1) % batches);
      return batch;
    }
    return undefined;
  }

  /** Learner: gives back a batch of which nothing has been applied. */
  putBack(self: Identity, batch: number): boolean {
    return this.#move(batch, wordFor(COMPUTING, self), FREE);
  }

  /** Learner: from here on its gradient is being applied. False: the batch is not its own any more. */
  begin(self: Identity, batch: number): boolean {
    return this.#move(batch, wordFor(COMPUTING, self), wordFor(APPLYING, self));
  }

  /** Whoever applied: the weights contain all of it. */
  finish(self: Identity, batch: number): boolean {
    return this.#move(batch, wordFor(APPLYING, self), DONE);
  }

  /** Learner: whether the server has done with a slot of its own. */
  isEmpty({ number }: Identity, slot: number): boolean {
    return this.#words.load(this.#slotWord(number, slot)) === 0;
  }

  /** Learner: the gradient in the slot is that of the batch, and whole. Then it is published. */
  fill({ number }: Identity, slot: number, batch: number): void {
    this.#words.store(this.#slotWord(number, slot), batch + 1);
  }

  publish(self: Identity, batch: number): boolean {
    return this.#move(batch, wordFor(COMPUTING, self), wordFor(PUBLISHED, self));
  }

  /** Server: takes the gradient of a slot, if there is one of that learner's. */
  accept(self: Identity, learner: number, slot: number): Filled | undefined {
    const batch = this.#words.load(this.#slotWord(learner, slot)) - 1;
    if (batch < 0) return undefined;
    const word = this.#words.load(this.#wordOf(batch));
    // A slot that was filled and not published is not of this word's owner.
    if (phaseOf(word) !== PUBLISHED || numberOf(word) !== learner) return undefined;
    return this.#move(batch, word, wordFor(APPLYING, self)) ? { batch, learner, slot } : undefined;
  }

  /** Server: the learner may use the slot again. To be called for every slot now and then: a server may have died before. */
  recycle(learner: number, slot: number): boolean {
    const at = this.#slotWord(learner, slot);
    const batch = this.#words.load(at) - 1;
    if (batch < 0 || this.#words.load(this.#wordOf(batch)) !== DONE) return false;
    return this.#words.exchange(at, batch + 1, 0) === batch + 1;
  }

  /** Whether a process has a batch in hand, or the server a slot to look at. */
  isAtWork(self: Identity): boolean {
    const { learners, slots } = this.shape;
    if (self.number === SERVER) {
      return Array.from({ length: learners * slots }, (_, slot) => slot).some(
        (slot) => this.#words.load(this.#slotWord(0, slot)) !== 0,
      );
    }
    const own: readonly number[] = [wordFor(COMPUTING, self), wordFor(APPLYING, self)];
    return this.#where((word) => own.includes(word)).length > 0;
  }

  /** Watchdog, when the process is surely dead: nobody waits for it any more. */
  reclaim(dead: Identity): Reclaimed {
    const computing = this.#where((word) => word === wordFor(COMPUTING, dead));
    const torn = this.#where((word) => word === wordFor(APPLYING, dead));
    // First, so that no slot is left that names a batch which somebody else computes.
    if (dead.number !== SERVER) this.#emptySlots(dead.number, new Set(computing));
    for (const batch of torn) this.#move(batch, wordFor(APPLYING, dead), DONE);
    for (const batch of computing) this.#move(batch, wordFor(COMPUTING, dead), FREE);
    if (computing.length > 0) this.#words.store(HINT, computing[0]!);
    return { returned: computing, torn };
  }

  #emptySlots(learner: number, batches: ReadonlySet<number>): void {
    for (let slot = 0; slot < this.shape.slots; slot++) {
      const at = this.#slotWord(learner, slot);
      if (batches.has(this.#words.load(at) - 1)) this.#words.store(at, 0);
    }
  }

  #where(test: (word: number) => boolean): number[] {
    const found: number[] = [];
    for (let batch = 0; batch < this.shape.batches; batch++) {
      if (test(this.#words.load(this.#wordOf(batch)))) found.push(batch);
    }
    return found;
  }

  #move(batch: number, from: number, to: number): boolean {
    return this.#words.exchange(this.#wordOf(batch), from, to) === from;
  }

  #wordOf(batch: number): number {
    return HEADER_WORDS + batch;
  }

  #slotWord(learner: number, slot: number): number {
    const { batches, slots } = this.shape;
    return HEADER_WORDS + batches + learner * slots + slot;
  }
}

function wordFor(phase: Phase, { number, generation }: Identity): number {
  return phase | (number << NUMBER_SHIFT) | ((generation & MAX_GENERATION) << GENERATION_SHIFT);
}

function phaseOf(word: number): number {
  return word & (2 ** NUMBER_SHIFT - 1);
}

function numberOf(word: number): number {
  return (word >>> NUMBER_SHIFT) & 0xff;
}
