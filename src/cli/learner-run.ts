/**
 * A training run by learner processes in the terms of a run by `fit`: the same events, the same result, so that whoever shows
 * or stores a run need not know who computed it. Decides nothing.
 * Invariant: steps count up to `totalSteps`, which is that of the same run by `fit`.
 */
import { extname } from 'node:path';
import type { Evaluation } from '../runner/index.ts';
import { trainWithLearners } from '../learners/index.ts';
import type { LearnerTask, TaskSource, TrainEvent, UpdateMode } from '../learners/index.ts';
import type { Replica } from '../runtime/index.ts';
import type { ResolvedConfig } from './config.ts';
import type { RunEvent } from './reporter.ts';
import type { ResumePoint } from './resume-point.ts';

/** What a learner process is told: plain data, but for what is for this process only. */
export interface LearnerTaskData {
  readonly config: ResolvedConfig;
  /** Run folder whose vocabulary and labels are used. Default: they are made from the training data. */
  readonly wordsFrom?: string | undefined;
  /** Whether it only measures: no test data. Default false. */
  readonly isTrial?: boolean | undefined;
  /**
   * What this process has loaded already, so that it need not do so twice. A function, as JSON leaves functions out: other
   * processes are not told, and load by themselves. Default: everybody does.
   */
  readonly loaded?: (() => Pick<LearnerTask, 'model' | 'train' | 'test'>) | undefined;
}

/** What `fit` and learners both give. */
export interface Trained {
  readonly replica: Replica;
  readonly steps: number;
  /** False if the signal stopped it. */
  readonly finished: boolean;
  readonly evaluation: Evaluation | undefined;
  readonly samplesPerSec: number;
  readonly checkpointPath: string | undefined;
  /** Of learners: updates by others between reading the weights and applying a gradient, mean over all batches. */
  readonly meanStaleness?: number;
  /** Of `fit`: processes that trained in lock step. */
  readonly workers?: number;
  close(): void | Promise<void>;
}

export interface LearnerRunOptions {
  readonly task: LearnerTaskData;
  readonly learners: number;
  /** Default 'direct lock-free'. */
  readonly mode?: UpdateMode | undefined;
  /** Of an epoch. */
  readonly batches: number;
  /** Of the model; for people. */
  readonly parameters: number;
  readonly checkpointDirectory: string;
  /** Whether the folder's run is gone on with, from the beginning if none of its checkpoints is good. */
  readonly resume: boolean;
  /** Where to go on. Default: from the beginning. */
  readonly from?: ResumePoint | undefined;
  readonly signal: AbortSignal;
  readonly onEvent: (event: RunEvent) => void;
  /** Logs lines for people. */
  readonly log: (line: string) => void;
}

export function taskSource(data: LearnerTaskData): TaskSource {
  const module = new URL(`./learner-task${extname(import.meta.url)}`, import.meta.url).href;
  return { module, data };
}

export async function runLearners(options: LearnerRunOptions): Promise<Trained> {
  const { task, learners, mode, from, resume, checkpointDirectory, signal, onEvent, log } = options;
  const { epochs, checkpointEverySteps } = task.config;
  if (from) onEvent({ type: 'resumed', path: from.path, step: from.step });
  const translate = translator(options);
  let keptStep: number | undefined;
  const result = await trainWithLearners({
    ...{ source: taskSource(task), learners, mode, epochs, resume, signal, log },
    ...{ checkpointDirectory, checkpointEverySteps },
    onEvent: (event) => {
      if (event.type === 'checkpoint') keptStep = event.step;
      onEvent(translate(event));
    },
  });
  if (result.finished) return result;
  // Batches under way when the signal came are in the checkpoint, and a run goes on from there.
  const steps = keptStep ?? result.steps;
  onEvent({ type: 'stopped', step: steps });
  return { ...result, steps };
}

/** From the events of learners to those of `fit`. */
export function translator(
  options: Pick<LearnerRunOptions, 'task' | 'batches' | 'parameters' | 'from'>,
  now: () => number = () => performance.now(),
): (event: TrainEvent) => RunEvent {
  const firstStep = options.from?.step ?? 0;
  const totalSteps = options.batches * options.task.config.epochs;
  // Processes take a while to start, which says nothing about the time that is left.
  let begun: { readonly step: number; readonly atMs: number } | undefined;
  return (event) => {
    switch (event.type) {
      case 'started':
        return { type: 'started', step: firstStep, totalSteps, parameters: options.parameters };
      case 'progress': {
        const { step, epoch, loss, samplesPerSec } = event;
        if (step > firstStep) begun ??= { step, atMs: now() };
        const msPerStep = begun && step > begun.step ? (now() - begun.atMs) / (step - begun.step) : NaN;
        const remainingMs = msPerStep * (totalSteps - step);
        return { type: 'progress', step, totalSteps, epoch, loss, samplesPerSec, remainingMs };
      }
      case 'epoch': {
        const { evaluation, ...rest } = event;
        return { ...rest, ...(evaluation ? { evaluation } : {}) };
      }
      case 'checkpoint':
      case 'checkpoint-skipped':
      case 'checkpoint-not-removed':
      case 'learner-lost':
      case 'restarted':
        return event;
    }
  };
}
