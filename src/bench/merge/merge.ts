/**
 * `bench merge`: what a step takes when gradients leave one by one, all at once, in buckets, as algorithm 1 of MG-WFBP merges them, and
 * by the exact optimum; predicted and measured, on shared memory and between two hosts with links of a stated rate, which are made of
 * network namespaces. Invariant: mergings of a case take turns in the same processes.
 */
import { execFile } from 'node:child_process';
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { PeerError, TributaryError, UsageError } from '../../base/index.ts';
import type { Merging } from '../../plan/index.ts';
import type { Resources } from '../../runner/index.ts';
import { median } from '../allreduce/index.ts';
import { createHosts, type Hosts } from '../hosts.ts';
import { describeMachine, type Machine } from '../machine.ts';
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
  /** Samples in a batch, over all workers. Default 128. */
  readonly batchSize?: number | undefined;
  /** Alternating rounds. Default 4. */
  readonly rounds?: number | undefined;
  /** Counted steps of each merging in a round. Default 15. */
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

const TIMEOUT_MS = 600_000;
const WARM_UP_STEPS = 3;

export async function benchMerge(options: MergeBenchOptions): Promise<MergeBench> {
  const { models = MERGE_MODELS, links = MERGE_LINKS, onProgress = () => undefined } = options;
  const { workers = 2, rateMbit = 1000, batchSize = 128, rounds = 4, steps = 15 } = options;
  check({ workers, rateMbit, batchSize, rounds, steps });
  const cases: MergeCase[] = [];
  const skipped: string[] = [];
  for (const link of links) {
    let hosts: Hosts | undefined;
    try {
      hosts = link === 'link' ? createHosts({ count: workers, rateMbit }) : undefined;
      const title = hosts ? `${rateMbit} Mbit/s` : 'shared memory';
      for (const model of models) {
        onProgress(`${mergeModels[model].title}, ${title}`);
        const resources = hosts ? resourcesOf(hosts) : { workers };
        const order = {
          model,
          resources,
          batchSize,
          mergings: MERGINGS,
          rounds,
          steps,
          warmupSteps: WARM_UP_STEPS,
        };
        const times = await run(order, hosts, options.signal);
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
  const notes =
    workers >= cpus().length ? [`${workers} workers and all links share ${cpus().length} cores.`] : [];
  return {
    ...{ bench: 'merge', date: new Date().toISOString(), machine: describeMachine() },
    configuration: {
      ...{ workers, batchSize, rounds, steps, warmupSteps: WARM_UP_STEPS, threads: 'one for each worker' },
      measured: 'forward, backward and exchange on the first worker; without loading and updating',
      strategies:
        'layer by layer: WFBP; single: SyncEASGD; buckets: 25 MB, as PyTorch; algorithm 1: MG-WFBP; optimal: dynamic program',
    },
    ...{ skipped, notes, cases },
  };
}

/** The first worker runs on the first host. */
function resourcesOf({ hosts }: Hosts): Resources {
  const machines = hosts.map((host, i) => {
    const { name, address } = host;
    const [file, args] = host.command('');
    return i === 0 ? { name, address } : { name, address, command: [file, ...args.slice(0, -1)] };
  });
  return { machines, transport: 'tcp' };
}

async function run(
  order: MergeOrder,
  hosts: Hosts | undefined,
  signal: AbortSignal | undefined,
): Promise<readonly MergeTimes[]> {
  const fromSources = import.meta.url.endsWith('.ts');
  const program = fileURLToPath(new URL(`./merge-program.${fromSources ? 'ts' : 'js'}`, import.meta.url));
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  const node = [process.execPath, ...loader, program, JSON.stringify(order)] as const;
  const [file, args] = hosts ? hosts.hosts[0]!.command(...node) : [node[0], node.slice(1)];
  try {
    const { stdout } = await promisify(execFile)(file, args, {
      signal,
      timeout: TIMEOUT_MS,
      killSignal: 'SIGKILL',
    });
    return JSON.parse(stdout) as MergeTimes[];
  } catch (cause) {
    throw new PeerError(
      'PEER_EXITED',
      `${order.model} gave no figures; look at what the workers say: ${String((cause as { stderr?: unknown }).stderr ?? cause)}`,
      { model: order.model },
      cause,
    );
  }
}

function check(counts: Readonly<Record<string, number>>): void {
  for (const [name, value] of Object.entries(counts)) {
    if (Number.isSafeInteger(value) && value >= 1) continue;
    throw new UsageError('INVALID_ARGUMENT', `${name} is ${value}; give a whole number above 0`, {
      [name]: value,
    });
  }
}
