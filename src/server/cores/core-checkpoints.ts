/**
 * The checkpoints that the workers of a tenant ask one core for, and what becomes of each request. Terms: a round is one
 * attempt to write the checkpoint of a step; all who ask for that step meanwhile share its outcome. What is written, and how,
 * is the recovery's business. Invariants: everybody who asks is answered; an attempt that failed is never called a success,
 * and whoever was answered before it failed hears of it when he asks next.
 */
import { UsageError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';

type Fail = (error: TributaryError) => void;

interface Round {
  readonly step: number;
  /** In synchronous training: the meeting of the workers that asked for it. */
  readonly meeting: object | undefined;
  result: 'written' | TributaryError | undefined;
  readonly waiting: { readonly done: () => void; readonly fail: Fail }[];
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

export class CoreCheckpoints {
  readonly #namespace: string;
  readonly #write: (step: number, written: () => void, fail: Fail) => void;
  #round: Round | undefined;
  /** By worker: why a checkpoint was not written of which it was told that it would be. */
  readonly #unreported = new Map<number, TributaryError>();

  /** `write`: takes and writes a checkpoint; calls one of the two, once, and throws nothing. */
  constructor(namespace: string, write: (step: number, written: () => void, fail: Fail) => void) {
    this.#namespace = namespace;
    this.#write = write;
  }

  take(request: CheckpointRequest, done: () => void, fail: Fail): void {
    const { worker, step, isDurable } = request;
    const round = this.#roundOf(request);
    if (round === undefined) return fail(this.#unknown(step));
    if (isDurable) return this.#whenSettled(round, done, fail);
    if (round.result instanceof Error) return fail(round.result);
    if (round.result === undefined) round.gone.add(worker);
    this.#report(worker, done, fail);
  }

  /** When nothing is being written any more; fails if the worker has to hear of a failure. */
  settle(worker: number, done: () => void, fail: Fail): void {
    const report = () => this.#report(worker, done, fail);
    if (this.#round === undefined || this.#round.result !== undefined) return report();
    this.#round.waiting.push({ done: report, fail: report });
  }

  /** Training has gone back to this one: it is on the disk. */
  restored(step: number): void {
    this.#round = { step, meeting: undefined, result: 'written', waiting: [], gone: new Set() };
  }

  #roundOf({ step, meeting, isRepeated }: CheckpointRequest): Round | undefined {
    const round = this.#round;
    if (isRepeated) return round?.step === step ? round : undefined;
    // One that failed counts only for those who have met for it; asked for again, it is tried again.
    const isShared = round?.result === undefined || round.result === 'written';
    const isOwn = meeting !== undefined && round?.meeting === meeting;
    return round?.step === step && (isShared || isOwn) ? round : this.#begin(step, meeting);
  }

  #begin(step: number, meeting: object | undefined): Round {
    const round: Round = { step, meeting, result: undefined, waiting: [], gone: new Set() };
    this.#round = round;
    this.#write(
      step,
      () => this.#end(round, 'written'),
      (error) => this.#end(round, this.#notWritten(step, error)),
    );
    return round;
  }

  #end(round: Round, result: 'written' | TributaryError): void {
    round.result = result;
    if (result !== 'written') for (const worker of round.gone) this.#unreported.set(worker, result);
    for (const { done, fail } of round.waiting.splice(0)) {
      if (result === 'written') done();
      else fail(result);
    }
  }

  #whenSettled(round: Round, done: () => void, fail: Fail): void {
    if (round.result === undefined) round.waiting.push({ done, fail });
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

  #unknown(step: number): UsageError {
    const namespace = this.#namespace;
    return new UsageError(
      'CHECKPOINT_NOT_WRITTEN',
      `Whether checkpoint ${step} of '${namespace}' was written is not known, because others were asked for since. Ask for a later one.`,
      { namespace, step },
    );
  }
}
