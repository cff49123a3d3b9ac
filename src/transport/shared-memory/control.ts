/**
 * A member's control block: how others wake it, see what it writes for and whether it has left. Its owner creates it,
 * its peers attach it; the same class serves both. Invariant: words are only touched by `Atomics`, which order them with
 * the rings, so that either the sleeper sees the entry or the sender sees the sleeper.
 */
import { futexWait, futexWake } from '../../memory/index.ts';
import type { Region, Segment } from '../../memory/index.ts';
import { CONTROL_BYTES, ControlWord, MemberState } from './layout.ts';

export class Control {
  readonly segment: Segment;
  readonly #region: Region<'int32'>;
  readonly #words: Int32Array;

  constructor(segment: Segment) {
    this.segment = segment;
    this.#region = segment.region('int32', 0, CONTROL_BYTES / 4);
    this.#words = this.#region.view;
  }

  /** Wakes the member if it sleeps. Publish first. */
  ring(): void {
    if (Atomics.load(this.#words, ControlWord.SLEEPING) !== 0) this.#wake();
  }

  #wake(): void {
    Atomics.add(this.#words, ControlWord.DOORBELL, 1);
    futexWake(this.#region, ControlWord.DOORBELL, 1);
  }

  /** Sleeps until somebody rings, unless `hasWork` says that there is something to do already. */
  sleep(hasWork: () => boolean, timeoutMs: number): void {
    const bell = Atomics.load(this.#words, ControlWord.DOORBELL);
    Atomics.store(this.#words, ControlWord.SLEEPING, 1);
    if (!hasWork() && timeoutMs > 0) futexWait(this.#region, ControlWord.DOORBELL, bell, timeoutMs);
    Atomics.store(this.#words, ControlWord.SLEEPING, 0);
  }

  get writing(): number {
    return Atomics.load(this.#words, ControlWord.WRITING);
  }

  set writing(operationHash: number) {
    Atomics.store(this.#words, ControlWord.WRITING, operationHash);
  }

  /** Whether the member takes part; a word that is none of the states counts as left. */
  get isOpen(): boolean {
    return Atomics.load(this.#words, ControlWord.STATE) === MemberState.OPEN;
  }

  get aborted(): boolean {
    return Atomics.load(this.#words, ControlWord.STATE) === MemberState.ABORTED;
  }

  end(state: (typeof MemberState)['CLOSED' | 'ABORTED']): void {
    Atomics.store(this.#words, ControlWord.STATE, state);
  }
}
