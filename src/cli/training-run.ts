/**
 * One run of `tributary train`, once configuration, data and folder are ready: chooses who computes (`fit` in this
 * process, further workers too, or learner processes), shows what they tell, and leaves metrics and the model in the
 * folder. Invariant: what is written and said does not depend on who computes, but for what is known of learners
 * only.
 */
import { availableParallelism } from 'node:os';
import { join, relative } from 'node:path';
import { asSentence, PeerError } from '../base/index.ts';
import { hasSharedMemory } from '../memory/index.ts';
import {
  fit,
  samplesOfStep,
  WORKER_MARK,
  type FitEvent,
  type FitResult,
  type On,
  type OnLearners,
  type OnWorkers,
} from '../runner/index.ts';
import { evaluate, type Evaluation } from '../runtime/index.ts';
import { AVERAGE, type BuiltModel } from './build-model.ts';
import type { ResolvedConfig } from './config.ts';
import { duration, lossText, percent, thousands } from './format.ts';
import { bold, exitCodeOf, ExitCode, type CommandIo } from './io.ts';
import { chooseLearners, type LearnerChoice, type Measure } from './learner-choice.ts';
import { measureLearners } from './learner-trial.ts';
import type { Reporter } from './reporter.ts';
import { findResumePoint, type ResumePoint } from './resume-point.ts';
import type { EpochMetrics, RunFolder } from './run-folder.ts';
import { trustFlag } from './run-trust.ts';
import { resolveSchedule } from './schedule.ts';
import { SpeedGuard } from './speed-guard.ts';
import type { Task } from './task.ts';
import { exportTrained } from './trained-model.ts';
import { updateOf, whoTrains } from './who-trains.ts';

export interface TrainingRunParts {
  readonly config: ResolvedConfig;
  /** The configuration as later calls find it in the folder. */
  readonly kept: ResolvedConfig;
  readonly task: Task;
  readonly built: BuiltModel;
  readonly folder: RunFolder;
  readonly reporter: Reporter;
  readonly io: CommandIo;
  /** Whether to go on from the newest checkpoint of the folder, if it has one. */
  readonly resume: boolean;
  /**
   * Whether values that servers have of an earlier training are replaced; the folder was emptied
   * before.
   */
  readonly overwrite: boolean;
  /** File for a Chrome trace of workers. Default: none. */
  readonly trace?: string | undefined;
}

export class TrainingRun {
  readonly #parts: TrainingRunParts;
  #epochs: EpochMetrics[] = [];
  #guard: SpeedGuard | undefined;
  #hasStarted = false;
  /** Steps that earlier calls have done. */
  #firstStep = 0;
  /** There is one to go on from. */
  #hasCheckpoint = false;

  constructor(parts: TrainingRunParts) {
    this.#parts = parts;
  }

  async run(): Promise<number> {
    const { config, folder, resume, reporter, io } = this.#parts;
    const from = resume ? findResumePoint(folder) : undefined;
    if (resume && !from) {
      this.#note(
        `There is no checkpoint to go on from in ${shown(folder.checkpoints, io)}: training starts from the beginning.`,
      );
    }
    const on = whoTrains(config);
    if (on.kind === 'workers') this.#tellOfWorkers(on);
    const choice = on.kind === 'learners' ? await this.#choose(on, from) : { learners: 1 };
    // A trial that was stopped has nothing to say.
    const note = io.signal.aborted ? undefined : choice.note;
    if (note !== undefined) reporter.say(note);
    if (note !== undefined || choice.learners > 1) reporter.record({ type: 'learners', ...choice });
    const { learners, singleSamplesPerSec } = choice;
    if (learners > 1 && singleSamplesPerSec !== undefined) {
      this.#guard = new SpeedGuard({ learners, singleSamplesPerSec });
    }
    const start = performance.now();
    const result = await this.#train(on.kind === 'workers' ? config.on : onOfChoice(config.on, choice));
    let code: number;
    try {
      code = result.finished ? this.#finish(result, choice, performance.now() - start) : this.#stop(result);
    } catch (error) {
      // What is said of closing must not hide it.
      await Promise.allSettled([result.close()]);
      throw error;
    }
    // Throws if the trace could not be written: by now everything else is.
    await result.close();
    const { trace } = this.#parts;
    if (trace !== undefined) {
      reporter.say(`The trace is in ${shown(trace, io)}. Open it in https://ui.perfetto.dev`);
    }
    return code;
  }

  readonly #measure: Measure = (team) => {
    const { config, built, task, io } = this.#parts;
    const { model } = built;
    return measureLearners(team, { config, model, train: task.train, signal: io.signal });
  };

  /** It takes seconds until they are there. Those that were started have nothing to tell. */
  #tellOfWorkers({ resources: { workers } }: OnWorkers): void {
    const { reporter, io } = this.#parts;
    if (io.env[WORKER_MARK] === '1') return;
    reporter.say(`Starting ${workers} workers ...`);
    reporter.record({ type: 'starting', workers });
  }

  #choose(on: OnLearners, from: ResumePoint | undefined): Promise<LearnerChoice> {
    const { config, task, reporter, io } = this.#parts;
    // One that was started as a learner is one, of whatever the first process tries out.
    if (io.env[WORKER_MARK] === '1') return Promise.resolve({ learners: 2 });
    let isTold = false;
    const measure: Measure = (team) => {
      // That takes seconds in which nothing else is shown.
      if (team.learners > 1 && !isTold) reporter.say('Trying out how many learners are fastest ...');
      isTold ||= team.learners > 1;
      return this.#measure(team);
    };
    const facts = {
      ...{ config, on, samples: task.train.length, cores: availableParallelism() },
      ...{ isShared: hasSharedMemory(), from },
    };
    return chooseLearners(facts, measure);
  }

  #train(on: On | undefined): Promise<FitResult> {
    const { config, task, built, folder, io, resume, overwrite, trace } = this.#parts;
    const trained = fit(built.model, {
      ...{ on, trace },
      log: (line) => this.#note(line),
      train: task.train,
      test: task.test,
      optimizer: config.optimizer,
      schedule: resolveSchedule(
        config,
        task.train.length,
        samplesOfStep(whoTrains(config), config.batchSize),
      ),
      batchSize: config.batchSize,
      epochs: config.epochs,
      maxSteps: config.maxSteps,
      seed: config.seed,
      sparseUpdates: config.sparseUpdates,
      // The model is exported from this process in the end, whole.
      serverTables: [],
      checkpointDirectory: folder.checkpoints,
      checkpointEverySteps: config.checkpointEverySteps,
      ...{ resume, overwrite },
      signal: io.signal,
      session: { threads: config.threads ?? 1, provider: config.provider ?? 'cpu' },
      onEvent: (event) => this.#onEvent(event),
    });
    return trained.catch((error: unknown) => {
      throw error instanceof PeerError && this.#hasStarted ? this.#withNextStep(error) : error;
    });
  }

  #withNextStep(error: PeerError): PeerError {
    const { folder, io } = this.#parts;
    const command = `npx tributary train ${shown(folder.path, io)}`;
    const trust = trustFlag(this.#parts.kept, { forTraining: true });
    const next = this.#hasCheckpoint
      ? `Go on from the last checkpoint with: ${command} --resume${trust}`
      : 'No checkpoint was written yet; start again by the same command.';
    return new PeerError(error.code, `${asSentence(error.message)} ${next}`, error.facts, error);
  }

  #note(note: string): void {
    this.#parts.reporter.say(note);
    this.#parts.reporter.record({ type: 'note', note });
  }

  #onEvent(event: FitEvent): void {
    const { kept, task, folder, reporter } = this.#parts;
    // Only now: a checkpoint of another configuration must not have its own replaced before it is refused.
    if (event.type === 'started') {
      folder.writeRun(kept, task);
      this.#hasStarted = true;
      this.#firstStep = event.step;
    }
    if (event.type === 'resumed' || event.type === 'checkpoint') this.#hasCheckpoint = true;
    if (event.type === 'resumed') this.#epochs = folder.readEpochs(event.step);
    // What follows the step is trained and told again.
    if (event.type === 'restarted') this.#epochs = this.#epochs.filter(({ step }) => step <= event.step);
    reporter.event(event);
    const warning = event.type === 'progress' ? this.#guard?.look(event.samplesPerSec) : undefined;
    if (warning !== undefined) {
      reporter.say(warning);
      reporter.record({ type: 'slower-than-one', note: warning });
    }
    if (event.type !== 'epoch') return;
    const { epoch, step, loss, evaluation } = event;
    this.#epochs.push({ epoch: epoch + 1, step, loss, evaluation });
    folder.writeMetrics({ epochs: this.#epochs });
  }

  #stop(result: FitResult): number {
    const { folder, reporter, io, kept } = this.#parts;
    const { steps, checkpointPath } = result;
    const trust = trustFlag(kept, { forTraining: true });
    reporter.record({ type: 'interrupted', step: steps, checkpoint: checkpointPath });
    const command = `npx tributary train ${shown(folder.path, io)}`;
    if (checkpointPath === undefined) {
      reporter.say(`Stopped at step ${steps}, before there was a checkpoint.`);
      reporter.say(`Start again with: ${command} --overwrite${trust}`);
    } else {
      reporter.say(`Stopped at step ${steps}; the checkpoint is ${shown(checkpointPath, io)}.`);
      reporter.say(`Go on with: ${command} --resume${trust}`);
    }
    return exitCodeOf(io.signal);
  }

  #finish(result: FitResult, { learners, mode, singleSamplesPerSec }: LearnerChoice, ms: number): number {
    const { config, task, built, folder, reporter, io } = this.#parts;
    const { replica, steps, samplesPerSec, workers } = result;
    const on = whoTrains(config);
    const clients = on.kind === 'workers' && on.way.kind === 'clients' ? on.way : undefined;
    const average = config.movingAverage === undefined ? undefined : AVERAGE;
    const evaluation = this.#evaluate(result, average);
    const model = folder.writeModel(exportTrained(built, replica, { average, labels: task.labels ?? [] }));
    const speedup =
      learners > 1 && singleSamplesPerSec !== undefined ? samplesPerSec / singleSamplesPerSec : undefined;
    const final = {
      ...{ steps, seconds: ms / 1000, samplesPerSec, ...evaluation },
      ...{ learners, mode, speedup, meanStaleness: result.learners?.meanStaleness },
      ...(workers > 1 ? { workers } : {}),
      ...(clients ? { mode: clients.mode, clients: clients.clients } : {}),
    };
    folder.writeMetrics({ epochs: this.#epochs, final });
    reporter.record({
      ...{ type: 'finished', ...final, model },
      ...{ checkpoint: result.checkpointPath, output: folder.path },
    });
    const accuracy = evaluation?.accuracy;
    const results = [
      ...(accuracy === undefined ? [] : [`accuracy ${bold(io, percent(accuracy))}`]),
      ...(evaluation ? [`test loss ${lossText(evaluation.loss)}`] : []),
      `${this.#stepsText(steps)} in ${duration(ms)}`,
      ...(samplesPerSec > 0 ? [`${thousands(samplesPerSec)} samples/s while training`] : []),
    ];
    reporter.say(`Done: ${results.join(', ')}`);
    if (learners > 1) {
      const times = speedup === undefined ? '' : `, ${speedup.toFixed(1)}x as fast as one was in the trial`;
      reporter.say(`${learners} learners trained together (mode ${mode})${times}.`);
    }
    if (clients) {
      reporter.say(`${workers} workers trained in ${clients.clients} clients (mode ${clients.mode}).`);
    } else if (workers > 1) {
      reporter.say(`${workers} workers trained in lock step, with the result of one up to rounding.`);
    }
    reporter.say(`The model is in ${shown(model, io)}. Try it: ${this.#nextCommand()}`);
    return ExitCode.ok;
  }

  /** Those of this call, and of all calls where there were more. */
  #stepsText(steps: number): string {
    // A run that is already longer than it is now told to be.
    const now = Math.max(0, steps - this.#firstStep);
    return now === steps
      ? `${thousands(steps)} steps`
      : `${thousands(now)} steps (${thousands(steps)} in all)`;
  }

  /** The run has evaluated the plain parameters. */
  #evaluate(result: FitResult, average: string | undefined): Evaluation | undefined {
    const { test } = this.#parts.task;
    if (average === undefined) return result.evaluation;
    return test && evaluate(result.replica, test, { average });
  }

  #nextCommand(): string {
    const { config, task, folder, io } = this.#parts;
    const command = `npx tributary predict ${shown(folder.path, io)}`;
    const trust = trustFlag(config, { forTraining: false });
    if (task.kind === 'images')
      return config.data.kind === 'mnist'
        ? `${command} --index 0${trust}`
        : `${command} ${join('path', 'to', 'images')}${trust}`;
    return task.kind === 'text' ? `${command} "your text"${trust}` : `${command} "The " --length 200${trust}`;
  }
}

/** `on` of a configuration by which learners train, with what was chosen. */
function onOfChoice(on: On, { learners, mode }: LearnerChoice): On | undefined {
  if (learners === 1) return undefined;
  return { ...(typeof on === 'object' && 'learners' in on ? on : {}), learners, ...updateOf(mode ?? 'auto') };
}

/** A path as people write it from where they are. */
export function shown(path: string, io: CommandIo): string {
  const short = relative(io.cwd, path);
  return short === '' || short.startsWith('..') ? path : short;
}
