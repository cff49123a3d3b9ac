/**
 * How a run goes, in words: what a step takes against what the plan predicted, which worker is the slowest, and whether one
 * worker alone would be faster. Made of figures of all workers; measures nothing itself.
 */
import type { ExchangePlan } from '../plan/index.ts';

/** Means over the steps so far, of one worker. */
export interface WorkerPace {
  readonly stepMs: number;
  /** Forward and backward pass. */
  readonly computeMs: number;
  /** For gradients of others, behind the backward pass. */
  readonly waitMs: number;
}

/** What is so much slower, a worker than the mean or all than one, is worth a word; less is chance. */
const NOTABLE = 0.05;

export function runReport(plan: ExchangePlan, steps: number, paces: readonly WorkerPace[]): string[] {
  const mean = (of: keyof WorkerPace) => paces.reduce((sum, pace) => sum + pace[of], 0) / paces.length;
  const [stepMs, computeMs, waitMs] = [mean('stepMs'), mean('computeMs'), mean('waitMs')];
  const otherMs = Math.max(0, stepMs - computeMs - waitMs);
  const messages = `${plan.groups.length} message${plan.groups.length === 1 ? '' : 's'}`;
  const lines = [
    `${steps} steps: ${ms(stepMs)} each, ${ms(computeMs)} computing and ${ms(waitMs)} waiting for gradients (predicted for both ${ms(plan.iterationMs)}, ${messages} a step), ${ms(otherMs)} loading and updating. ${slowest(paces, computeMs)}`,
  ];
  // One worker would compute all shares one after the other, and load and update once.
  const aloneMs = paces.reduce((sum, pace) => sum + pace.computeMs, otherMs);
  if (stepMs > aloneMs * (1 + NOTABLE)) {
    lines.push(
      `slower than one worker, which would take about ${ms(aloneMs)} for the same batch: ${ms(waitMs)} of a step go into waiting for gradients. Use larger batches, fewer workers, or one.`,
    );
  }
  return lines;
}

function slowest(paces: readonly WorkerPace[], meanMs: number): string {
  const rank = paces.reduce(
    (worst, { computeMs }, i) => (computeMs > paces[worst]!.computeMs ? i : worst),
    0,
  );
  const behind = paces[rank]!.computeMs / meanMs - 1;
  return behind < NOTABLE
    ? 'No worker is behind the others.'
    : `Worker ${rank} is the slowest, ${Math.round(100 * behind)} % behind the mean.`;
}

function ms(value: number): string {
  return `${value.toPrecision(3)} ms`;
}
