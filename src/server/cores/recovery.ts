/**
 * How one core of a tenant loses nothing and does nothing twice: checkpoints between steps, a log of pushes where training is
 * asynchronous, and the way back to a checkpoint after a crash. Terms: to rewind is to give up what is under way, meet,
 * and go back together; the generation counts how often that happened. Invariant: between the loss and the end of
 * the restore nothing is applied.
 */
import { PeerError } from '../../base/index.ts';
import type { Files, TributaryError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import type { SpaceBytes } from '../../sockets/index.ts';
import { PushLog } from '../durability/index.ts';
import type { PushRecord } from '../durability/index.ts';
import type { TenantOffice } from './office.ts';
import { putBack, takeSnapshot } from './snapshot.ts';
import type { CoreSnapshot } from './snapshot.ts';
import type { Piece } from './piece.ts';
import type { Tenant } from './tenant.ts';

/** The room where all meet before they go back. */
const REWIND = 'rewind';

/** Copies of the parameters that wait for the disk: one that is written, one that follows it. */
const MAX_SNAPSHOTS = 2;

type Fail = (error: TributaryError) => void;

export class Recovery {
  readonly #tenant: Tenant;
  readonly #office: TenantOffice;
  readonly #bytes: SpaceBytes;
  readonly #files: Files;
  readonly core: number;
  /** Why nothing can be done until all have gone back. */
  #rewound: PeerError | undefined;
  #isRestoring = false;
  /** The attempt of each worker that counts. */
  readonly #attempts = new Map<number, string>();
  /** By attempt, the steps that the worker could go back to. */
  readonly #candidates = new Map<string, readonly number[]>();
  /** The attempts by which training went back last. */
  #round: string | undefined;
  readonly #afterRestore: { readonly done: () => void; readonly fail: Fail }[] = [];
  #log: PushLog | undefined;
  /** Copies that are on their way to the disk. */
  #snapshots = 0;
  readonly #awaitingSnapshot: (() => void)[] = [];
  /** Steps of the last checkpoints that are on the disk. */
  readonly #written: number[] = [];

  constructor(tenant: Tenant, office: TenantOffice, bytes: SpaceBytes, core: number, files: Files) {
    this.#tenant = tenant;
    this.#office = office;
    this.#bytes = bytes;
    this.core = core;
    this.#files = files;
  }

  /** Throws if training must go back first. */
  check(): void {
    if (this.#rewound) throw this.#rewound;
  }

  /** Whether training goes back before anything else is done. */
  get isRewinding(): boolean {
    return this.#rewound !== undefined;
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
    this.#tenant.meetings.clear(this.#rewound, REWIND);
    this.#tenant.letStart();
  }

  /** The worker has given up what it did, and says which attempt to go back this is; `done` with the checkpoints here. */
  rewind(worker: number, attempt: string, done: (checkpoints: readonly number[]) => void, fail: Fail): void {
    this.#attempts.set(worker, attempt);
    this.begin(`worker ${worker} asked for it`);
    this.#office.ask({ kind: 'checkpoints', namespace: this.#tenant.service.namespace }, done, fail);
  }

  /**
   * Where all workers meet, on one core only, so that nobody's attempt is paired with different ones of another's. `done`
   * with the attempts that belong together and the newest step that is everywhere.
   */
  gather(
    worker: number,
    attempt: string,
    steps: readonly number[],
    done: (attempts: Readonly<Record<string, string>>, step: number | undefined) => void,
    fail: Fail,
  ): void {
    this.#candidates.set(attempt, steps);
    const go = (attempts?: Readonly<Record<string, string>>) => {
      // The answer was lost: better to begin anew than to remember all answers.
      if (attempts === undefined) return fail(this.#again());
      const lists = Object.values(attempts).map((one) => this.#candidates.get(one));
      if (!lists.every((list) => list !== undefined)) return fail(this.#again());
      done(attempts, lists[0]!.filter((step) => lists.every((list) => list.includes(step))).at(-1));
    };
    this.#tenant.meetings.enter(REWIND, worker, { token: attempt, go, fail });
  }

  /** A new process in the place of a worker: what the one before it said does not count. */
  forget(worker: number): void {
    const attempt = this.#attempts.get(worker);
    if (attempt !== undefined) this.#candidates.delete(attempt);
    this.#attempts.delete(worker);
  }

  /** Undefined: there is no checkpoint, and training goes on where it is. Done once for all who have met. */
  restore(
    step: number | undefined,
    attempts: Readonly<Record<string, string>>,
    done: () => void,
    fail: Fail,
  ): void {
    const round = JSON.stringify(attempts);
    if (this.#round === round && this.#rewound === undefined) return done();
    if (!this.#isCurrent(attempts) || (this.#isRestoring && this.#round !== round))
      return fail(this.#again());
    this.#afterRestore.push({ done, fail });
    if (this.#isRestoring) return;
    this.#isRestoring = true;
    this.#round = round;
    const finish = (error?: TributaryError) => {
      this.#isRestoring = false;
      // Somebody may have begun anew meanwhile.
      const problem = error ?? (this.#isCurrent(attempts) ? undefined : this.#again());
      if (!problem) this.#rewound = undefined;
      else this.#round = undefined;
      for (const waiting of this.#afterRestore.splice(0)) {
        if (problem) waiting.fail(problem);
        else waiting.done();
      }
    };
    if (step === undefined) return finish();
    this.#restore(step, () => finish(), finish);
  }

  #isCurrent(attempts: Readonly<Record<string, string>>): boolean {
    return Object.entries(attempts).every(([worker, one]) => this.#attempts.get(Number(worker)) === one);
  }

  #again(): PeerError {
    const { namespace } = this.#tenant.service;
    return new PeerError('REWOUND', `a worker of '${namespace}' goes back once more; call resume() again`, {
      namespace,
    });
  }

  /** For asynchronous training: the newest checkpoint and what was logged after it, as soon as the keys are open. */
  restoreNewest(isWanted: (piece: number) => boolean, done: () => void, fail: Fail): void {
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
        this.#restore(newest, replay, fail, isWanted);
      },
      fail,
    );
  }

  /**
   * When there may be a snapshot more: of a step that has one at once, else after those that are being written but one.
   * Until then whoever asked waits, and in synchronous training nobody goes on.
   */
  whenFree(step: number, act: () => void): void {
    if (this.#snapshots < MAX_SNAPSHOTS || this.#tenant.lastCheckpoint === step) return act();
    this.#awaitingSnapshot.push(() => this.whenFree(step, act));
  }

  #snapshotDone(): void {
    this.#snapshots--;
    for (const again of this.#awaitingSnapshot.splice(0)) again();
  }

  /** The pieces as they are now, to be written in the background. */
  checkpoint(step: number, optimizer: unknown, written: () => void, fail: Fail): void {
    const { namespace } = this.#tenant.service;
    const { core } = this.#tenant;
    const sources = [...this.#tenant.openPieces()].map(([number, piece]) => ({
      ...{ number, piece, ...core.progressOf(String(number)), tensors: this.#tensorsOf(number, piece) },
    }));
    const snapshot = takeSnapshot(this.#tenant.space, this.#bytes, sources);
    this.#snapshots++;
    if (this.#log === undefined) this.#openLog(step);
    // One that is asked for again after a crash has its log already.
    else if (step !== this.#log.step) this.#log.rotate(step);
    this.#office.ask(
      { kind: 'checkpoint', namespace, core: this.core, step, optimizer, snapshot },
      () => {
        this.#snapshotDone();
        this.#forgetLogs(step);
        written();
      },
      (error) => {
        this.#snapshotDone();
        fail(error);
      },
    );
  }

  /** What is in the two checkpoints that are kept need not be in a log. */
  #forgetLogs(step: number): void {
    if (this.#written.at(-1) !== step) this.#written.push(step);
    if (this.#written.length > 2) this.#written.shift();
    this.#log?.removeBefore(this.#written[0]!);
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

  #restore(
    step: number,
    done: () => void,
    fail: Fail,
    isWanted: (piece: number) => boolean = () => true,
  ): void {
    const { namespace } = this.#tenant.service;
    this.#office.ask(
      { kind: 'restore', namespace, core: this.core, step },
      ({ optimizer, snapshot }) => {
        const put = () => {
          this.#putBack(snapshot, isWanted);
          // It is there already.
          this.#tenant.lastCheckpoint = step;
          done();
        };
        if (optimizer === null) put();
        else this.#tenant.setOptimizer(optimizer, put, fail);
      },
      fail,
    );
  }

  #putBack({ pieces, memory }: CoreSnapshot, isWanted: (piece: number) => boolean): void {
    this.#tenant.fillRestored(new Set(pieces.map(({ piece }) => piece)));
    for (const state of pieces) {
      const piece = this.#tenant.pieces.get(state.piece);
      // A key that was not opened this time.
      if (piece === undefined || !isWanted(state.piece)) continue;
      putBack(this.#bytes, state, piece, this.#tensorsOf(state.piece, piece));
      this.#tenant.core.restore(String(state.piece), state.version, state.lastSteps);
    }
    this.#tenant.space.releaseRange(memory);
  }

  #replay(step: number): void {
    const { logFolder } = this.#tenant.service;
    const logs = PushLog.list(this.#files, logFolder!, this.#logName).filter((log) => log.step >= step);
    for (const { path } of logs)
      for (const record of PushLog.replay(this.#files, path)) this.#tenant.repeat(record);
    this.#openLog(logs.at(-1)?.step ?? step);
  }

  #openLog(step: number): void {
    const { logFolder } = this.#tenant.service;
    if (logFolder === undefined || this.#tenant.isSynchronous || this.#log) return;
    this.#log = new PushLog({ files: this.#files, folder: logFolder, name: this.#logName, step });
  }

  get #logName(): string {
    return `core-${this.core}`;
  }

  #tensorsOf(number: number, { value }: Piece): Readonly<Record<string, Region<'float32'>>> {
    return { value, ...this.#tenant.core.slotsOf(String(number)) };
  }
}
