/** `tributary bench`: runs a benchmark of `src/bench` and prints it; measures nothing itself. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { barChart, benchCompute, type ComputeBench } from '../../bench/index.ts';
import { defineCommand, type OptionSpecs, type OptionValues } from '../command.ts';
import { table, thousands } from '../format.ts';
import { ExitCode, type CommandIo } from '../io.ts';
import { didYouMean } from '../nearest.ts';

const options = {
  models: { kind: 'text', value: 'A,B', help: 'Only these models. Default all.' },
  rounds: { kind: 'count', help: 'Alternating rounds, at least 5. Default 7.' },
  'turn-ms': { kind: 'count', help: 'Shortest time of one turn in milliseconds. Default 400.' },
  tfjs: {
    kind: 'text',
    value: 'DIR',
    help: 'Folder with TensorFlow.js (npm install --prefix DIR @tensorflow/tfjs @tensorflow/tfjs-backend-wasm). Default: left out.',
  },
  picture: { kind: 'text', value: 'FILE', help: 'Also write the ratios to PyTorch as an SVG.' },
  output: { kind: 'text', value: 'FILE', help: 'Also write the JSON form here.' },
} as const satisfies OptionSpecs;

type Options = OptionValues<typeof options> & { readonly json?: boolean };

const benches = ['compute'] as const;

export const benchCommand = defineCommand({
  name: 'bench',
  summary: 'Measure training steps here and in other systems on this machine.',
  operands: '<compute>',
  operandCount: [1, 1],
  options,
  examples: ['tributary bench compute', 'tributary bench compute --models mlp,textcnn --json'],
  run: async ([what], given: Options, io) => {
    if (what !== 'compute') {
      throw new UsageError(
        'INVALID_COMMAND',
        `tributary bench has no benchmark ${JSON.stringify(what)}; it has ${benches.join(', ')}.${didYouMean(what!, benches)}`,
        { bench: what },
      );
    }
    const result = await benchCompute({
      env: io.env,
      models: given.models?.split(',').map((name) => name.trim()),
      rounds: given.rounds,
      turnMs: given['turn-ms'],
      tfjsFolder: given.tfjs === undefined ? undefined : resolve(io.cwd, given.tfjs),
      signal: io.signal,
      onProgress: (message) => io.stderr.write(`${message}\n`),
    });
    if (given.output !== undefined) {
      write(resolve(io.cwd, given.output), `${JSON.stringify(result, undefined, 2)}\n`, '--output');
    }
    if (given.picture !== undefined) write(resolve(io.cwd, given.picture), drawn(result), '--picture');
    if (given.json) io.stdout.write(`${JSON.stringify(result)}\n`);
    else print(result, io);
    return ExitCode.ok;
  },
});

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

function write(file: string, text: string, option: string): void {
  try {
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(
      'FILE_NOT_WRITTEN',
      `${file} could not be written: ${reason}. Give another place by ${option}.`,
      { file },
      cause,
    );
  }
}
