/**
 * What `bench hybrid` gives back, and how cases are made of the times of steps. Pure functions; measures nothing.
 * Invariant: no figures of strategies that did not train alike.
 */
import { InternalError } from '../../base/index.ts';
import { median } from '../allreduce/index.ts';
import type { Machine } from '../machine.ts';
import type { HybridTimes } from './hybrid-program.ts';
import { SWITCH_NAMES } from './strategies.ts';

export interface HybridCase {
  readonly model: string;
  /** Over all hosts. */
  readonly workers: number;
  readonly hosts: number;
  readonly link: string;
  readonly strategy: string;
  /** Of all workers, by the median step. */
  readonly samplesPerSec: number;
  /** To the better one of servers only and collectives only, of the same model, hosts and link. */
  readonly relativeToBestPure: number;
  /** To collectives only; of the hybrid strategy. */
  readonly collectivesRatio?: number;
  /** To the best of all that took turns with it, switches included; of the hybrid strategy. */
  readonly relativeToBest?: number;
  /** To the row before; of the switches but the first. */
  readonly gain?: number;
  /** Median, first and third quartile of all counted steps. */
  readonly stepMs: number;
  readonly quartilesMs: readonly [number, number];
  /** Of forward, backward and exchange, as planned: without loading and updating. */
  readonly predictedMs: number;
  /** Other strategies that came to the very same plan: all steps of both count for both, as a difference would be noise. */
  readonly samePlanAs?: readonly string[];
  /** How many parameters take which route. */
  readonly routes: Readonly<Record<string, number>>;
  /** Bytes of tables that one worker hands over in a step. */
  readonly rowBytes: number;
}

export interface HybridBench {
  readonly bench: 'hybrid';
  /** ISO 8601. */
  readonly date: string;
  readonly machine: Machine;
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  readonly notes: readonly string[];
  readonly cases: readonly HybridCase[];
}

/** What all cases of one group of workers have in common. */
export type CaseGroup = Pick<HybridCase, 'model' | 'workers' | 'hosts' | 'link'>;

/** `text-CNN, 2 workers on 2 hosts, 1000 Mbit/s` */
export function titleOf({ model, workers, hosts, link }: CaseGroup): string {
  return `${model}, ${workers} workers${hosts === 1 ? '' : ` on ${hosts} hosts`}, ${link}`;
}

/** Largest relative difference between losses of the same step: rounding differs with the order of sums. */
const LOSS_TOLERANCE = 1e-3;

/**
 * Strategies of one act took turns in the same processes; the pure ones are in the first act. One that is in several acts, to compare
 * with, counts in the first of them.
 */
export function casesOf(
  group: CaseGroup,
  batchSize: number,
  acts: readonly (readonly HybridTimes[])[],
): readonly HybridCase[] {
  checkLosses(group, acts.flat());
  const rate = ({ stepsMs }: HybridTimes): number => (1000 * batchSize) / median(stepsMs);
  const rateIn = (act: readonly HybridTimes[], name: string | undefined): number | undefined => {
    const times = act.find(({ strategy }) => strategy === name);
    return times && rate(times);
  };
  const collectives = rateIn(acts[0]!, 'collectives')!;
  const bestPure = Math.max(rateIn(acts[0]!, 'servers')!, collectives);
  const cases = acts.flatMap((act) =>
    act.map((times): HybridCase => {
      const { strategy, stepsMs, predictedMs, routes, rowBytes, samePlanAs } = times;
      const samplesPerSec = rate(times);
      const before = rateIn(act, SWITCH_NAMES[SWITCH_NAMES.indexOf(strategy) - 1]);
      return {
        ...{ ...group, strategy, samplesPerSec, relativeToBestPure: samplesPerSec / bestPure },
        ...(strategy === 'hybrid'
          ? {
              collectivesRatio: samplesPerSec / collectives,
              relativeToBest: samplesPerSec / Math.max(...act.map(rate)),
            }
          : {}),
        ...(before === undefined ? {} : { gain: samplesPerSec / before }),
        ...(samePlanAs.length === 0 ? {} : { samePlanAs }),
        ...{ stepMs: median(stepsMs), quartilesMs: quartiles(stepsMs), predictedMs, routes, rowBytes },
      };
    }),
  );
  return cases.filter(({ strategy }, i) => cases.findIndex((one) => one.strategy === strategy) === i);
}

/** All start from the same parameters and see the same samples: one that is faster because it does something else does not count. */
function checkLosses(group: CaseGroup, times: readonly HybridTimes[]): void {
  const [first, ...others] = times;
  for (const { strategy, losses } of others) {
    const step = losses.findIndex((loss, i) => {
      const expected = first!.losses[i]!;
      return !(Math.abs(loss - expected) <= LOSS_TOLERANCE * Math.abs(expected));
    });
    if (step < 0) continue;
    throw new InternalError(
      'BROKEN_INVARIANT',
      `${titleOf(group)}: the loss of step ${step + 1} is ${losses[step]} by ${JSON.stringify(strategy)} and ${first!.losses[step]} by ${JSON.stringify(first!.strategy)}; they do not train alike, so that the comparison would be void. Please report it`,
      { ...group, step: step + 1, strategies: [first!.strategy, strategy] },
    );
  }
}

/** The first and the third, between two values where none is at their place. */
function quartiles(values: readonly number[]): [number, number] {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share: number): number => {
    const place = share * (sorted.length - 1);
    const [lower, upper] = [sorted[Math.floor(place)]!, sorted[Math.ceil(place)]!];
    return lower + (place % 1) * (upper - lower);
  };
  return [at(0.25), at(0.75)];
}
