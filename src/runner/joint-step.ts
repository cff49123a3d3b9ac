/**
 * A training step that workers make together: a contract. `SharedStep` is lock step by a plan,
 * `ClientStep` deals with servers in groups of workers. Invariants: after a step the replica has
 * the parameters of that step, and its step is one more; workers that make a step together know the
 * same loss.
 */
import type { Part } from '../data/index.ts';
import type { RemoteTables, SomeWorkers } from '../exchange/index.ts';
import type { ExchangePlan, Merging, StepProgram } from '../plan/index.ts';

/** Operations behind a step, which the runner asks for. */
export type Asked = 'evaluate' | 'checkpoint';

/** What a worker has of a batch. */
export interface StepShare {
  /** In the replica's inputs. */
  readonly samples: ArrayLike<number>;
  /** Samples of the batch, over all its parts. */
  readonly batchSize: number;
  /** Whether workers take their parts of the same batch; otherwise each has one of its own. */
  readonly isShared: boolean;
  /** Learning rate of this step. Default: that of the optimizer. */
  readonly lr: number | undefined;
}

export interface StepOutcome {
  /** Mean over the samples of all who made the step together. */
  readonly loss: number;
  /** Of all workers. */
  readonly samples: number;
  /** Forward and backward pass of this worker's share. */
  readonly computeMs: number;
  /** For others, behind the backward pass. */
  readonly waitMs: number;
}

export interface JointStep {
  /** How gradients travel, from the first step on, where that is planned. */
  readonly plan: ExchangePlan | undefined;
  /** What a step does, from the first one on. */
  readonly program: StepProgram | undefined;
  /** Other messages from the next step on; all workers call it between the same steps. */
  regroup(merging: Merging): ExchangePlan | undefined;
  /** Samples that all workers have gone through after one step. */
  readonly stepSamples: number;
  /** This worker's part of a batch of so many. */
  readonly part: Part;
  /** Those who make a step together, with this worker's place among them. */
  readonly together: SomeWorkers & { readonly index: number };
  /** Before the first step of a run. All workers call it. */
  begin(): Promise<void>;
  /**
   * One step by the program, which loads its batch itself. Throws what `checkLoss` throws before
   * anything is updated.
   */
  step(load: () => StepShare, checkLoss: (loss: number) => void): Promise<StepOutcome>;
  /** Whether an operation behind the step is due; the same on all workers. */
  isDue(kind: Asked, isEpochEnd: boolean): boolean;
  /** Does its work, when what it waits for has ended. */
  call<T>(kind: Asked, work: () => T | Promise<T>): Promise<T>;
  /** Whether to stop before the next step; the same on all who make it together. */
  isStopped(signal: AbortSignal | undefined): boolean;
  /**
   * After the last step of a run: settles when all workers have ended theirs. May be called again.
   */
  end(): Promise<void>;
  /** The run is left early; others may go on. */
  leaveRun(): Promise<void>;
  /**
   * Does the work while the replica has the values that count, and then what it had before. All who
   * make a step together call it, or with `alone` the first worker. `withState`: also what the
   * optimizer keeps, and averages. `average`: also this one.
   */
  withValues<T>(
    work: () => T | Promise<T>,
    options?: {
      readonly alone?: boolean;
      readonly withState?: boolean;
      readonly average?: string | undefined;
    },
  ): Promise<T>;
  /** The same for good, with the optimizer's state, on the first worker. */
  fetchAll(): Promise<void>;
  /**
   * Brings the rows of tables that are on servers only for an evaluation of the batch in the
   * replica's inputs; by a moving average, its rows too.
   */
  prepareRows(samples: ArrayLike<number>, average?: string): Promise<void>;
  /**
   * Those tables. Undefined before the first step: then they are nowhere yet, or in a checkpoint.
   */
  readonly remoteTables: RemoteTables | undefined;
  close(): Promise<void>;
  /** Without waiting for the others, as after an error. */
  abort(): Promise<void>;
}
