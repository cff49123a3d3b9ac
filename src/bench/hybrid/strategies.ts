/**
 * Ways to exchange gradients that `bench hybrid` compares: the two pure strategies and the hybrid one, and the switches of Parallax's
 * table 4, each of which adds one thing to the row before. Plain data, which travels to the workers.
 * Invariant: all of them compute the same; only what travels where differs.
 */
import type { Strategy } from '../../plan/index.ts';

/** Options of a runner for one strategy: the strategy of `on`, and options of the same names. */
export interface StrategyOptions {
  readonly strategy: Strategy;
  readonly localAggregation?: boolean;
  readonly boundaryAmongServers?: boolean;
  readonly boundaryBetweenWorkersAndServers?: boolean;
}

export interface HybridStrategy {
  readonly name: string;
  readonly options: StrategyOptions;
}

const ALL_OFF = {
  ...{ localAggregation: false, boundaryAmongServers: false, boundaryBetweenWorkersAndServers: false },
} as const;

export const STRATEGIES: readonly HybridStrategy[] = [
  { name: 'servers', options: { strategy: 'servers' } },
  { name: 'collectives', options: { strategy: 'collectives' } },
  { name: 'hybrid', options: { strategy: 'hybrid' } },
];

/**
 * BASE, +HYB, +LA, +OPAU and +OPSW. Tables go to servers from the second row on, as in the paper, whatever that costs: a plan that
 * chose another way for them would hide what the switches do.
 */
export const SWITCHES: readonly HybridStrategy[] = [
  { name: 'base', options: { ...ALL_OFF, strategy: 'servers' } },
  { name: '+hybrid', options: { ...ALL_OFF, strategy: 'parallax' } },
  { name: '+local aggregation', options: { ...ALL_OFF, strategy: 'parallax', localAggregation: true } },
  {
    name: '+placement after aggregation',
    options: { ...ALL_OFF, strategy: 'parallax', localAggregation: true, boundaryAmongServers: true },
  },
  { name: '+placement between servers and workers', options: { strategy: 'parallax' } },
];

export const SWITCH_NAMES: readonly string[] = SWITCHES.map(({ name }) => name);
