/**
 * What training in lock step may count on: the newest checkpoint that a worker was told is on the
 * disks of all servers, or that training went back to. It looks on as workers ask their stores.
 * Invariant: training never goes back behind it, unless a file of it is damaged on the disk.
 */
import type { RecoverableStore } from '../../src/kvstore/index.ts';

export interface KeptStepsOptions {
  /** Called with what did not hold. */
  readonly onLost: (what: string) => void;
}

export class KeptSteps {
  readonly #onLost: KeptStepsOptions['onLost'];
  #least = 0;
  /** How often a file was damaged: what was asked for before counts no more. */
  #damages = 0;

  constructor({ onLost }: KeptStepsOptions) {
    this.#onLost = onLost;
  }

  /** The newest file of the tenant is damaged, so that it goes back to the one before. */
  wasDamaged(): void {
    this.#damages++;
    this.#least = 0;
  }

  /** The same store, with an eye on what it says of checkpoints. */
  watch<Store extends RecoverableStore>(store: Store): Store {
    const of = (name: 'resume' | 'checkpointsWritten') => store[name].bind(store);
    const [resume, written, checkpoint] = [
      of('resume') as () => Promise<number>,
      of('checkpointsWritten') as () => Promise<void>,
      store.checkpoint.bind(store),
    ];
    /** Asked for, and not reported to have failed; of one that fails it is not known which it was. */
    let open = 0;
    let openSince = this.#damages;
    const failed = (error: unknown): never => {
      open = 0;
      throw error;
    };
    return Object.assign(store, {
      resume: async () => {
        const damages = this.#damages;
        const step = await resume();
        open = 0;
        if (damages === this.#damages) {
          if (step < this.#least)
            this.#onLost(
              `training went back to step ${step}, but the checkpoint of step ${this.#least} was reported to be kept`,
            );
          this.#least = Math.max(this.#least, step);
        }
        return step;
      },
      checkpoint: async (...[step, options]: Parameters<RecoverableStore['checkpoint']>) => {
        const damages = this.#damages;
        await checkpoint(step, options).catch(failed);
        if (openSince !== damages) open = 0;
        [open, openSince] = [Math.max(open, step), damages];
        if (options?.isDurable) this.#keep(step, damages);
      },
      checkpointsWritten: async () => {
        await written().catch(failed);
        this.#keep(open, openSince);
      },
    });
  }

  #keep(step: number, damages: number): void {
    if (damages === this.#damages) this.#least = Math.max(this.#least, step);
  }
}
