/** `tributary bench scaleup`: its options, and how its result is printed and drawn; it measures nothing itself. */
import { resolve } from 'node:path';
import { UsageError } from '../../base/index.ts';
import { benchScaleup, SCALEUP_MODES, SCALEUP_PEERS, scaleupChart } from '../../bench/index.ts';
import type { ScaleupBench, ScaleupPeer } from '../../bench/index.ts';
import type { OptionSpecs, OptionValues } from '../command.ts';
import { percent, table, thousands } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';
import { asTyped } from './bench-refusal.ts';

/** On the command line modes are words without spaces. */
const modeNames = SCALEUP_MODES.map((mode) => mode.replaceAll(' ', '-'));

export const scaleupOptions = {
  data: { kind: 'text', value: 'FILE.csv', help: 'scaleup: texts and labels to train on.' },
  learners: { kind: 'text', value: '1,2', help: 'scaleup: processes that train one model. Default 1,2.' },
  batch: {
    kind: 'text',
    value: '1,8',
    help: 'scaleup: samples in a batch of one learner. Default 1,2,8,32.',
  },
  modes: { kind: 'text', value: 'A,B', help: `scaleup: ${modeNames.join(', ')}. Default all.` },
} as const satisfies OptionSpecs;

export interface ScaleupCommandOptions extends OptionValues<typeof scaleupOptions> {
  readonly peers?: string | undefined;
  readonly rounds?: number | undefined;
  readonly 'turn-ms'?: number | undefined;
}

export async function runScaleup(given: ScaleupCommandOptions, io: CommandIo): Promise<Shown> {
  if (given.data === undefined) {
    throw new UsageError(
      'INVALID_COMMAND',
      'tributary bench scaleup needs texts to train on; give them by --data FILE.csv.',
      { option: 'data' },
    );
  }
  const result = await benchScaleup({
    env: io.env,
    data: resolve(io.cwd, given.data),
    learners: readCounts('learners', given.learners),
    batches: readCounts('batch', given.batch),
    modes: given.modes?.split(',').map(readMode),
    peers: readPeers(given.peers),
    rounds: given.rounds,
    turnMs: given['turn-ms'],
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  }).catch(asTyped);
  return { result, picture: () => scaleupChart(result), print: () => print(result, io) };
}

function readCounts(option: string, text: string | undefined): number[] | undefined {
  return text?.split(',').map((word) => {
    if (/^\s*\d+\s*$/.test(word)) return Number(word);
    throw new UsageError(
      'INVALID_COMMAND',
      `--${option} has ${JSON.stringify(word)}; give whole numbers as in --${option} 1,2.`,
      { option, actual: word },
    );
  });
}

function readMode(name: string): (typeof SCALEUP_MODES)[number] {
  const at = modeNames.indexOf(name.trim());
  if (at >= 0) return SCALEUP_MODES[at]!;
  throw new UsageError(
    'INVALID_COMMAND',
    `--modes has ${JSON.stringify(name)}; give some of ${modeNames.join(', ')}.`,
    { option: 'modes', actual: name },
  );
}

function readPeers(text: string | undefined): ScaleupPeer[] | undefined {
  if (text === undefined) return undefined;
  if (text === 'none') return [];
  return text.split(',').map((name) => {
    const peer = SCALEUP_PEERS.find((known) => known === name.trim());
    if (peer !== undefined) return peer;
    throw new UsageError(
      'INVALID_COMMAND',
      `--peers has ${JSON.stringify(name)}; tributary bench scaleup takes ${SCALEUP_PEERS.join(', ')} or none.`,
      { option: 'peers', actual: name },
    );
  });
}

function print({ machine, data, cases, notes, skipped }: ScaleupBench, io: CommandIo): void {
  const rate = (value: number | null): string => (value === null ? '-' : thousands(value));
  const times = (value: number): string => `${value.toFixed(2)}x`;
  const rows = cases.map((one) => [
    ...[String(one.batch), String(one.learners), one.mode, rate(one.samplesPerSec)],
    ...[rate(one.singleSamplesPerSec), rate(one.ceilingSamplesPerSec), times(one.speedup)],
    ...[percent(one.efficiency), one.meanStaleness.toFixed(2), (one.bytesPerSec / 1e9).toFixed(2)],
    ...[rate(one.ddpSamplesPerSec), rate(one.mpiSamplesPerSec), rate(one.torchSamplesPerSec)],
  ]);
  const head = [
    ...['batch', 'learners', 'mode', 'samples/s', 'one', 'ceiling', 'speed-up', 'efficiency'],
    ...['staleness', 'GB/s', 'DDP', 'MPI by hand', 'PyTorch, one'],
  ];
  io.stdout.write(
    `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; text-CNN on ${data}, one thread for each process\n`,
  );
  io.stdout.write(`${table([head, ...rows])}\n`);
  for (const note of notes) io.stdout.write(`${note}\n`);
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}
