/** `tributary train`: configuration in, a folder with checkpoints, metrics and an ONNX file out. */
import { existsSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { evaluate, fit, type Evaluation, type FitEvent, type FitResult } from '../../runner/index.ts';
import { AVERAGE, buildModel, type BuiltModel } from '../build-model.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import type { ResolvedConfig } from '../config.ts';
import { checkConfig } from '../config-check.ts';
import { loadConfigFile, looksLikePath } from '../config-file.ts';
import { dataPath, examples } from '../examples.ts';
import { duration, lossText, percent, thousands } from '../format.ts';
import { bold, exitCodeOf, ExitCode, type CommandIo } from '../io.ts';
import { didYouMean } from '../nearest.ts';
import { createReporter, type Reporter } from '../reporter.ts';
import { RunFolder, type EpochMetrics } from '../run-folder.ts';
import { resolveSchedule } from '../schedule.ts';
import { loadTask, type Task } from '../task.ts';
import { exportTrained } from '../trained-model.ts';

const options = {
  output: { kind: 'text', value: 'DIR', help: 'Folder for all results. Default runs/<name>.' },
  epochs: { kind: 'count', help: 'Passes over the training data.' },
  'batch-size': { kind: 'count', help: 'Samples in a batch.' },
  lr: { kind: 'number', help: 'Learning rate of the optimizer.' },
  seed: { kind: 'count', help: 'Decides initial parameters, sample order and dropout.' },
  threads: { kind: 'count', help: 'Threads that share the work of one operation.' },
  provider: { kind: 'text', choices: ['cpu', 'webgpu', 'cuda'], help: 'Where operations run.' },
  'max-steps': { kind: 'count', help: 'Stop after this many steps.' },
  data: {
    kind: 'text',
    value: 'PATH',
    help: 'Data of an example. Default: the environment variable TRIBUTARY_DATA.',
  },
  resume: { kind: 'flag', help: 'Go on from the newest good checkpoint of the folder.' },
  overwrite: { kind: 'flag', help: 'Replace the run that is in the folder.' },
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

export const trainCommand = defineCommand({
  name: 'train',
  summary: 'Train a model: from a configuration file, a ready-made example or an earlier run.',
  operands: '<config.ts | config.json | run folder | example>',
  operandCount: [1, 1],
  options,
  details: [
    'Ready-made examples:',
    ...Object.entries(examples).map(([name, { summary }]) => `  ${name.padEnd(13)}  ${summary}`),
    '',
    'Ctrl-C stops after the current step with a checkpoint; a second one stops at once.',
  ].join('\n'),
  examples: [
    'tributary train mnist',
    'tributary train trec6 --data data/ --epochs 5',
    'tributary train tributary.config.ts --output runs/first',
    'tributary train runs/mnist --resume',
  ],
  run: async ([target], given, io) => train(target!, given, io),
});

async function train(target: string, given: Options, io: CommandIo): Promise<number> {
  const config = override(await findConfig(target, given, io), given);
  const folder = new RunFolder(
    given.output === undefined
      ? (config.output ?? resolve(io.cwd, 'runs', config.name))
      : resolve(io.cwd, given.output),
  );
  const { resume = false, overwrite = false, json = false } = given;
  const task = loadTask(config.data, config.seed, resume ? folder.readWords() : {});
  const built = buildModel(config, task);
  const adapted = { ...task, train: built.adapt(task.train), test: task.test && built.adapt(task.test) };
  const continued = folder.prepare({ resume, overwrite });
  const reporter = createReporter(io, { json, epochs: config.epochs });
  try {
    reporter.record({ type: 'run', name: config.name, output: folder.path, resumed: continued });
    const size = `${thousands(task.train.length)} training samples${task.test ? `, ${thousands(task.test.length)} test samples` : ''}`;
    reporter.say(`${bold(io, config.name)}: ${size}, output in ${shown(folder.path, io)}`);
    for (const note of built.notes) reporter.say(note);
    return await new TrainingRun(config, adapted, built, folder, reporter, io).run(resume);
  } finally {
    reporter.close();
  }
}

async function findConfig(target: string, given: Options, io: CommandIo): Promise<ResolvedConfig> {
  const example = Object.hasOwn(examples, target) ? examples[target] : undefined;
  if (example) {
    const raw = example.configure(dataPath(given.data, io.env, io.cwd));
    return checkConfig(raw, { source: `The example ${target}`, folder: io.cwd, defaultName: target });
  }
  if (!looksLikePath(target) && !existsSync(resolve(io.cwd, target))) {
    const known = Object.keys(examples);
    throw new UsageError(
      'INVALID_COMMAND',
      `tributary train: ${JSON.stringify(target)} is neither a file nor an example.${didYouMean(target, known)} ` +
        `Examples are ${known.join(', ')}. See: tributary train --help`,
      { target },
    );
  }
  if (given.data !== undefined) {
    throw new UsageError(
      'INVALID_COMMAND',
      `--data belongs to the ready-made examples; a configuration names its own data. Change the field data in ${target}.`,
      { target },
    );
  }
  return loadConfigFile(target, io.cwd);
}

/** Options of the command line over the file's; the result is checked as if the file had said it. */
function override(config: ResolvedConfig, given: Options): ResolvedConfig {
  const { epochs, seed, threads, lr } = given;
  const changes = {
    epochs,
    seed,
    threads,
    batchSize: given['batch-size'],
    maxSteps: given['max-steps'],
    provider: given.provider,
    ...(lr === undefined ? {} : { optimizer: { ...config.optimizer, lr } }),
    ...(lr === undefined || config.schedule?.baseLr === undefined
      ? {}
      : { schedule: { ...config.schedule, baseLr: lr } }),
  };
  const defined = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
  const { model } = config;
  const raw = { ...config, ...defined, ...('build' in model ? { model: model.build } : {}) };
  const checked = checkConfig(raw, { source: 'The command line', folder: '/', defaultName: config.name });
  return { ...checked, model };
}

function shown(path: string, io: CommandIo): string {
  const short = relative(io.cwd, path);
  return short === '' || short.startsWith('..') ? path : short;
}

class TrainingRun {
  readonly #config: ResolvedConfig;
  readonly #task: Task;
  readonly #built: BuiltModel;
  readonly #folder: RunFolder;
  readonly #reporter: Reporter;
  readonly #io: CommandIo;
  #epochs: EpochMetrics[] = [];

  constructor(
    config: ResolvedConfig,
    task: Task,
    built: BuiltModel,
    folder: RunFolder,
    reporter: Reporter,
    io: CommandIo,
  ) {
    this.#config = config;
    this.#task = task;
    this.#built = built;
    this.#folder = folder;
    this.#reporter = reporter;
    this.#io = io;
  }

  async run(resume: boolean): Promise<number> {
    const config = this.#config;
    const start = performance.now();
    const result = await fit(this.#built.model, {
      train: this.#task.train,
      test: this.#task.test,
      optimizer: config.optimizer,
      schedule: resolveSchedule(config, this.#task.train.length),
      batchSize: config.batchSize,
      epochs: config.epochs,
      maxSteps: config.maxSteps,
      seed: config.seed,
      sparseUpdates: config.sparseUpdates,
      checkpointDirectory: this.#folder.checkpoints,
      checkpointEverySteps: config.checkpointEverySteps,
      resume,
      signal: this.#io.signal,
      session: { threads: config.threads ?? 1, provider: config.provider ?? 'cpu' },
      onEvent: (event) => this.#onEvent(event),
    });
    try {
      return result.finished ? this.#finish(result, performance.now() - start) : this.#stop(result);
    } finally {
      await result.close();
    }
  }

  #onEvent(event: FitEvent): void {
    // Only now: a checkpoint of another configuration must not have its own replaced before it is refused.
    if (event.type === 'started') this.#folder.writeRun(this.#config, this.#task);
    if (event.type === 'resumed') this.#epochs = this.#folder.readEpochs(event.step);
    this.#reporter.event(event);
    if (event.type !== 'epoch') return;
    const { epoch, step, loss, evaluation } = event;
    this.#epochs.push({ epoch: epoch + 1, step, loss, evaluation });
    this.#folder.writeMetrics({ epochs: this.#epochs });
  }

  #stop(result: FitResult): number {
    const folder = shown(this.#folder.path, this.#io);
    this.#reporter.record({ type: 'interrupted', step: result.steps, checkpoint: result.checkpointPath });
    this.#reporter.say(
      `Stopped at step ${result.steps}; the checkpoint is ${shown(result.checkpointPath ?? '', this.#io)}.`,
    );
    this.#reporter.say(`Go on with: npx tributary train ${folder} --resume`);
    return exitCodeOf(this.#io.signal);
  }

  #finish(result: FitResult, ms: number): number {
    const { replica, steps, samplesPerSec } = result;
    const average = this.#config.movingAverage === undefined ? undefined : AVERAGE;
    const evaluation = this.#evaluate(result, average);
    const model = this.#folder.writeModel(
      exportTrained(this.#built, replica, { average, labels: this.#task.labels ?? [] }),
    );
    const final = { steps, seconds: ms / 1000, samplesPerSec, ...evaluation };
    this.#folder.writeMetrics({ epochs: this.#epochs, final });
    const { path } = this.#folder;
    this.#reporter.record({
      type: 'finished',
      ...final,
      model,
      checkpoint: result.checkpointPath,
      output: path,
    });
    const results = [
      ...(evaluation?.accuracy === undefined
        ? []
        : [`accuracy ${bold(this.#io, percent(evaluation.accuracy))}`]),
      ...(evaluation ? [`test loss ${lossText(evaluation.loss)}`] : []),
      `${thousands(steps)} steps in ${duration(ms)}`,
      ...(samplesPerSec > 0 ? [`${thousands(samplesPerSec)} samples/s`] : []),
    ];
    this.#reporter.say(`Done: ${results.join(', ')}`);
    this.#reporter.say(`The model is in ${shown(model, this.#io)}. Try it: ${this.#nextCommand()}`);
    return ExitCode.ok;
  }

  /** `fit` has evaluated the plain parameters, and nothing if there was no step left to do. */
  #evaluate(result: FitResult, average: string | undefined): Evaluation | undefined {
    const { test } = this.#task;
    if (result.evaluation && average === undefined) return result.evaluation;
    return test && evaluate(result.replica, test, average === undefined ? {} : { average });
  }

  #nextCommand(): string {
    const command = `npx tributary predict ${shown(this.#folder.path, this.#io)}`;
    if (this.#task.kind === 'images')
      return this.#config.data.kind === 'mnist'
        ? `${command} --index 0`
        : `${command} ${join('path', 'to', 'images')}`;
    return this.#task.kind === 'text' ? `${command} "your text"` : `${command} "The " --length 200`;
  }
}
