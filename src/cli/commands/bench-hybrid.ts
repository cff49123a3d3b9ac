/** `tributary bench hybrid`: its own option, and how its result is printed and drawn; it measures nothing itself. */
import { benchHybrid, gainText, HYBRID_LINKS, HYBRID_MODELS, hybridChart } from '../../bench/index.ts';
import type { HybridBench } from '../../bench/index.ts';
import type { OptionSpecs, OptionValues } from '../command.ts';
import { bytesText, table, thousands } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';
import type { MergeCommandOptions } from './bench-merge.ts';
import { readNames } from './bench-names.ts';
import { asTyped } from './bench-refusal.ts';

export const hybridOptions = {
  hosts: {
    kind: 'count',
    help: 'hybrid: hosts with links, 2 to 16, which share the workers evenly. Default 2, for lm also 8, for large-lm also 4.',
  },
} as const satisfies OptionSpecs;

export type HybridCommandOptions = MergeCommandOptions & OptionValues<typeof hybridOptions>;

export async function runHybrid(given: HybridCommandOptions, io: CommandIo): Promise<Shown> {
  const result = await benchHybrid({
    models: readNames(given.models, { bench: 'hybrid', option: 'models', known: HYBRID_MODELS }),
    links: readNames(given.links, { bench: 'hybrid', option: 'links', known: HYBRID_LINKS }),
    workers: given.workers,
    hosts: given.hosts,
    rateMbit: given.rate,
    rounds: given.rounds,
    steps: given.steps,
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  }).catch(asTyped);
  return { result, picture: () => hybridChart(result), print: () => print(result, io) };
}

function print({ machine, cases, notes, skipped }: HybridBench, io: CommandIo): void {
  const rows = cases.map((one) => [
    ...[one.model, String(one.workers), String(one.hosts), one.link, one.strategy],
    ...[thousands(one.samplesPerSec), one.relativeToBestPure.toFixed(3)],
    ...[one.gain === undefined ? '' : gainText(one.gain), one.stepMs.toFixed(2)],
    ...[one.predictedMs.toFixed(2), bytesText(one.rowBytes), routesText(one.routes)],
  ]);
  const head = [
    ...['model', 'workers', 'hosts', 'link', 'strategy', 'samples/s', 'of best pure', 'gain'],
    ...['step ms', 'predicted ms', 'rows', 'routes'],
  ];
  io.stdout.write(
    `${machine.processor}, ${machine.cores} cores, Node ${machine.node}; one thread for each worker; predicted without loading and updating\n`,
  );
  io.stdout.write(`${table([head, ...rows])}\n`);
  for (const note of notes) io.stdout.write(`${note}\n`);
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}

/** `collective 8, server rows 1` */
function routesText(routes: Readonly<Record<string, number>>): string {
  return Object.entries(routes)
    .map(([route, count]) => `${route} ${count}`)
    .join(', ');
}
