/**
 * What a worker does when a server was started again, or when all must go back to a checkpoint.
 * Terms: to rewind is to give up what is under way, meet all other workers on every core, and go
 * back together. Invariant: between the loss and the end of `goBack` nothing is asked of the
 * servers but what brings it about.
 */
import { PeerError } from '../../base/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../../kernels/index.ts';
import type { Host } from '../../sockets/index.ts';
import type { CoreLine } from './core-line.ts';
import type { KeyTable } from './key-table.ts';
import type { StoreCheckpoints } from './store-checkpoints.ts';

/** What servers know of this worker's memory, and forget when they are started again. */
export interface Told {
  /** Servers have forgotten it: it is told again when it is needed. */
  forget(): void;
}

export interface StoreRecoveryOptions {
  readonly worker: number;
  readonly lines: readonly CoreLine[];
  readonly keys: KeyTable;
  readonly told: readonly Told[];
  readonly isSynchronous: boolean;
  readonly checkpoints: StoreCheckpoints;
  readonly host: Pick<Host, 'randomHex'>;
}

export class StoreRecovery {
  readonly #worker: number;
  readonly #lines: readonly CoreLine[];
  readonly #keys: KeyTable;
  readonly #told: readonly Told[];
  readonly #isSynchronous: boolean;
  readonly #checkpoints: StoreCheckpoints;
  readonly #randomHex: Host['randomHex'];
  /** Servers that were started again and know nothing of the keys. */
  readonly #restarted = new Set<CoreLine>();
  #optimizer:
    | { readonly op: 'optimizer'; readonly number: number; readonly spec: OptimizerSpec | OwnRuleSpec }
    | undefined;
  #isUnderWay = false;
  /** Servers that are being sent keys, first values and optimizer. */
  #telling = 0;
  /**
   * All workers have met for something: if a server is lost, those that were not answered wait for
   * the others there.
   */
  #hasMet = false;
  #isGoingBack = false;
  /** Why nothing can be asked before going back. */
  #rewound: PeerError | undefined;

  constructor(options: StoreRecoveryOptions) {
    this.#randomHex = options.host.randomHex;
    this.#worker = options.worker;
    this.#lines = options.lines;
    this.#keys = options.keys;
    this.#told = options.told;
    this.#isSynchronous = options.isSynchronous;
    this.#checkpoints = options.checkpoints;
  }

  check(): void {
    if (this.#rewound) throw this.#rewound;
  }

  /** The rule that servers were told, with the number of the call. */
  setOptimizer(number: number, spec: OptimizerSpec | OwnRuleSpec): void {
    this.#optimizer = { op: 'optimizer', number, spec };
  }

  setLearningRate(lr: number): void {
    if (this.#optimizer) this.#optimizer = { ...this.#optimizer, spec: { ...this.#optimizer.spec, lr } };
  }

  hasMet(): void {
    this.#hasMet = true;
  }

  /** From now on there is more to lose than the first values. */
  hasBegun(): void {
    if (this.#isUnderWay) return;
    this.#isUnderWay = true;
    if (this.#telling === 0) this.#keys.forgetFirstValues();
  }

  /**
   * Before workers have met or trained the server is told everything again. Synchronous training
   * goes back to a checkpoint, and whoever is going back begins anew, since the server knows
   * nothing of it; otherwise the server has what it acknowledged in its log.
   */
  async onRestart(line: CoreLine): Promise<void> {
    if (this.#keys.leaveValues()) throw this.#memoryLost(line);
    if (!this.#isSynchronous || !(this.#isUnderWay || this.#hasMet || this.#isGoingBack)) {
      try {
        await this.#tellAgain(line, true);
        await line.announceAgain();
      } catch (error) {
        if (!isRewound(error)) throw error;
        // Another server was lost meanwhile: going back tells this one anew.
        this.#restarted.add(line);
      }
      return;
    }
    this.#restarted.add(line);
    const { title } = line.options;
    this.#rewound = new PeerError(
      'REWOUND',
      `${title} was started again; call resume() and go on after the step that it returns`,
      { server: title, worker: this.#worker },
    );
    for (const one of this.#lines) one.failAll(this.#rewound);
  }

  /**
   * The keys, and what only this worker has before anything was trained. Pushes to other cores may
   * be answered meanwhile; this one begins with first values and optimizer all the same.
   */
  async #tellAgain(line: CoreLine, isUrgent: boolean): Promise<void> {
    const isUnderWay = this.#isUnderWay;
    this.#telling++;
    try {
      const isFilled = await this.#keys.openAgain(line, isUrgent);
      if (!isFilled && isUnderWay && !this.#isSynchronous) throw this.#valuesLost(line);
      await this.#keys.sendFirstValuesAgain(line, isUrgent);
      if (this.#optimizer && !isUnderWay) await line.request(this.#optimizer, [], () => undefined, isUrgent);
    } finally {
      this.#telling--;
      if (this.#telling === 0 && this.#isUnderWay) this.#keys.forgetFirstValues();
    }
  }

  /**
   * The step of the checkpoint that all went back to; 0 if there is none and nothing was trained.
   */
  async goBack(): Promise<number> {
    this.#isGoingBack = true;
    try {
      return await this.#goBack();
    } finally {
      this.#isGoingBack = false;
    }
  }

  async #goBack(): Promise<number> {
    for (;;) {
      const why = this.#rewound;
      try {
        const step = await this.#attempt(() => {
          // A server that was lost while nothing was asked of it: everything begins anew.
          if (this.#rewound !== why) throw this.#rewound!;
        });
        this.#rewound = undefined;
        return step;
      } catch (error) {
        if (!isRewound(error)) throw error;
      }
    }
  }

  /** `check` throws if it is in vain. */
  async #attempt(check: () => void): Promise<number> {
    for (const line of this.#lines) line.forgetAnnouncements();
    for (const told of this.#told) told.forget();
    await this.#tellRestarted();
    check();
    const attempt = this.#randomHex(32);
    const rewound = await Promise.all(this.#lines.map((line) => line.request({ op: 'rewind', attempt })));
    check();
    const checkpoints = rewound.map((answer) => answer.checkpoints as readonly number[]);
    const steps = checkpoints[0]!.filter((one) => checkpoints.every((list) => list.includes(one)));
    const met = await this.#lines[0]!.request({ op: 'gather', attempt, steps });
    check();
    const { attempts } = met;
    const step = met.step as number | undefined;
    const isLost = step === undefined && [...this.#keys.all()].some((key) => key.step > 0);
    if (isLost && this.#isSynchronous) throw this.#nowhere();
    await Promise.all(this.#lines.map((line) => line.request({ op: 'restore', step, attempts })));
    check();
    await this.#keys.askSteps();
    check();
    this.#checkpoints.wentBackTo(step);
    // What the servers have now is more than the first values, also for a process that has not
    // pushed yet.
    if (step !== undefined) this.hasBegun();
    return step ?? 0;
  }

  /** A server that restarts again meanwhile gets the keys again. */
  async #tellRestarted(): Promise<void> {
    for (;;) {
      const [line] = this.#restarted;
      if (line === undefined) return;
      this.#restarted.delete(line);
      try {
        await this.#tellAgain(line, false);
      } catch (error) {
        this.#restarted.add(line);
        throw error;
      }
    }
  }

  #memoryLost({ options: { title } }: CoreLine): PeerError {
    return new PeerError(
      'PEER_LOST',
      `${title} was started again, and worker ${this.#worker} uses parameters in the memory that it had; connect anew, or pull into memory of one's own instead of value()`,
      { server: title, worker: this.#worker },
    );
  }

  #valuesLost({ options: { title } }: CoreLine): PeerError {
    return new PeerError(
      'PEER_LOST',
      `${title} was started again and has kept nothing; start the training again, and create the service with a folder to keep what was trained`,
      { server: title, worker: this.#worker },
    );
  }

  #nowhere(): PeerError {
    return new PeerError(
      'PEER_LOST',
      `worker ${this.#worker} cannot go back: the servers have no checkpoint in common; create the service with a folder and call checkpoint() now and then, or start again`,
      { worker: this.#worker },
    );
  }
}

function isRewound(error: unknown): boolean {
  return error instanceof PeerError && error.code === 'REWOUND';
}
