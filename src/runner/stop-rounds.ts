/**
 * What the clients of a run tell each other although they do not wait for each other: that one
 * wants to stop, and that they have ended. The first worker of each takes part, in one round after
 * the other; a round ends when all have come to it, which may take as long as the slowest has for
 * its steps. There is one for a runner's life, so that a run that is left early leaves no round
 * half done. Invariant: all decide by the words of the same round.
 */
import type { CommunicationThread, TimedHandle } from '../communication/index.ts';
import type { SomeWorkers } from '../exchange/index.ts';
import type { Region } from '../memory/index.ts';

/** Words of a round: their sum. */
const [STOP, ENDED] = [1, 2];

export class StopRounds {
  readonly #thread: CommunicationThread;
  readonly #group: number;
  readonly #own: Region<'int32'>;
  readonly #all: Region<'int32'>;
  #round: TimedHandle | undefined;
  #isStopWanted = false;
  #haveAllEnded = false;

  constructor(thread: CommunicationThread, { group, size }: SomeWorkers) {
    this.#thread = thread;
    this.#group = group;
    this.#own = thread.allocate('int32', 1);
    this.#all = thread.allocate('int32', size);
  }

  /** Whether anybody wants to stop, as far as is known; throws if another client is lost. */
  isStopWanted(wish: boolean): boolean {
    if (this.#round?.settled) this.#read();
    this.#round ??= this.#start(wish ? STOP : 0);
    return this.#isStopWanted;
  }

  /** Another run begins, on all of them. */
  begin(): void {
    this.#isStopWanted = this.#haveAllEnded = false;
  }

  /**
   * Settles when all have ended; the event loop goes on meanwhile. Who waits here can still wish
   * that the others stop.
   */
  async end(isStopWanted: () => boolean): Promise<void> {
    while (!this.#haveAllEnded) {
      this.#round ??= this.#start(ENDED + (isStopWanted() ? STOP : 0));
      await this.#round;
      this.#read();
    }
  }

  async close(): Promise<void> {
    await this.#thread.free(this.#own, this.#all);
  }

  #start(word: number): TimedHandle {
    this.#own.view[0] = word;
    const options = { group: this.#group, isPatient: true, name: 'whether to stop, and who has ended' };
    return this.#thread.allGather(this.#own, this.#all, options);
  }

  #read(): void {
    // Throws if it failed.
    this.#round!.wait();
    this.#round = undefined;
    const words = [...this.#all.view];
    this.#isStopWanted ||= words.some((word) => (word & STOP) !== 0);
    this.#haveAllEnded = words.every((word) => (word & ENDED) !== 0);
  }
}
