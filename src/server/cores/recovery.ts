/**
 * How one core of a tenant loses nothing and does nothing twice: checkpoints between steps, a log of pushes where training is
 * asynchronous, and the way back to a checkpoint after a crash. Terms: to rewind is to give up what is under way, meet,
 * and go back together; the generation counts how often that happened. Invariant: between the loss and the end of
 * the restore nothing is applied.
 */
import { PeerError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import type { SpaceBytes } from '../../sockets/index.ts';
import { PushLog } from '../durability/index.ts';
import type { PushRecord } from '../durability/index.ts';
import type { Office } from './office.ts';
import { putBack, takeSnapshot } from './snapshot.ts';
import type { CoreSnapshot } from './snapshot.ts';
import type { Piece } from './piece.ts';
import type { Tenant } from './tenant.ts';

type Fail = (error: TributaryError) => void;

export class Recovery {
  /** How often training went back. */
  generation = 0;
  readonly #tenant: Tenant;
  readonly #office: Office;
  readonly #bytes: SpaceBytes;
  readonly core: number;
  /** Why nothing can be done until all have gone back. */
  #rewound: PeerError | undefined;
  #isRestoring = false;
  readonly #afterRestore: { readonly done: () => void; readonly fail: Fail }[] = [];
  #log: PushLog | undefined;

  constructor(tenant: Tenant, office: Office, bytes: SpaceBytes, core: number) {
    this.#tenant = tenant;
    this.#office = office;
    this.#bytes = bytes;
    this.core = core;
  }

  /** Throws if training must go back first. */
  check(): void {
    if (this.#rewound) throw this.#rewound;
  }

  /** What is under way is given up; everybody who waits is told. */
  begin(why: string): void {
    if (this.#rewound) return;
    const { namespace } = this.#tenant.service;
    this.#rewound = new PeerError(
      'REWOUND',
      `training of '${namespace}' goes back to a checkpoint, because ${why}; call resume() and go on after the step that it returns`,
      { namespace, why },
    );
    this.#tenant.core.abandon(this.#rewound);
    this.#tenant.meetings.clear(this.#rewound, 'rewind');
  }

  /** The worker has given up what it did; `done` when all have, with the checkpoints that there are. */
  rewind(worker: number, token: string, done: (checkpoints: readonly number[]) => void, fail: Fail): void {
    this.begin(`worker ${worker} asked for it`);
    const { namespace } = this.#tenant.service;
    const list = () => this.#office.ask({ kind: 'checkpoints', namespace }, done, fail);
    this.#tenant.meetings.enter(`rewind ${this.generation}`, worker, { token, go: list, fail });
  }

  /** Undefined: there is no checkpoint, and training goes on where it is. */
  restore(step: number | undefined, generation: number, done: () => void, fail: Fail): void {
    if (generation <= this.generation) return done();
    this.#afterRestore.push({ done, fail });
    if (this.#isRestoring) return;
    this.#isRestoring = true;
    const finish = (error?: TributaryError) => {
      this.#isRestoring = false;
      if (!error) {
        this.generation = generation;
        this.#rewound = undefined;
      }
      for (const waiting of this.#afterRestore.splice(0)) {
        if (error) waiting.fail(error);
        else waiting.done();
      }
    };
    if (step === undefined) return finish();
    this.#restore(step, () => finish(), finish);
  }

  /** For asynchronous training: the newest checkpoint and what was logged after it, as soon as the keys are open. */
  restoreNewest(done: () => void, fail: Fail): void {
    const { namespace, logFolder } = this.#tenant.service;
    if (logFolder === undefined) return done();
    this.#office.ask(
      { kind: 'checkpoints', namespace },
      (steps) => {
        const newest = steps.at(-1);
        if (newest === undefined) return done();
        const replay = () => {
          this.#replay(newest);
          done();
        };
        this.#restore(newest, replay, fail);
      },
      fail,
    );
  }

  /** The pieces as they are now, to be written in the background. */
  checkpoint(step: number, optimizer: unknown, written: () => void, fail: Fail): void {
    const { namespace } = this.#tenant.service;
    const { core } = this.#tenant;
    const sources = [...this.#tenant.openPieces()].map(([number, piece]) => ({
      ...{ number, piece, ...core.progressOf(String(number)), tensors: this.#tensorsOf(number, piece) },
    }));
    const snapshot = takeSnapshot(this.#tenant.space, this.#bytes, sources);
    if (this.#log) this.#log.rotate(step);
    else this.#openLog(step);
    this.#office.ask(
      { kind: 'checkpoint', namespace, core: this.core, step, optimizer, snapshot },
      written,
      fail,
    );
  }

  /** Before a push is answered, where pushes are logged. */
  log(record: PushRecord): void {
    this.#log?.append(record);
  }

  get isLogging(): boolean {
    return this.#log !== undefined;
  }

  close(): void {
    this.#log?.close();
  }

  #restore(step: number, done: () => void, fail: Fail): void {
    const { namespace } = this.#tenant.service;
    this.#office.ask(
      { kind: 'restore', namespace, core: this.core, step },
      ({ optimizer, snapshot }) => {
        const put = () => {
          this.#putBack(snapshot);
          done();
        };
        if (optimizer === null) put();
        else this.#tenant.setOptimizer(optimizer, put, fail);
      },
      fail,
    );
  }

  #putBack({ pieces, memory }: CoreSnapshot): void {
    this.#tenant.fillAll();
    this.#tenant.lastCheckpoint = undefined;
    for (const state of pieces) {
      const piece = this.#tenant.pieces.get(state.piece);
      // A key that was not opened this time.
      if (piece === undefined) continue;
      putBack(this.#bytes, state, piece, this.#tensorsOf(state.piece, piece));
      this.#tenant.core.restore(String(state.piece), state.version, state.lastSteps);
    }
    this.#tenant.space.releaseRange(memory);
  }

  #replay(step: number): void {
    const { logFolder } = this.#tenant.service;
    const logs = PushLog.list(logFolder!, this.#logName).filter((log) => log.step >= step);
    for (const { path } of logs) for (const record of PushLog.replay(path)) this.#tenant.repeat(record);
    this.#openLog(logs.at(-1)?.step ?? step);
  }

  #openLog(step: number): void {
    const { logFolder } = this.#tenant.service;
    if (logFolder === undefined || this.#tenant.isSynchronous) return;
    this.#log = new PushLog({ folder: logFolder, name: this.#logName, step });
  }

  get #logName(): string {
    return `core-${this.core}`;
  }

  #tensorsOf(number: number, { value }: Piece): Readonly<Record<string, Region<'float32'>>> {
    return { value, ...this.#tenant.core.slotsOf(String(number)) };
  }
}
