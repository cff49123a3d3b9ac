/** `tributary plan`: how the gradients of a model would travel between workers here, what that is predicted to take, and why. */
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import type { Model } from '../../graph/index.ts';
import type { ExchangePlan } from '../../plan/index.ts';
import { getRunner, shard, WORKER_MARK } from '../../runner/index.ts';
import { buildModel } from '../build-model.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { bytesText, table } from '../format.ts';
import { findConfig } from '../find-config.ts';
import { ExitCode, type CommandIo } from '../io.ts';
import { checkOutputFile, writeOutputFile } from '../output-file.ts';
import { planPicture } from '../plan-picture.ts';
import { programTable } from '../program-table.ts';
import { trustOption } from '../run-trust.ts';
import { loadTask } from '../task.ts';

const options = {
  workers: { kind: 'count', help: 'Processes that train together. Default: as many as processors.' },
  'batch-size': { kind: 'count', help: 'Samples in a batch, over all workers.' },
  strategy: {
    kind: 'text',
    choices: ['hybrid', 'collectives', 'servers', 'parallax'],
    help: 'Which ways gradients may take. Default hybrid: those of the quickest step.',
  },
  merging: {
    kind: 'text',
    choices: ['optimal', 'layer by layer', 'single', 'buckets', 'algorithm 1'],
    help: 'Which gradients leave together. Default optimal.',
  },
  steps: { kind: 'count', help: 'Steps to measure after planning. Default 30.' },
  picture: { kind: 'text', value: 'FILE.svg', help: 'Draw the lanes of an iteration.' },
  trace: { kind: 'text', value: 'FILE.json', help: 'Write a Chrome trace of the steps; opens in Perfetto.' },
  data: { kind: 'text', value: 'PATH', help: 'Data of an example.' },
  ...trustOption,
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

export const planCommand = defineCommand({
  name: 'plan',
  summary: 'Show how gradients would travel between workers: routes, groups, predicted and measured times.',
  operands: '<config.ts | config.json | run folder | example>',
  operandCount: [1, 1],
  options,
  details: [
    'The workers are started, the first batch is measured, and a few steps are made; nothing is kept.',
    'Last comes the program of a step: its operations, each with what it waits for in other lanes; those',
    'of the step before are in brackets. docs/planning.md explains how routes and groups are chosen.',
  ].join('\n'),
  examples: ['tributary plan mnist', 'tributary plan tributary.config.ts --workers 4 --picture plan.svg'],
  run: ([target], given, io) => plan(target!, given, io),
});

const WARM_UP_STEPS = 5;

async function plan(target: string, given: Options, io: CommandIo): Promise<number> {
  if (given.steps === 0) {
    throw new UsageError(
      'INVALID_COMMAND',
      'tributary plan takes a whole number above 0 for --steps, got 0. See: tributary plan --help',
      { option: 'steps', actual: 0 },
    );
  }
  const config = await findConfig('plan', target, given, io);
  const [trace, picture] = [given.trace, given.picture].map((file) => file && resolve(io.cwd, file));
  const isFirst = io.env[WORKER_MARK] !== '1';
  if (isFirst && trace) checkOutputFile(trace, '--trace');
  if (isFirst && picture) checkOutputFile(picture, '--picture');
  const task = loadTask(config.data, config.seed);
  const built = buildModel(config, task);
  const { workers = availableParallelism(), strategy, merging, steps = 30 } = given;
  const runner = await getRunner(built.model, {
    on: {
      ...{ workers, strategy: strategy as ExchangePlan['strategy'] },
      merging: merging as ExchangePlan['merging'],
    },
    ...{ optimizer: config.optimizer, batchSize: given['batch-size'] ?? config.batchSize },
    ...{ seed: config.seed, sparseUpdates: config.sparseUpdates },
    trace,
  });
  const times: number[] = [];
  let lastMs = 0;
  const maxSteps = WARM_UP_STEPS + steps;
  for await (const { step } of runner.run(shard(built.adapt(task.train)), { epochs: Infinity, maxSteps })) {
    if (step > WARM_UP_STEPS) times.push(performance.now() - lastMs);
    lastMs = performance.now();
  }
  // The other workers end here.
  await runner.leave();
  try {
    const { plan: made } = runner;
    const program = runner.program!;
    const measuredMs = median(times);
    const title = `One iteration of ${config.name} on ${workers} workers`;
    const nothing = 'One worker exchanges nothing; give --workers 2 or more.';
    const shown = made ? printed(made, built.model, measuredMs) : nothing;
    const data = made ? { ...made, workers, measuredMs, picture } : { workers, measuredMs, note: nothing };
    if (given.json) io.stdout.write(`${JSON.stringify({ ...data, program })}\n`);
    else io.stdout.write(`${shown}\n\n${programTable(program)}\n`);
    if (made && picture) writeOutputFile(picture, planPicture(made, title), '--picture');
  } finally {
    // Throws if the trace could not be written; the plan is shown by now.
    await runner.close();
  }
  return ExitCode.ok;
}

function printed(plan: ExchangePlan, { graph }: Model, measuredMs: number): string {
  const servers = plan.bytesByServer.length;
  const head = [
    'parameter',
    'shape',
    'touched',
    'route',
    'group',
    'bytes',
    ...(servers > 0 ? ['on servers'] : []),
  ];
  const rows = plan.parameters.map(({ name, route, group, bytes, sparsity, bytesByServer }) => [
    ...[name, graph.parameters.get(name)!.shape.join('x'), sparsity === undefined ? '' : share(sparsity)],
    ...[route, String(group), bytesText(bytes)],
    ...(servers > 0 ? [bytesByServer.map((one) => bytesText(one)).join(' + ')] : []),
  ]);
  const reasons = [...new Set(plan.parameters.map(({ route, reason }) => `${route}: ${reason}`))];
  const predictions = plan.predictions.map(({ strategy, merging, groups, iterationMs }) => [
    ...[`${strategy}, ${merging}`, String(groups), iterationMs.toFixed(2)],
  ]);
  const candidates = plan.candidates.map(({ name, iterationMs }) => `${name} ${iterationMs.toFixed(2)} ms`);
  return [
    table([head, ...rows]),
    '',
    ...reasons,
    '',
    `Candidates, merged optimally: ${candidates.join(', ')}.`,
    ...(plan.tried ?? []).map(
      ({ name, steps, predictedMs, passesMs }) =>
        `Tried in ${steps} real steps: ${name}, ${passesMs.map((ms) => ms.toFixed(2)).join(' and ')} ms, predicted ${predictedMs.toFixed(2)} ms.`,
    ),
    '',
    table([['strategy', 'messages', 'predicted ms'], ...predictions]),
    '',
    `Chosen: ${plan.reason}. Predicted ${plan.iterationMs.toFixed(2)} ms, measured ${measuredMs.toFixed(2)} ms.`,
  ].join('\n');
}

function share(value: number): string {
  return `${(100 * value).toPrecision(2)} %`;
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN;
}
