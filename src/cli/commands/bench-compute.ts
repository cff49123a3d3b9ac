/** `tributary bench compute`: how its result is printed and drawn; it measures nothing itself. */
import { resolve } from 'node:path';
import { barChart, benchCompute } from '../../bench/index.ts';
import type { ComputeBench } from '../../bench/index.ts';
import { table, thousands } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';

export interface ComputeOptions {
  readonly models?: string | undefined;
  readonly rounds?: number | undefined;
  readonly 'turn-ms'?: number | undefined;
  readonly tfjs?: string | undefined;
}

export async function runCompute(given: ComputeOptions, io: CommandIo): Promise<Shown> {
  const result = await benchCompute({
    env: io.env,
    models: given.models?.split(',').map((name) => name.trim()),
    rounds: given.rounds,
    turnMs: given['turn-ms'],
    tfjsFolder: given.tfjs === undefined ? undefined : resolve(io.cwd, given.tfjs),
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  });
  return { result, picture: () => drawn(result), print: () => print(result, io) };
}

function print({ machine, skipped, cases }: ComputeBench, io: CommandIo): void {
  const rate = (value: number | null) => (value === null ? '-' : thousands(value));
  const times = (value: number | null) => (value === null ? '-' : `${value.toFixed(2)}x`);
  const rows = cases.map((one) => [
    one.model,
    String(one.batch),
    rate(one.oursSamplesPerSec),
    rate(one.torchSamplesPerSec),
    times(one.ratio),
    times(one.plainRatio),
    rate(one.tfjsSamplesPerSec),
    times(one.tfjsRatio),
  ]);
  io.stdout.write(
    `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; samples/s, one thread\n`,
  );
  io.stdout.write(
    `${table([['model', 'batch', 'tributary', 'PyTorch', 'ratio', 'to plain', 'TensorFlow.js', 'ratio'], ...rows])}\n`,
  );
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}

/** The ratios to PyTorch as bars. */
function drawn({ cases, machine, date }: ComputeBench): string {
  const bars = cases.flatMap(({ model, batch, ratio, oursSamplesPerSec }) =>
    ratio === null
      ? []
      : [
          {
            label: `${model}, batch ${batch}`,
            value: ratio,
            note: `${ratio.toFixed(2)}x (${thousands(oursSamplesPerSec)} samples/s)`,
          },
        ],
  );
  return barChart(bars, {
    title: 'Training steps against PyTorch at its best',
    subtitle: `one thread each, ${machine.processor}, ${date.slice(0, 10)}; right of the line is faster than PyTorch`,
    reference: 1,
  });
}
