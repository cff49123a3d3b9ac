/** `tributary train`: configuration in, a folder with checkpoints, metrics and an ONNX file out. */
import { resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { OnnxRuntime } from '../../compute/index.ts';
import { readNonce, WORKER_MARK } from '../../runner/index.ts';
import { buildModel } from '../build-model.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import type { ResolvedConfig } from '../config.ts';
import { checkConfig } from '../config-check.ts';
import { examples } from '../examples.ts';
import { findConfig } from '../find-config.ts';
import { thousands } from '../format.ts';
import { bold, type CommandIo } from '../io.ts';
import { checkOutputFile } from '../output-file.ts';
import { createReporter } from '../reporter.ts';
import { findResumePoint } from '../resume-point.ts';
import { RunFolder } from '../run-folder.ts';
import { checkMachines, trustOption } from '../run-trust.ts';
import { loadTask } from '../task.ts';
import { shown, TrainingRun } from '../training-run.ts';
import { onOfFlags, whoTrains, whoTrainsOptions } from '../who-trains.ts';

const options = {
  output: { kind: 'text', value: 'DIR', help: 'Folder for all results. Default runs/<name>.' },
  epochs: { kind: 'count', help: 'Passes over the training data.' },
  'batch-size': {
    kind: 'count',
    help: 'Samples in a batch. Clients with elastic averaging share that of an example.',
  },
  lr: { kind: 'number', help: 'Learning rate of the optimizer.' },
  seed: { kind: 'count', help: 'Decides initial parameters, sample order and dropout.' },
  ...whoTrainsOptions,
  trace: {
    kind: 'text',
    value: 'FILE.json',
    help: 'With --workers: write a Chrome trace of the steps; opens in Perfetto.',
  },
  threads: { kind: 'count', help: 'Threads that share the work of one operation.' },
  provider: { kind: 'text', choices: ['cpu', 'webgpu', 'cuda'], help: 'Where operations run.' },
  'max-steps': { kind: 'count', help: 'Stop this call once the run has so many steps.' },
  data: {
    kind: 'text',
    value: 'PATH',
    help: 'Data of an example. Default: the environment variable TRIBUTARY_DATA.',
  },
  resume: {
    kind: 'flag',
    help: 'Go on from the newest good checkpoint of the folder. Not with --overwrite.',
  },
  overwrite: { kind: 'flag', help: 'Replace the run that is in the folder.' },
  ...trustOption,
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
    'Learners share the weights in memory and update them as they come: results differ a little from run to run, and',
    '--learners 1 makes a run repeatable. --mode says who applies their gradients:',
    '  direct lock-free  each learner its own, whenever it has one',
    '  server lock-free  one more process for all; may pay with many cores',
    '  direct locked, server locked  alike, but one at a time; slower, for comparing',
    '',
    'Workers each compute their share of every batch. Without a mode they wait for the sum of all gradients, and the model',
    'is that of one process up to rounding; batch normalisation alone goes by the mean and variance of each share.',
    'Modes of workers, for --mode; with mpi, --clients groups of workers deal with the servers, with dist each worker:',
    '  collective           no servers, all in lock step',
    '  dist-sgd, mpi-sgd    servers add up the gradients of all clients; the result is that of one process',
    '  dist-asgd, mpi-asgd  servers apply the gradients of a client as they come; --staleness bounds how far it is ahead',
    '  dist-esgd, mpi-esgd  clients have weights of their own, which are averaged with those of the servers',
    'Checkpoints go from one mode to another. docs/modes.md says what every option means in each mode.',
    '',
    'Texts in CSV files: data.textColumn and data.labelColumn are fields by number, counted from 0, or by name if the first row holds names.',
    '',
    'Ctrl-C stops after the current step with a checkpoint; a second one stops at once.',
  ].join('\n'),
  outlivesReader: true,
  examples: [
    'tributary train mnist',
    'tributary train trec6 --data data/ --epochs 5',
    'tributary train tributary.config.ts --output runs/first',
    "tributary train mnist --learners 2 --mode 'direct lock-free'",
    'tributary train mnist --workers 2 --batch-size 256',
    'tributary train mnist --workers 4 --mode mpi-esgd --clients 2',
    'tributary train runs/mnist --resume',
  ],
  run: async ([target], given, io) => train(target!, given, io),
});

async function train(target: string, given: Options, io: CommandIo): Promise<number> {
  checkWay(given);
  const found = await findConfig('train', target, given, io);
  const asked = override(found, given, io);
  checkMachines(asked, resolve(io.cwd, target), given.trust ?? false);
  const on = whoTrains(asked);
  const isByWorkers = on.kind === 'workers';
  if (given.trace !== undefined && !isByWorkers) {
    throw new UsageError(
      'INVALID_COMMAND',
      'tributary train writes a trace of several workers only: give --workers 2 or more with --trace. See: tributary train --help',
      { option: 'trace' },
    );
  }
  const folder = new RunFolder(
    given.output === undefined
      ? (asked.output ?? resolve(io.cwd, 'runs', asked.name))
      : resolve(io.cwd, given.output),
  );
  const { resume = false, overwrite = false, json = false } = given;
  const isAsExample = Object.hasOwn(examples, target) && given['batch-size'] === undefined;
  const config = isAsExample
    ? { ...asked, batchSize: batchOfExample(asked, resume ? folder : undefined) }
    : asked;
  checkProvider(config);
  if (isByWorkers && on.way.access) readNonce(on.way.access);
  const task = loadTask(config.data, config.seed, resume ? folder.readWords() : {});
  const built = buildModel(config, task);
  const adapted = { ...task, train: built.adapt(task.train), test: task.test && built.adapt(task.test) };
  // Workers that this command has started find the folder as the first process has made it, and write nothing.
  const isFirst = io.env[WORKER_MARK] !== '1';
  const trace = given.trace === undefined ? undefined : resolve(io.cwd, given.trace);
  if (isFirst && trace !== undefined) checkOutputFile(trace, '--trace');
  // Steps that a call is limited to say nothing about the calls that go on with its run.
  const kept = { ...config, maxSteps: found.maxSteps };
  const reporter = createReporter(io, { json, epochs: config.epochs });
  try {
    const continued = isFirst ? folder.prepare({ resume, overwrite }) : resume;
    // What is replaced may be what this command, and with it every worker, is told to train by.
    if (isFirst && overwrite) folder.writeRun(kept, task);
    reporter.record({ type: 'run', name: config.name, output: folder.path, resumed: continued });
    const size = `${thousands(task.train.length)} training samples${task.test ? `, ${thousands(task.test.length)} test samples` : ''}`;
    reporter.say(`${bold(io, config.name)}: ${size}, output in ${shown(folder.path, io)}`);
    for (const note of built.notes) reporter.say(note);
    const run = new TrainingRun({
      ...{ config, kept, task: adapted, built, folder, reporter, io },
      // Not whether there is something to continue: all workers must ask for the same.
      ...{ resume, overwrite, trace },
    });
    return await run.run();
  } catch (error) {
    // It must not be in the way of the next start.
    if (isFirst && !hasCheckpoint(folder)) folder.abandon();
    throw error;
  } finally {
    reporter.close();
    folder.release();
  }
}

/**
 * The batch size of an example is that of one process. Clients with weights of their own share it:
 * each would make fewer updates otherwise, and end less accurate. A run goes on with the size that
 * it has.
 */
function batchOfExample(config: ResolvedConfig, run: RunFolder | undefined): number {
  if (run?.hasConfig) return run.readStoredConfig().batchSize;
  const { batchSize } = config;
  const who = whoTrains(config);
  const isElastic =
    who.kind === 'workers' && who.way.kind === 'clients' && who.way.consistency.kind === 'elastic';
  return isElastic ? Math.max(1, Math.round(batchSize / who.way.clients)) : batchSize;
}

/** One that lacks its libraries or a device is refused before anything is loaded, tried out or written. */
function checkProvider({ provider = 'cpu' }: ResolvedConfig): void {
  if (provider === 'cpu') return;
  const runtime = OnnxRuntime.load();
  try {
    runtime.tryProvider(provider);
  } finally {
    runtime.close();
  }
}

/** Whether there may be something to go on from. */
function hasCheckpoint(folder: RunFolder): boolean {
  try {
    return findResumePoint(folder) !== undefined;
  } catch {
    return true;
  }
}

/** Options of the command line over the file's; the result is checked as if the file had said it. */
function override(config: ResolvedConfig, given: Options, io: CommandIo): ResolvedConfig {
  const { epochs, seed, threads, lr } = given;
  const changes = {
    epochs,
    seed,
    threads,
    batchSize: given['batch-size'],
    maxSteps: given['max-steps'],
    on: onOfFlags(given, config.on, io.cwd),
    provider: given.provider,
    ...(lr === undefined ? {} : { optimizer: { ...config.optimizer, lr } }),
    ...(lr === undefined || config.schedule?.baseLr === undefined
      ? {}
      : { schedule: { ...config.schedule, baseLr: lr } }),
  };
  const defined = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
  const { model } = config;
  const raw = {
    ...{ ...config, ...defined },
    ...('build' in model ? { model: model.build } : {}),
  };
  const checked = checkConfig(raw, { source: 'The command line', folder: '/', defaultName: config.name });
  return { ...checked, model };
}

/** What becomes of a run that is there already. */
function checkWay({ resume, overwrite }: Options): void {
  if (!resume || !overwrite) return;
  throw new UsageError(
    'INVALID_COMMAND',
    'tributary train takes --resume or --overwrite, not both: one goes on with the run, the other replaces it. See: tributary train --help',
    { options: ['--resume', '--overwrite'] },
  );
}
