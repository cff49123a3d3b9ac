/**
 * The newest checkpoint that all servers of a training in lock step are known to have, which none of them may remove: if
 * one is lost, all go back to it together. Servers write at their own speed and some writes fail, so each says what it
 * keeps with every answer, and every request says what they have in common. Invariant: what is named here was kept by
 * all servers, and they keep it until a newer one is named to them.
 */
import type { Common } from '../../server/index.ts';

export class SharedCheckpoint {
  #step: Common;

  /** `isShared`: there are several servers, which go back to a checkpoint. */
  constructor(isShared: boolean) {
    this.#step = isShared ? null : undefined;
  }

  get step(): Common {
    return this.#step;
  }

  /** The steps that each core of each server keeps, as it has just said. */
  answered(kept: readonly (readonly number[])[]): void {
    if (this.#step === undefined) return;
    const [first = [], ...others] = kept;
    const common = first.filter((step) => others.every((list) => list.includes(step)));
    if (common.length > 0) this.#step = Math.max(this.#step ?? 0, ...common);
  }

  /** All have gone back to this one; undefined: to the beginning, where there is none. */
  wentBackTo(step: number | undefined): void {
    if (this.#step !== undefined) this.#step = step ?? null;
  }
}
