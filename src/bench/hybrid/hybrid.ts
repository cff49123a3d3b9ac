/**
 * `bench hybrid`: samples a second when all gradients go by servers, all by collectives, or each by the cheaper way, and what each
 * switch of Parallax's table 4 adds; on shared memory and between hosts with links of a stated rate, which are made of network
 * namespaces. Invariant: strategies that are compared take turns in the same processes, on the same samples.
 */
import { cpus } from 'node:os';
import { TributaryError, UsageError } from '../../base/index.ts';
import { requireCounts } from '../argument-checks.ts';
import { createHosts, type Hosts } from '../hosts.ts';
import { StolenTime } from '../stolen-time.ts';
import { describeMachine } from '../machine.ts';
import { workersOn, runScript } from '../runner-script.ts';
import { casesOf, titleOf, type HybridBench, type HybridCase } from './hybrid-case.ts';
import { HYBRID_MODELS, hybridModels, type HybridModel } from './hybrid-models.ts';
import type { HybridOrder, HybridTimes } from './hybrid-program.ts';
import { STRATEGIES, SWITCHES } from './strategies.ts';

export const HYBRID_LINKS = ['shm', 'link'] as const;
export type HybridLink = (typeof HYBRID_LINKS)[number];

export interface HybridBenchOptions {
  /** Default all. */
  readonly models?: readonly HybridModel[] | undefined;
  /** Shared memory, or hosts with limited links. Default both. */
  readonly links?: readonly HybridLink[] | undefined;
  /**
   * Over all hosts. Default 2 on shared memory; with links one for each host, for 'lm' and 'large-lm'
   * also two for each of two.
   */
  readonly workers?: number | undefined;
  /**
   * Hosts with links, 2 to 16, which share the workers evenly. Default 2, for 'lm' also 8, for
   * 'large-lm' also 4; with `workers`: as many.
   */
  readonly hosts?: number | undefined;
  /** Of the link of each host, in Mbit/s. Default 1,000. */
  readonly rateMbit?: number | undefined;
  /** Alternating rounds. Default 4. */
  readonly rounds?: number | undefined;
  /** Counted steps of each strategy in a round. Default 15. */
  readonly steps?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** What is going on, in words. */
  readonly onProgress?: ((message: string) => void) | undefined;
}

/** Workers of one case. */
interface Layout {
  readonly hosts: number;
  readonly workersEach: number;
  /** Whether the switches are measured too. */
  readonly hasSwitches: boolean;
}

interface Turns {
  readonly rateMbit: number;
  readonly rounds: number;
  readonly steps: number;
}

const WARM_UP_STEPS = 3;
const CHECKED_STEPS = 3;
const SCRIPT = new URL('./hybrid-program', import.meta.url);
const TIMEOUT_MS = 1_200_000;

export async function benchHybrid(options: HybridBenchOptions): Promise<HybridBench> {
  const { models = HYBRID_MODELS, links = HYBRID_LINKS, workers, hosts } = options;
  const { rateMbit = 1000, rounds = 4, steps = 15 } = options;
  requireCounts({ workers, hosts, rateMbit, rounds, steps });
  requireLayout(options);
  const stolen = new StolenTime();
  const cases: HybridCase[] = [];
  const skipped: string[] = [];
  for (const link of links) {
    try {
      for (const model of models) {
        for (const layout of layoutsOf(model, link, options)) {
          cases.push(...(await measure(model, link, layout, { rateMbit, rounds, steps }, options)));
        }
      }
    } catch (error) {
      if (!(error instanceof TributaryError) || error.code !== 'MISSING_COMPONENT') throw error;
      skipped.push(`limited links: ${error.message}`);
    }
  }
  const most = Math.max(0, ...cases.map((one) => one.workers));
  const cores = cpus().length;
  return {
    ...{ bench: 'hybrid', date: new Date().toISOString(), machine: describeMachine() },
    configuration: configurationOf(models, { rateMbit, rounds, steps }),
    skipped,
    notes: [
      ...cases.flatMap((one) =>
        one.strategy === 'hybrid' && one.samePlanAs
          ? [
              `${titleOf(one)}: hybrid is the plan of ${one.samePlanAs.join(', ')}; their steps count together.`,
            ]
          : [],
      ),
      ...cases.flatMap((one) =>
        one.relativeToBest === undefined
          ? []
          : [`${titleOf(one)}: hybrid is ${one.relativeToBest.toFixed(3)} of the best of all rows.`],
      ),
      ...(most >= cores
        ? [
            `Up to ${most} workers, their servers and all links share ${cores} cores: more workers are not more samples a second here. Compare strategies of one group only.`,
          ]
        : []),
      ...stolen.notes(),
    ],
    cases,
  };
}

async function measure(
  model: HybridModel,
  link: HybridLink,
  { hosts: count, workersEach, hasSwitches }: Layout,
  { rateMbit, rounds, steps }: Turns,
  { signal, onProgress = () => undefined }: HybridBenchOptions,
): Promise<readonly HybridCase[]> {
  const { title, batchEach, fitsManyTimes } = hybridModels[model];
  const workers = count * workersEach;
  const linkTitle = link === 'link' ? `${rateMbit} Mbit/s` : 'shared memory';
  const group = { model: title, workers, hosts: count, link: linkTitle };
  const groupTitle = titleOf(group);
  const inActs = [STRATEGIES, SWITCHES.slice(0, 3), SWITCHES.slice(2)];
  const acts = hasSwitches ? (fitsManyTimes ? [[...STRATEGIES, ...SWITCHES]] : inActs) : [STRATEGIES];
  onProgress(`${groupTitle}: ${acts.length} act(s) of ${rounds} round(s) of ${steps} steps of each strategy`);
  const hosts: Hosts | undefined =
    link === 'link' ? createHosts({ count, rateMbit, ownProcessors: true }) : undefined;
  try {
    const batchSize = batchEach * workers;
    const times: HybridTimes[][] = [];
    for (const strategies of acts) {
      const order: HybridOrder = {
        ...{ model, on: hosts ? workersOn(hosts, workersEach) : { workers } },
        ...{ batchSize, strategies, rounds, steps },
        ...{ warmupSteps: WARM_UP_STEPS, checkedSteps: CHECKED_STEPS },
      };
      times.push(
        await runScript<HybridTimes[]>({
          ...{ script: SCRIPT, order, title: groupTitle, hosts, timeoutMs: TIMEOUT_MS, signal },
        }),
      );
    }
    const cases = casesOf(group, batchSize, times);
    for (const { strategy, samplesPerSec, relativeToBestPure } of cases)
      onProgress(
        `  ${strategy}: ${samplesPerSec.toFixed(0)} samples/s, ${relativeToBestPure.toFixed(2)} of the best pure one`,
      );
    return cases;
  } finally {
    hosts?.close();
  }
}

/** Every strategy has a replica in every worker, and all of them share one memory. */
const MOST_WITH_SWITCHES = 4;

function layoutsOf(model: HybridModel, link: HybridLink, given: HybridBenchOptions): readonly Layout[] {
  if (link === 'shm') return [{ hosts: 1, workersEach: given.workers ?? 2, hasSwitches: false }];
  const { hasTables } = hybridModels[model];
  const hosts = given.hosts ?? given.workers;
  if (hosts !== undefined) {
    const workers = given.workers ?? hosts;
    const hasSwitches = hasTables && workers <= MOST_WITH_SWITCHES;
    return [{ hosts, workersEach: workers / hosts, hasSwitches }];
  }
  if (model === 'large-lm') {
    return [
      { hosts: 4, workersEach: 1, hasSwitches: true },
      // Dense gradients of a host's workers go to servers twice, and once around by collectives.
      { hosts: 2, workersEach: 2, hasSwitches: true },
    ];
  }
  if (model !== 'lm') return [{ hosts: 2, workersEach: 1, hasSwitches: hasTables }];
  return [
    // Workers that could add up among themselves first.
    { hosts: 2, workersEach: 2, hasSwitches: true },
    // Rows that everybody gathers grow with the number of hosts, those of servers do not (table 3 of Parallax).
    { hosts: 8, workersEach: 1, hasSwitches: false },
  ];
}

function requireLayout({ workers, hosts = workers, links = HYBRID_LINKS }: HybridBenchOptions): void {
  if (workers === 1) refuse(`workers is 1; give 2 or more, as one has nothing to exchange`, { workers });
  if (hosts === undefined || !links.includes('link')) return;
  if (hosts < 2 || hosts > MAX_HOSTS) {
    refuse(`${hosts} hosts are asked for; give hosts from 2 to ${MAX_HOSTS}`, { hosts });
  }
  if (workers !== undefined && workers % hosts !== 0) {
    refuse(`${workers} workers cannot be shared evenly by ${hosts} hosts; give a multiple`, {
      workers,
      hosts,
    });
  }
}

const MAX_HOSTS = 16;

function refuse(message: string, facts: Readonly<Record<string, unknown>>): never {
  throw new UsageError('INVALID_ARGUMENT', message, facts);
}

function configurationOf(models: readonly HybridModel[], turns: Turns): HybridBench['configuration'] {
  return {
    ...{ ...turns, warmupSteps: WARM_UP_STEPS, threads: 'one for each worker' },
    batchOfEachWorker: Object.fromEntries(
      models.map((model) => [hybridModels[model].title, hybridModels[model].batchEach]),
    ),
    optimizer: 'SGD; gradients of models with tables are clipped by their global norm',
    measured:
      'from step to step on the first worker: loading, computing, exchange and update; median over all rounds',
    equality: `losses of the first ${CHECKED_STEPS} steps agree between all strategies`,
    strategies:
      "servers: parameter servers on every host; collectives: allreduce, or rows gathered where that is cheaper; hybrid: each parameter's cheapest route. base: servers without the three optimisations, to which the others are added one by one (table 4 of Parallax)",
  };
}
