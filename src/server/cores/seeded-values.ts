/**
 * First values of keys that the server makes by a seed, so that no worker has to hold or send them.
 * A large table takes many turns; meanwhile the tenant's connections are served, as nobody can see
 * a batch that is not filled. Invariants: a batch is filled once, however often it is asked for;
 * nothing is written to it when somebody else has filled it, or when its tenant has ended.
 */
import { fillElements } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import type { Batch } from './batch.ts';
import type { Piece } from './piece.ts';

export interface Asking {
  readonly done: () => void;
  readonly fail: (error: TributaryError) => void;
}

/**
 * Elements that are filled before somebody else may be served: about a millisecond of the slowest
 * kind.
 */
const PART_ELEMENTS = 16_384;

export class SeededValues {
  readonly #later: (go: () => void) => void;
  readonly #isTurnOver: () => boolean;
  readonly #asking = new Map<Batch, Asking[]>();
  #isClosed = false;

  constructor(later: (go: () => void) => void, isTurnOver: () => boolean) {
    this.#later = later;
    this.#isTurnOver = isTurnOver;
  }

  /**
   * Fills the pieces that have a seed, then calls `begin`; all that ask for the same batch hear how
   * that went.
   */
  fill(
    batch: Batch,
    pieces: Iterable<Piece>,
    asking: Asking,
    begin: (done: () => void, fail: (error: TributaryError) => void) => void,
  ): void {
    const others = this.#asking.get(batch);
    if (others) return void others.push(asking);
    this.#asking.set(batch, [asking]);
    const all = (): readonly Asking[] => {
      const asked = this.#asking.get(batch) ?? [];
      this.#asking.delete(batch);
      return asked;
    };
    const parts = filled(pieces);
    const done = () => {
      for (const one of all()) one.done();
    };
    const goOn = (): void => {
      if (this.#isClosed) return;
      // It was put back from a checkpoint meanwhile.
      if (batch.isFilled) return done();
      do {
        if (!parts.next().done) continue;
        return begin(done, (error) => {
          for (const one of all()) one.fail(error);
        });
      } while (!this.#isTurnOver());
      this.#later(goOn);
    };
    goOn();
  }

  close(): void {
    this.#isClosed = true;
    this.#asking.clear();
  }
}

function* filled(pieces: Iterable<Piece>): Generator<void, void> {
  for (const { key, shape, value } of pieces) {
    if (key.firstValues === undefined) continue;
    const { initialiser, seed, first } = key.firstValues;
    for (const [start, length] of shape.ranges) {
      for (let at = start; at < start + length; at += PART_ELEMENTS) {
        const part = value.view.subarray(at, Math.min(at + PART_ELEMENTS, start + length));
        fillElements(part, initialiser, seed, first + shape.start + at);
        yield;
      }
    }
  }
}
