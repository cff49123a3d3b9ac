/**
 * `bench merge`: what a step takes when gradients leave one by one, all at once, in buckets, as algorithm 1 of MG-WFBP merges them, and
 * by the exact optimum; predicted and measured, on shared memory and between two hosts with links of a stated rate, which are made of
 * network namespaces. Invariant: mergings of a case take turns in the same processes.
 */
import { cpus } from 'node:os';
import { TributaryError } from '../../base/index.ts';
import type { Merging } from '../../plan/index.ts';
import { median } from '../allreduce/index.ts';
import { requireCounts } from '../argument-checks.ts';
import { createHosts, type Hosts } from '../hosts.ts';
import { StolenTime } from '../stolen-time.ts';
import { describeMachine, type Machine } from '../machine.ts';
import { workersOn, runScript } from '../runner-script.ts';
import { MERGE_MODELS, mergeModels, type MergeModel } from './merge-models.ts';
import type { MergeOrder, MergeTimes } from './merge-program.ts';

export const MERGE_LINKS = ['shm', 'link'] as const;
export type MergeLink = (typeof MERGE_LINKS)[number];
const MERGINGS: readonly Merging[] = ['layer by layer', 'single', 'buckets', 'algorithm 1', 'optimal'];

export interface MergeBenchOptions {
  /** Default all. */
  readonly models?: readonly MergeModel[] | undefined;
  /** Shared memory, or hosts with limited links, of one worker each. Default both. */
  readonly links?: readonly MergeLink[] | undefined;
  /** Default 2. */
  readonly workers?: number | undefined;
  /** Of the link of each host, in Mbit/s. Default 1,000. */
  readonly rateMbit?: number | undefined;
  /** Samples in a batch of one worker. Default: what suits the model. */
  readonly batchSize?: number | undefined;
  /** Alternating rounds. Default 8. */
  readonly rounds?: number | undefined;
  /** Counted steps of each merging in a round. Default 8. */
  readonly steps?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: ((message: string) => void) | undefined;
}

export interface MergeCase {
  readonly model: string;
  readonly workers: number;
  readonly link: string;
  readonly strategy: Merging;
  /** Messages a step. */
  readonly groups: number;
  readonly predictedMs: number;
  /** Median over all counted steps. */
  readonly measuredMs: number;
}

export interface MergeBench {
  readonly bench: 'merge';
  /** ISO 8601. */
  readonly date: string;
  readonly machine: Machine;
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  readonly notes: readonly string[];
  readonly cases: readonly MergeCase[];
}

const WARM_UP_STEPS = 3;
const SCRIPT = new URL('./merge-program', import.meta.url);

export async function benchMerge(options: MergeBenchOptions): Promise<MergeBench> {
  const { models = MERGE_MODELS, links = MERGE_LINKS, onProgress = () => undefined } = options;
  const { workers = 2, rateMbit = 1000, batchSize, rounds = 8, steps = 8 } = options;
  requireCounts({ workers, rateMbit, rounds, steps, ...(batchSize === undefined ? {} : { batchSize }) });
  const stolen = new StolenTime();
  const cases: MergeCase[] = [];
  const skipped: string[] = [];
  const notes: string[] = [];
  for (const link of links) {
    let hosts: Hosts | undefined;
    try {
      hosts = link === 'link' ? createHosts({ count: workers, rateMbit, ownProcessors: true }) : undefined;
      const title = hosts ? `${rateMbit} Mbit/s` : 'shared memory';
      for (const model of models) {
        onProgress(`${mergeModels[model].title}, ${title}`);
        const on = hosts ? workersOn(hosts) : { workers };
        const order: MergeOrder = {
          model,
          on,
          batchSize: workers * (batchSize ?? mergeModels[model].batchEach),
          mergings: MERGINGS,
          rounds,
          steps,
          warmupSteps: WARM_UP_STEPS,
        };
        const times = await runScript<MergeTimes[]>({
          ...{ script: SCRIPT, order, title: `${mergeModels[model].title}, ${title}`, hosts },
          signal: options.signal,
        });
        const single = times.find(({ merging }) => merging === 'single')!;
        notes.push(
          `${mergeModels[model].title}, ${title}: the plans were made from ${single.computeMs.toFixed(1)} ms of computing and ${single.exchangeMs.toFixed(1)} ms of one message with everything.`,
        );
        notes.push(...sameMessages(times).map((which) => `${mergeModels[model].title}, ${title}: ${which}`));
        cases.push(
          ...times.map(({ merging, groups, predictedMs, stepsMs }) => ({
            ...{ model: mergeModels[model].title, workers, link: title, strategy: merging, groups },
            ...{ predictedMs, measuredMs: median(stepsMs) },
          })),
        );
      }
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      skipped.push(`limited links: ${error.message}`);
    } finally {
      hosts?.close();
    }
  }
  const cores = cpus().length;
  if (workers >= cores) notes.push(`${workers} workers and all links share ${cores} cores.`);
  notes.push(...stolen.notes());
  return {
    ...{ bench: 'merge', date: new Date().toISOString(), machine: describeMachine() },
    configuration: {
      ...{ workers, rounds, steps, warmupSteps: WARM_UP_STEPS, threads: 'one for each worker' },
      samplesInBatchOfWorker: Object.fromEntries(
        models.map((model) => [model, batchSize ?? mergeModels[model].batchEach]),
      ),
      hosts: 'network namespaces with a processor of their own each, as far as there are enough',
      measured: 'forward, backward and exchange on the first worker; without loading and updating',
      strategies:
        'layer by layer: WFBP; single: SyncEASGD; buckets: 25 MB, as PyTorch; algorithm 1: MG-WFBP; optimal: dynamic program',
    },
    ...{ skipped, notes, cases },
  };
}

/** Different figures for the same messages would be noise under several names. */
function sameMessages(times: readonly MergeTimes[]): string[] {
  const cuts = [...new Set(times.map(({ cut }) => cut))];
  return cuts
    .map((cut) => times.filter((one) => one.cut === cut).map(({ merging }) => merging))
    .filter((mergings) => mergings.length > 1)
    .map((mergings) => `${mergings.join(', ')} send the same messages and were measured together.`);
}
