/**
 * How one core of a tenant goes back to a checkpoint, together with all its workers, and how it
 * gives its part of one. Terms: to rewind is to give up what is under way, meet, and go back
 * together. What asynchronous training does instead of going back is in `journal.ts`. Invariant:
 * between the loss and the end of the restore nothing is applied.
 */
import { pack, PeerError, UsageError } from '../../base/index.ts';
import type { PackedError, TributaryError } from '../../base/index.ts';
import type { Region } from '../../memory/index.ts';
import type { SpaceBytes } from '../../sockets/index.ts';
import type { StoredBatch } from './journal.ts';
import type { Common } from '../durability/index.ts';
import type { Answers, CorePart, TenantOffice } from './office.ts';
import { piecesOf, putBack, takeSnapshot } from './snapshot.ts';
import type { CoreSnapshot, PieceSnapshot, SnapshotSource } from './snapshot.ts';
import { runInTurn } from './task-sequence.ts';
import type { Task } from './task-sequence.ts';
import type { Piece } from './piece.ts';
import type { Tenant } from './tenant.ts';

/** The room where all meet before they go back. */
const REWIND = 'rewind';

type Fail = (error: TributaryError) => void;
const ignore = () => undefined;

export class Recovery {
  readonly #tenant: Tenant;
  readonly #office: TenantOffice;
  readonly #bytes: SpaceBytes;
  readonly core: number;
  /** Why nothing can be done until all have gone back. */
  #rewound: PeerError | undefined;
  /** How often that was so. */
  #losses = 0;
  #isRestoring = false;
  /** The attempt of each worker that counts. */
  readonly #attempts = new Map<number, string>();
  /** By worker, the steps that it could go back to, as it said in its last attempt. */
  readonly #candidates = new Map<number, { readonly attempt: string; readonly steps: readonly number[] }>();
  /** The attempts by which training went back last. */
  #round: string | undefined;
  readonly #afterRestore: { readonly done: () => void; readonly fail: Fail }[] = [];
  /** Ends what `run` has begun. */
  #giveUp: (() => void) | undefined;

  constructor(tenant: Tenant, office: TenantOffice, bytes: SpaceBytes, core: number) {
    this.#tenant = tenant;
    this.#office = office;
    this.#bytes = bytes;
    this.core = core;
  }

  /** Throws if training must go back first. */
  check(): void {
    if (this.#rewound) throw this.#rewound;
  }

  /** Whether training goes back before anything else is done. */
  get isRewinding(): boolean {
    return this.#rewound !== undefined;
  }

  /** Gives up what is under way; all that wait receive the error. */
  begin(why: string): void {
    if (this.#rewound) return;
    const { namespace } = this.#tenant.service;
    this.#rewound = new PeerError(
      'REWOUND',
      `training of '${namespace}' goes back to a checkpoint, because ${why}; call resume() and go on after the step that it returns`,
      { namespace, why },
    );
    this.#losses++;
    this.#tenant.core.abandon(this.#rewound);
    this.#tenant.meetings.clear(this.#rewound, REWIND);
    this.#tenant.checkpoints.abandon(this.#rewound);
    this.#tenant.letStart();
  }

  /**
   * The worker has given up what it did, and says which attempt to go back this is; `done` with the
   * checkpoints here.
   */
  rewind(worker: number, attempt: string, done: (checkpoints: readonly number[]) => void, fail: Fail): void {
    this.#attempts.set(worker, attempt);
    this.begin(`worker ${worker} asked for it`);
    this.#office.ask({ kind: 'checkpoints', namespace: this.#tenant.service.namespace }, done, fail);
  }

  /**
   * Where all workers meet, on one core only, so that nobody's attempt is paired with different
   * ones of another's. `done` with the attempts that belong together and the newest step that is
   * everywhere.
   */
  gather(
    worker: number,
    attempt: string,
    steps: readonly number[],
    done: (attempts: Readonly<Record<string, string>>, step: number | undefined) => void,
    fail: Fail,
  ): void {
    this.#candidates.set(worker, { attempt, steps });
    const go = (attempts?: Readonly<Record<string, string>>) => {
      // The answer was lost: better to begin anew than to remember all answers.
      if (attempts === undefined) return fail(this.#again());
      const lists = Object.entries(attempts).map(([one, met]) => {
        const said = this.#candidates.get(Number(one));
        return said?.attempt === met ? said.steps : undefined;
      });
      if (!lists.every((list) => list !== undefined)) return fail(this.#again());
      const others = lists.slice(1).map((list) => new Set(list));
      done(attempts, lists[0]!.filter((step) => others.every((list) => list.has(step))).at(-1));
    };
    this.#tenant.meetings.enter(REWIND, worker, { token: attempt, go, fail });
  }

  /** Its connection broke: if it comes back it says again where it can go back to. */
  lose(worker: number): void {
    this.#candidates.delete(worker);
  }

  /**
   * A new process in the place of a worker, or none: what the one before it said does not count.
   */
  forget(worker: number): void {
    this.#candidates.delete(worker);
    this.#attempts.delete(worker);
  }

  /**
   * Undefined: there is no checkpoint, and training goes on where it is. Done once for all who have
   * met.
   */
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
    // Asynchronous training takes nothing back: the servers have all that they acknowledged.
    if (step === undefined || !this.#tenant.isSynchronous) return finish();
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

  /**
   * For asynchronous training, before anything else: the newest checkpoint, and what was logged
   * after it.
   */
  *recover({ newest, problems }: Answers['recover']): Generator<Task, void> {
    const { journal } = this.#tenant;
    if (newest === undefined) return yield* journal.replay(undefined, problems);
    try {
      if (newest.log === null) throw this.#otherTraining(newest.step, 'synchronous');
      if (newest.optimizer !== null) yield this.#setOptimizer(newest.optimizer);
      for (const { batch, plan } of newest.batches as StoredBatch[]) {
        yield* this.#tenant.openAgain({ kind: 'values', batch, plan, values: [] });
      }
      yield this.#putBack(newest.snapshot);
    } finally {
      this.#tenant.space.releaseRange(newest.snapshot.memory);
    }
    this.#tenant.checkpoints.restored(newest.step);
    yield* journal.replay(newest.log, problems);
  }

  get needsAnother(): boolean {
    return this.#tenant.journal.needsCheckpoint;
  }

  /**
   * The pieces as they are now, to be written in the background. One of the two is called, whatever
   * happens.
   */
  checkpoint(step: number, common: Common, written: (kept: readonly number[]) => void, fail: Fail): void {
    const { namespace } = this.#tenant.service;
    const losses = this.#losses;
    const give = (part: CorePart | { readonly failure: PackedError }) =>
      this.#office.ask(
        { kind: 'checkpoint', namespace, core: this.core, step, part, common },
        ({ firstLog, kept }) => {
          if ('snapshot' in part) this.#tenant.journal.written(part.log, firstLog);
          written(kept);
        },
        fail,
      );
    // In lock step it is of what was given up: after going back it must not meet the new parts of
    // other cores.
    const isGivenUp = () => this.#tenant.isSynchronous && this.#losses !== losses;
    this.#tenant.work.run(
      this.#takePart(give, isGivenUp),
      ignore,
      // The other cores have given their parts, or will: they must hear of it too.
      (error) => (isGivenUp() ? fail(error) : give({ failure: pack(error) })),
    );
  }

  /**
   * No copy is taken of that step, which is later than those that are being written allow; the
   * other cores must hear of it.
   */
  refuse(step: number, why: TributaryError): void {
    const { namespace } = this.#tenant.service;
    const part = { failure: pack(why) };
    const question = {
      kind: 'checkpoint',
      namespace,
      core: this.core,
      step,
      part,
      common: undefined,
    } as const;
    this.#office.ask(question, ignore, ignore);
  }

  /** The checkpoint of that step waits until earlier ones are written or given up. */
  announce(step: number): void {
    const { namespace } = this.#tenant.service;
    this.#office.ask({ kind: 'await-checkpoint', namespace, core: this.core, step }, ignore, ignore);
  }

  /** Gives back what is under way, for which nobody waits any more. */
  close(): void {
    this.#giveUp?.();
  }

  *#takePart(taken: (part: CorePart) => void, isGivenUp: () => boolean): Generator<void, void> {
    const { core, optimizer, space, journal } = this.#tenant;
    yield* core.catchUpAll();
    const snapshot = yield* takeSnapshot(space, this.#bytes, this.#sources());
    let part: CorePart;
    try {
      if (isGivenUp()) throw this.#again();
      const log = journal.cut();
      part = { optimizer, log, batches: log === null ? [] : this.#tenant.storedBatches(), snapshot };
    } catch (error) {
      space.releaseRange(snapshot.memory);
      throw error;
    }
    taken(part);
  }

  *#sources(): Generator<SnapshotSource, void> {
    const { core } = this.#tenant;
    for (const [number, piece] of this.#tenant.openPieces()) {
      const progress = core.progressOf(String(number));
      yield { number, piece, ...progress, tensors: this.#tensorsOf(number, piece) };
    }
  }

  #restore(step: number, done: () => void, fail: Fail): void {
    const { namespace } = this.#tenant.service;
    this.#office.ask(
      { kind: 'restore', namespace, core: this.core, step },
      (part) => this.run(this.#takeBack(step, part), done, fail),
      fail,
    );
  }

  *#takeBack(step: number, { optimizer, log, snapshot }: CorePart): Generator<Task, void> {
    const question = { namespace: this.#tenant.service.namespace, core: this.core, step };
    try {
      if (log !== null) throw this.#otherTraining(step, 'asynchronous');
      if (optimizer !== null) yield this.#setOptimizer(optimizer);
      yield this.#inParts(this.#tenant.fillRestored(snapshot));
      yield this.#putBack(snapshot);
    } finally {
      this.#tenant.space.releaseRange(snapshot.memory);
    }
    yield (done, fail) => this.#office.ask({ ...question, kind: 'gone-back' }, () => done(), fail);
    // It is there already.
    this.#tenant.checkpoints.restored(step);
  }

  /** One at a time: going back to where training was, or to where it goes on from. */
  run(tasks: Iterator<Task, void>, done: () => void, fail: Fail): void {
    const ended = () => (this.#giveUp = undefined);
    this.#giveUp = () => tasks.return?.();
    runInTurn(
      tasks,
      () => {
        ended();
        done();
      },
      (error) => {
        ended();
        fail(error);
      },
    );
  }

  #setOptimizer(spec: unknown): Task {
    return (done, fail) => this.#tenant.setOptimizer(spec, done, fail);
  }

  #inParts(steps: Iterator<unknown, void>): Task {
    return (done, fail) => this.#tenant.work.run(steps, done, fail);
  }

  #putBack(snapshot: CoreSnapshot): Task {
    return this.#inParts(this.#putBackPieces(snapshot));
  }

  /** All of them are looked at before the first is changed. */
  *#putBackPieces(snapshot: CoreSnapshot): Generator<void, void> {
    const own: { readonly state: PieceSnapshot; readonly piece: Piece }[] = [];
    for (const state of piecesOf(snapshot)) {
      const piece = this.#tenant.pieces.get(state.piece);
      const [stored, opened] = [planOf(state), piece && planOf({ ...piece.shape, key: piece.key.key })];
      if (piece === undefined || stored !== opened) throw this.#otherPlan(String(state.key), piece);
      own.push({ state, piece });
      yield;
    }
    for (const { state, piece } of own) {
      putBack(this.#bytes, state, piece, this.#tensorsOf(state.piece, piece));
      this.#tenant.core.restore(String(state.piece), state.version, state.lastSteps);
      yield;
    }
  }

  #otherPlan(key: string, piece: Piece | undefined): UsageError {
    const { namespace, logFolder: path } = this.#tenant.service;
    return new UsageError(
      'CHECKPOINT_MISMATCH',
      `The checkpoint of '${namespace}' in ${path} has key '${key}', which is ${piece ? 'cut otherwise or in another place' : 'not there'} now; ` +
        'init the same keys in the same order, with the same servers and chunks, before resume(), or give another folder.',
      { namespace, path, key },
    );
  }

  #otherTraining(step: number, kind: string): UsageError {
    const { namespace, logFolder: path } = this.#tenant.service;
    return new UsageError(
      'CHECKPOINT_MISMATCH',
      `Checkpoint ${step} of '${namespace}' in ${path} is of ${kind} training; train the same way, or give another folder.`,
      { namespace, path, step },
    );
  }

  #tensorsOf(number: number, { value }: Piece): Readonly<Record<string, Region<'float32'>>> {
    return { value, ...this.#tenant.core.slotsOf(String(number)) };
  }
}

interface Placed {
  readonly key: unknown;
  readonly start: number;
  readonly length: number;
  readonly ranges: readonly (readonly [number, number])[];
}

function planOf({ key, start, length, ranges }: Placed): string {
  return JSON.stringify([String(key), start, length, ranges]);
}
