/** `tributary bench runner`: how its result is printed and drawn; it measures nothing itself. */
import { UsageError } from '../../base/index.ts';
import { benchRunner, RUNNER_MODELS, runnerChart } from '../../bench/index.ts';
import type { RunnerBench, RunnerModel } from '../../bench/index.ts';
import { percent, table, thousands } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';
import { asTyped } from './bench-refusal.ts';

export interface RunnerCommandOptions {
  readonly models?: string | undefined;
  readonly workers?: number | undefined;
  readonly batch?: string | undefined;
  readonly peers?: string | undefined;
  readonly rounds?: number | undefined;
  readonly 'turn-ms'?: number | undefined;
}

export async function runRunner(given: RunnerCommandOptions, io: CommandIo): Promise<Shown> {
  const result = await benchRunner({
    env: io.env,
    models: given.models?.split(',').map(readModel),
    workers: given.workers,
    batch: readBatch(given.batch),
    withPeers: readPeers(given.peers),
    rounds: given.rounds,
    turnMs: given['turn-ms'],
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  }).catch(asTyped);
  return { result, picture: () => runnerChart(result), print: () => print(result, io) };
}

function readModel(name: string): RunnerModel {
  const found = RUNNER_MODELS.find((one) => one === name.trim());
  if (found !== undefined) return found;
  throw refused('models', name, RUNNER_MODELS.join(', '));
}

/** The option is a list for `bench scaleup`. */
function readBatch(text: string | undefined): number | undefined {
  if (text === undefined || /^\d+$/.test(text)) return text === undefined ? undefined : Number(text);
  throw refused('batch', text, 'one whole number');
}

function readPeers(text = 'ddp'): boolean {
  if (text === 'ddp' || text === 'none') return text === 'ddp';
  throw refused('peers', text, 'ddp or none');
}

function refused(option: string, actual: string, taken: string): UsageError {
  return new UsageError(
    'INVALID_COMMAND',
    `--${option} has ${JSON.stringify(actual)}; tributary bench runner takes ${taken}.`,
    { option, actual },
  );
}

function print({ machine, cases, notes, skipped }: RunnerBench, io: CommandIo): void {
  const rate = (value: number | null): string => (value === null ? '-' : thousands(value));
  const rows = cases.map((one) => [
    ...[one.model, String(one.workers), String(one.batch), rate(one.samplesPerSec)],
    ...[rate(one.singleSamplesPerSec), rate(one.ceilingSamplesPerSec), `${one.speedup.toFixed(2)}x`],
    ...[
      percent(one.efficiency),
      percent(one.efficiencyInStep),
      one.computeMs.toFixed(2),
      one.waitMs.toFixed(2),
    ],
    ...[rate(one.ddpSamplesPerSec), rate(one.ddpSingleSamplesPerSec)],
  ]);
  const head = [
    ...[
      'model',
      'workers',
      'batch',
      'samples/s',
      'one',
      'ceiling',
      'speed-up',
      'efficiency',
      'of copies in step',
    ],
    ...['compute ms', 'wait ms', 'DDP', 'PyTorch, one'],
  ];
  io.stdout.write(
    `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; batch of each worker, one thread for each process\n`,
  );
  io.stdout.write(`${table([head, ...rows])}\n`);
  for (const note of notes) io.stdout.write(`${note}\n`);
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}
