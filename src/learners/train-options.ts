/**
 * What a run of learners takes, tells and gives. Types only; what `on` says is checked by
 * `resolveOn`. Invariant: events and result have the fields of those of `fit`, with the same
 * meaning, and more where learners have more to say.
 */
import type { ScriptCommand } from '../launcher/index.ts';
import type { Evaluation, Replica, UsedFolderOptions } from '../runtime/index.ts';
import type { UpdateMode } from './update-mode.ts';

/** What is the same as in the options of `fit` is explained there. */
export interface TrainOptions extends UsedFolderOptions {
  /** Processes that train at the same time; more than cores is allowed. */
  readonly learners: number;
  /** Who applies gradients, and how. Default 'direct lock-free'. */
  readonly mode?: UpdateMode | undefined;
  /** Default 1. */
  readonly epochs?: number | undefined;
  readonly maxSteps?: number | undefined;
  /** Processes started in place of ones that died, at most, from the beginning or the last restart. Default 8. */
  readonly maxReplacements?: number | undefined;
  /**
   * How often all processes are started again from the last checkpoint when no learner is left or nothing moves. Default
   * 1.
   */
  readonly maxRestarts?: number | undefined;
  /** A learner that finishes no batch for so long is ended and replaced. Default 60,000 milliseconds. */
  readonly stallMs?: number | undefined;
  /**
   * A process that has not come to the call after so long is ended and replaced. Default 600,000
   * milliseconds.
   */
  readonly startMs?: number | undefined;
  readonly checkpointDirectory?: string | undefined;
  readonly checkpointEverySteps?: number | undefined;
  /**
   * Folder of this user (mode 0700) on a shared-memory file system, for weights and gradients. Default
   * /dev/shm/tributary-<uid>.
   */
  readonly segmentDirectory?: string | undefined;
  /**
   * Program and arguments of the processes. Default: those of this one, so that they run the same
   * script.
   */
  readonly command?: ScriptCommand | undefined;
  readonly progressIntervalMs?: number | undefined;
  /** Logs lines for people. Default: to the error output. */
  readonly log?: ((line: string) => void) | undefined;
  /** Stops after the batches under way, with a checkpoint. */
  readonly signal?: AbortSignal | undefined;
  readonly onEvent?: ((event: TrainEvent) => void) | undefined;
}

/** The processes of a run, by their ids. */
export type Processes = {
  /** Of each learner that could be started. */
  readonly learners: readonly number[];
  /** Of the server, in the modes that have one. */
  readonly server: number | undefined;
};

export type TrainEvent =
  | { readonly type: 'resumed'; readonly path: string; readonly step: number }
  | ({
      readonly type: 'started';
      readonly epoch: number;
      /** Steps that the weights contain already. */
      readonly step: number;
      readonly totalSteps: number;
      /** Elements of all. */
      readonly parameters: number;
    } & Processes)
  | ({
      readonly type: 'progress';
      readonly epoch: number;
      readonly step: number;
      readonly totalSteps: number;
      readonly remainingMs: number;
      /** Learners that have begun to train. */
      readonly ready: number;
    } & Progress)
  | {
      readonly type: 'learner-lost';
      /** Its number; undefined: it was the server. */
      readonly learner: number | undefined;
      /** Undefined: it could not be started. */
      readonly pid: number | undefined;
      /** How it ended, or why it could not be started, for people. */
      readonly how: string;
      /** Batches that others take instead. */
      readonly returned: readonly number[];
      /** Batches of which a part is in the weights; they count, and nobody repeats them. */
      readonly torn: readonly number[];
      /** The process in its place. */
      readonly replacement: number | undefined;
    }
  | ({
      readonly type: 'restarted';
      /** From 1. */
      readonly restart: number;
      /** Why, for people. */
      readonly why: string;
      /** Where training goes on; undefined: from the first weights. */
      readonly checkpoint: string | undefined;
      /** Steps that count; what was trained after them is trained again, and epochs after them are reported again. */
      readonly step: number;
    } & Processes)
  | {
      readonly type: 'epoch';
      readonly epoch: number;
      readonly step: number;
      readonly loss: number;
      readonly evaluation?: Evaluation;
    }
  | { readonly type: 'stopped'; readonly step: number }
  | { readonly type: 'checkpoint'; readonly path: string; readonly step: number }
  | {
      /** A newer checkpoint than the one that the run goes on from was damaged. */
      readonly type: 'checkpoint-skipped';
      readonly path: string;
      readonly reason: string;
    }
  | {
      /**
       * An older checkpoint is no longer kept, but could not be removed; the next one tries again.
       */
      readonly type: 'checkpoint-not-removed';
      readonly path: string;
      readonly reason: string;
    };

export interface Progress {
  readonly samplesPerSec: number;
  /** Mean over the samples since the epoch began. */
  readonly loss: number;
  /** Updates by others between reading the weights and applying the gradient, mean over all batches. */
  readonly meanStaleness: number;
}

export interface TrainResult extends Progress {
  /** Batches that the weights contain, those of a checkpoint that it went on from included. */
  readonly steps: number;
  /** Of the batches that this call trained, each once: what was lost and trained again counts once. */
  readonly samples: number;
  /** False if the signal stopped it. */
  readonly finished: boolean;
  readonly evaluation: Evaluation | undefined;
  /** Processes started in place of ones that died. */
  readonly replacements: number;
  readonly restarts: number;
  readonly checkpointPath: string | undefined;
  /** Holds the trained parameters; `close` ends it. */
  readonly replica: Replica;
  close(): void;
}
