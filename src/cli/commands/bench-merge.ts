/** `tributary bench merge`: its options, and how its result is printed and drawn; it measures nothing itself. */
import { benchMerge, MERGE_LINKS, MERGE_MODELS, mergeChart } from '../../bench/index.ts';
import type { MergeBench } from '../../bench/index.ts';
import type { OptionSpecs, OptionValues } from '../command.ts';
import { table } from '../format.ts';
import type { CommandIo } from '../io.ts';
import type { Shown } from './bench.ts';
import { readNames } from './bench-names.ts';
import { asTyped } from './bench-refusal.ts';

export const mergeOptions = {
  links: {
    kind: 'text',
    value: 'A,B',
    help: `merge, hybrid: ${MERGE_LINKS.join(' (shared memory), ')} (hosts of network namespaces, needs root). Default both.`,
  },
  rate: { kind: 'count', value: 'MBIT', help: 'merge, hybrid: rate of the links, in Mbit/s. Default 1,000.' },
  steps: {
    kind: 'count',
    help: 'merge, hybrid: counted steps of each merging or strategy in a round. Default 8 (merge), 15 (hybrid).',
  },
} as const satisfies OptionSpecs;

export interface MergeCommandOptions extends OptionValues<typeof mergeOptions> {
  readonly models?: string | undefined;
  readonly workers?: number | undefined;
  readonly rounds?: number | undefined;
}

export async function runMerge(given: MergeCommandOptions, io: CommandIo): Promise<Shown> {
  const result = await benchMerge({
    models: readNames(given.models, { bench: 'merge', option: 'models', known: MERGE_MODELS }),
    links: readNames(given.links, { bench: 'merge', option: 'links', known: MERGE_LINKS }),
    workers: given.workers,
    rateMbit: given.rate,
    rounds: given.rounds,
    steps: given.steps,
    signal: io.signal,
    onProgress: (message) => io.stderr.write(`${message}\n`),
  }).catch(asTyped);
  return { result, picture: () => mergeChart(result), print: () => print(result, io) };
}

function print({ machine, cases, notes, skipped }: MergeBench, io: CommandIo): void {
  const rows = cases.map(({ model, workers, link, strategy, groups, predictedMs, measuredMs }) => [
    ...[
      model,
      String(workers),
      link,
      strategy,
      String(groups),
      predictedMs.toFixed(2),
      measuredMs.toFixed(2),
    ],
  ]);
  const head = ['model', 'workers', 'link', 'merging', 'messages', 'predicted ms', 'measured ms'];
  io.stdout.write(`${machine.processor}, ${machine.cores} cores, Node ${machine.node}\n`);
  io.stdout.write(`${table([head, ...rows])}\n`);
  for (const note of notes) io.stdout.write(`${note}\n`);
  for (const note of skipped) io.stderr.write(`Left out: ${note}\n`);
}
