/**
 * The checkpoints that the workers of a tenant ask one core for, and what becomes of each request.
 * Terms: a round is one attempt to write the checkpoint of a step; all who ask for that step
 * meanwhile share its outcome. What is written, and how, is the recovery's business. Invariants:
 * everybody who asks is answered; an attempt that failed is never called a success, and whoever was
 * answered before it failed hears of it when he asks next; copies of only so many steps are on
 * their way to the disk.
 */
import { UsageError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import { newerCommon } from '../durability/index.ts';
import type { Common } from '../durability/index.ts';

type Fail = (error: TributaryError) => void;

interface Round {
  readonly step: number;
  /** In synchronous training: the meeting of the workers that asked for it. */
  readonly meeting: object | undefined;
  result: 'written' | TributaryError | undefined;
  readonly waiting: { readonly done: () => void; readonly fail: Fail }[];
  /** Workers that take part in it. */
  readonly asked: Set<number>;
  /** Workers that did not wait for the outcome. */
  readonly gone: Set<number>;
}

export interface CheckpointRequest {
  readonly worker: number;
  readonly step: number;
  /** Whether it is answered only when the checkpoint is on the disk. */
  readonly isDurable: boolean;
  /** In synchronous training: the same object for all workers that have met for it. */
  readonly meeting?: object | undefined;
  /** The request was made before, and its answer was lost. */
  readonly isRepeated?: boolean | undefined;
}

/** Copies of the parameters that wait for the disk: one that is written, one that follows it. */
const MAX_UNWRITTEN = 2;
/** Requests that may wait for them. */
const MAX_AWAITING = 1024;
/**
 * Requests that may wait for one checkpoint: one of each worker, and some whose connections broke.
 */
const MAX_WAITING = 2 ** 17;
/** In the place of a worker where none has asked. */
const NOBODY = -1;
const ignore = () => undefined;

/** What the checkpoints of one core need of the recovery. None of it throws. */
export interface CheckpointWriter {
  /** Whether pushes are refused until a checkpoint is written that is not there yet. */
  readonly needsAnother: boolean;
  /**
   * Takes and writes a checkpoint; calls one of the two, once, the first with the steps of those
   * that are kept.
   */
  checkpoint(step: number, common: Common, written: (kept: readonly number[]) => void, fail: Fail): void;
  /** Tells the other cores that this one gives no part. */
  refuse(step: number, why: TributaryError): void;
  /**
   * Tells the other cores that this one gives its part later, so that nobody waits for one that was
   * asked of some only.
   */
  announce(step: number): void;
}

export class CoreCheckpoints {
  readonly #namespace: string;
  readonly #writer: CheckpointWriter;
  /** Rounds without a result. */
  readonly #unwritten = new Set<Round>();
  /** Steps of checkpoints that are on the disk and stay for now, as far as this core has heard. */
  #kept: readonly number[] = [];
  /** The newest that this process has written or gone back to. */
  #newest = -1;
  /** The newest that a worker has named since training went back. */
  #common: Common;
  /** Requests that wait until there may be another copy, in their order. */
  #awaiting: { readonly request: CheckpointRequest; readonly done: () => void; readonly fail: Fail }[] = [];
  #round: Round | undefined;
  /** Requests that are answered when no checkpoint up to a step is to be written any more. */
  #settling: { readonly upTo: number; readonly report: () => void }[] = [];
  /** By worker: why a checkpoint was not written of which it was told that it would be. */
  readonly #unreported = new Map<number, TributaryError>();

  constructor(namespace: string, writer: CheckpointWriter) {
    this.#namespace = namespace;
    this.#writer = writer;
  }

  /** Steps of checkpoints that are on the disk, and stay there until the next are named. */
  get kept(): readonly number[] {
    return this.#kept;
  }

  /** A worker has named the newest checkpoint that all servers of the training have. */
  named(common: Common): void {
    this.#common = newerCommon(this.#common, common);
  }

  /**
   * A request beyond MAX_UNWRITTEN copies waits; in synchronous training all workers wait with it.
   */
  take(request: CheckpointRequest, done: () => void, fail: Fail): void {
    const { worker, step, isDurable } = request;
    const isAwaited = this.#awaiting.some(({ request: other }) => other.step === step);
    let round = isAwaited && request.isRepeated ? undefined : this.#known(request);
    // It would bring no new log, which the worker asks for.
    if (round?.result === 'written' && !request.isRepeated && this.#writer.needsAnother)
      return fail(this.#needsLater(step));
    if (round === undefined && (!request.isRepeated || isAwaited)) {
      if (!this.#mayBegin(step)) return this.#await(request, done, fail);
      round = this.#begin(request);
    }
    if (round === undefined) return fail(this.#unknown(step));
    round.asked.add(worker);
    if (isDurable) return this.#whenSettled(round, done, fail);
    if (round.result instanceof Error) return fail(round.result);
    if (round.result === undefined) round.gone.add(worker);
    this.#report(worker, done, fail);
  }

  /**
   * Another core gives its part. This one may never be asked for its own: before a restart it had
   * answered whoever asks the other one again.
   */
  join(step: number): void {
    const round = this.#round;
    if (this.#awaiting.some(({ request }) => request.step === step)) return;
    if (round?.step === step && !(round.result instanceof Error)) return;
    if (this.#mayBegin(step)) return void this.#begin({ step });
    this.#await({ worker: NOBODY, step, isDurable: true }, ignore, ignore);
  }

  /**
   * When all that was asked for before is written or given up; fails if the worker has to hear of a
   * failure. `asked`: the last step that it was answered for, maybe by a process before this one,
   * which did not come to write it.
   */
  settle(worker: number, asked: number | undefined, done: () => void, fail: Fail): void {
    const upTo = Math.max(-1, ...this.#unsettled());
    if (this.#settling.length >= MAX_WAITING) return fail(this.#tooMany(upTo));
    const written = (): void => {
      if (asked !== undefined && asked > this.#newest) fail(this.#unwrittenBefore(asked));
      else done();
    };
    this.#settling.push({ upTo, report: () => this.#report(worker, written, fail) });
    this.#letSettle();
  }

  /** Nobody is to wait any more: training goes back. */
  abandon(error: TributaryError): void {
    for (const { fail } of this.#awaiting.splice(0)) fail(error);
    this.#letSettle();
  }

  /**
   * Training has gone back to this one: it is on the disk, and nobody needs to hear of later ones.
   */
  restored(step: number): void {
    this.#round = { ...roundOf({ step }), result: 'written' };
    this.#kept = [step];
    this.#newest = step;
    this.#common = undefined;
    for (const round of this.#unwritten) round.gone.clear();
    this.#unreported.clear();
  }

  /**
   * The round that the request takes part in; undefined: one of its own, if it was not made before.
   */
  #known({ worker, step, meeting, isRepeated }: CheckpointRequest): Round | undefined {
    const round = this.#round;
    if (isRepeated) return round?.step === step ? round : undefined;
    // One that failed counts only for those who have met for it, or have not heard of it: on other
    // cores they may have been in time, and all cores must count alike. Asked for again, it is
    // tried again.
    const isShared = round?.result === undefined || round.result === 'written';
    const isOwn = meeting === undefined ? !round?.asked.has(worker) : round?.meeting === meeting;
    return round?.step === step && (isShared || isOwn) ? round : undefined;
  }

  /** A copy of a step that has one takes its place. */
  #mayBegin(step: number): boolean {
    const steps = this.#unwrittenSteps();
    return steps.size < MAX_UNWRITTEN || steps.has(step);
  }

  #await(request: CheckpointRequest, done: () => void, fail: Fail): void {
    const { step } = request;
    // Cores that wait for each other's parts would wait for ever; and it has no place after a later
    // one.
    const isOvertaken = step < Math.max(...this.#unwrittenSteps());
    if (isOvertaken || this.#awaiting.length >= MAX_AWAITING) {
      const why = isOvertaken ? this.#overtaken(step) : this.#tooMany(step);
      this.#writer.refuse(step, why);
      return fail(why);
    }
    if (!this.#awaiting.some(({ request: other }) => other.step === step)) this.#writer.announce(step);
    this.#awaiting.push({ request, done, fail });
  }

  #begin(request: Pick<CheckpointRequest, 'step' | 'meeting'>): Round {
    const round = roundOf(request);
    const { step } = round;
    this.#round = round;
    this.#unwritten.add(round);
    this.#writer.checkpoint(
      step,
      this.#common,
      (kept) => {
        this.#kept = kept;
        this.#newest = Math.max(this.#newest, step);
        this.#end(round, 'written');
      },
      (error) => this.#end(round, this.#notWritten(step, error)),
    );
    return round;
  }

  #end(round: Round, result: 'written' | TributaryError): void {
    round.result = result;
    this.#unwritten.delete(round);
    if (result !== 'written') for (const worker of round.gone) this.#unreported.set(worker, result);
    for (const { done, fail } of round.waiting.splice(0)) {
      if (result === 'written') done();
      else fail(result);
    }
    const awaiting = this.#awaiting;
    this.#awaiting = [];
    for (const { request, done, fail } of awaiting) this.take(request, done, fail);
    this.#letSettle();
  }

  /** Steps of checkpoints that are being written or wait for it. */
  #unsettled(): number[] {
    return [...this.#unwrittenSteps(), ...this.#awaiting.map(({ request }) => request.step)];
  }

  #unwrittenSteps(): Set<number> {
    return new Set(Array.from(this.#unwritten, ({ step }) => step));
  }

  #letSettle(): void {
    if (this.#settling.length === 0) return;
    const least = Math.min(Infinity, ...this.#unsettled());
    const settling = this.#settling;
    this.#settling = settling.filter(({ upTo }) => upTo >= least);
    for (const { upTo, report } of settling) if (upTo < least) report();
  }

  #whenSettled(round: Round, done: () => void, fail: Fail): void {
    if (round.result === undefined && round.waiting.length >= MAX_WAITING) fail(this.#tooMany(round.step));
    else if (round.result === undefined) round.waiting.push({ done, fail });
    else if (round.result === 'written') done();
    else fail(round.result);
  }

  #report(worker: number, done: () => void, fail: Fail): void {
    const problem = this.#unreported.get(worker);
    this.#unreported.delete(worker);
    if (problem) fail(problem);
    else done();
  }

  #notWritten(step: number, cause: TributaryError): TributaryError {
    if (cause.code === 'CHECKPOINT_NOT_WRITTEN' || cause.code === 'INVALID_ARGUMENT') return cause;
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Checkpoint ${step} of '${namespace}' was not written: ${cause.message}`,
      { namespace, step },
      cause,
    );
  }

  #overtaken(step: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Checkpoint ${step} of '${namespace}' was not written, because those of later steps are being written. ` +
        'Let one worker call checkpoint(), or give steps that grow.',
      { namespace, step },
    );
  }

  #tooMany(step: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Checkpoint ${step} of '${namespace}' was not written, because ${MAX_AWAITING} requests for others wait for the disk. ` +
        'Call checkpoint() less often, or use a faster disk.',
      { namespace, step },
    );
  }

  #needsLater(step: number): UsageError {
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `the checkpoint of step ${step} of '${this.#namespace}' is on the disk already, and pushes are refused until another one is: call checkpoint() with a later step`,
      { namespace: this.#namespace, step },
    );
  }

  #unwrittenBefore(step: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Checkpoint ${step} of '${namespace}' was not written, because the server was started again before it was on the disk. Call checkpoint() again.`,
      { namespace, step, newest: this.#newest },
    );
  }

  #unknown(step: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Whether checkpoint ${step} of '${namespace}' was written is not known, because others were asked for since. Ask for a later one.`,
      { namespace, step },
    );
  }
}

function roundOf({ step, meeting }: Pick<CheckpointRequest, 'step' | 'meeting'>): Round {
  return { step, meeting, result: undefined, waiting: [], asked: new Set(), gone: new Set() };
}
