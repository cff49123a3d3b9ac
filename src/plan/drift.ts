/**
 * Whether a plan still fits what is measured while it runs, and the figures to make a new one of. It neither measures nor
 * plans. Terms: a figure has drifted if it differs from the plan's by more than a share of the latter, and by enough to
 * matter in an iteration. Invariant: the old groups, planned with `recalibrated` figures, are predicted to take exactly what
 * was measured; so that without a new drift nothing is planned again. What overlaps does not grow in proportion: the factor
 * for messages is found by trying, with the model that made the plan.
 */
import { requirePositive } from './argument-checks.ts';
import { scaledCost } from './exchange-costs.ts';
import type { ExchangeInput, ExchangePlan } from './exchange-plan.ts';
import type { ExchangeCosts } from './routes.ts';
import { predictStep, stepProblems } from './step-time.ts';

/** Means over the last iterations, over all workers: every worker must come to the same answer. */
export interface MeasuredIteration {
  /** Milliseconds of forward and backward pass. Default: as planned. */
  readonly computeMs?: number;
  /** Milliseconds that messages took, added up. Default: as planned. */
  readonly exchangeMs?: number;
  /** Share of the rows that one worker touches in a step, by parameter. Default: as planned. */
  readonly sparsity?: Readonly<Record<string, number>>;
}

/** Below this share of an iteration a difference changes nothing that can be measured. */
const NEGLIGIBLE = 0.01;
/** When figures fit, and how often they are tried. */
const [CLOSE, MOST_TRIES] = [1e-9, 100];

/** `share`: 0.3 means that figures may be 30 % off. */
export function hasDrifted(plan: ExchangePlan, measured: MeasuredIteration, share: number): boolean {
  requirePositive('share', share);
  const { computeMs = plan.computeMs, exchangeMs = plan.exchangeMs, sparsity = {} } = measured;
  const isOff = (now: number, planned: number) => Math.abs(now - planned) > share * planned;
  const matters = (now: number, planned: number) => Math.abs(now - planned) > NEGLIGIBLE * plan.iterationMs;
  return (
    [[computeMs, plan.computeMs] as const, [exchangeMs, plan.exchangeMs] as const].some(
      ([now, planned]) => isOff(now, planned) && matters(now, planned),
    ) ||
    plan.parameters.some((parameter) => {
      const now = sparsity[parameter.name];
      return now !== undefined && parameter.sparsity !== undefined && isOff(now, parameter.sparsity);
    })
  );
}

/** The figures of `plan`, which was made of `input`, scaled to what was measured. */
export function recalibrated(
  input: ExchangeInput,
  plan: ExchangePlan,
  measured: MeasuredIteration,
): ExchangeInput {
  const { computeMs = plan.computeMs, exchangeMs, sparsity = {} } = measured;
  const touched = withSparsity(input, sparsity);
  // What messages took of compute changes with them.
  const taken = plan.groups.slice(0, -1).reduce((sum, { startMs, endMs }) => sum + endMs - startMs, 0);
  const takenMs = (input.busyShare ?? 0) * taken;
  const by = (exchange: number): ExchangeInput =>
    scaled(touched, ratio(computeMs - takenMs * exchange, plan.computeMs - takenMs), exchange);
  // More rows take longer at the same cost: that is not to count twice.
  return by(exchangeMs === undefined ? 1 : fittingFactor(plan, exchangeMs, by));
}

function withSparsity(
  input: ExchangeInput,
  sparsity: NonNullable<MeasuredIteration['sparsity']>,
): ExchangeInput {
  return {
    ...input,
    layers: input.layers.map((layer) => ({
      ...layer,
      parameters: layer.parameters.map((parameter) => {
        const now = sparsity[parameter.name];
        if (now === undefined || parameter.kind === 'dense') return parameter;
        const { unionShare, ...rest } = parameter;
        if (unionShare === undefined) return { ...rest, sparsity: now };
        return { ...rest, sparsity: now, unionShare: Math.min(1, Math.max(now, unionShare)) };
      }),
    })),
  };
}

/** By which the costs of messages must grow for the old routes and groups to take `exchangeMs`. */
function fittingFactor(
  { parameters, groups, exchangeMs: plannedMs }: ExchangePlan,
  exchangeMs: number,
  by: (factor: number) => ExchangeInput,
): number {
  const routes = new Map(parameters.map(({ name, route }) => [name, route]));
  const grouping = groups.map(({ layers }) => layers.length);
  let factor = ratio(exchangeMs, plannedMs);
  for (let i = 0; i < MOST_TRIES && factor > 0; i++) {
    const ms = predictStep(stepProblems(by(factor))(routes), grouping).exchangeMs;
    if (Math.abs(ms - exchangeMs) <= CLOSE * exchangeMs) break;
    factor *= ratio(exchangeMs, ms);
  }
  return factor;
}

function scaled(input: ExchangeInput, compute: number, exchange: number): ExchangeInput {
  const factor = Math.max(0, compute);
  return {
    ...input,
    forwardMs: input.forwardMs * factor,
    segmentMs: (input.segmentMs ?? 0) * factor,
    layers: input.layers.map((layer) => ({ ...layer, backwardMs: layer.backwardMs * factor })),
    costs: scaledCosts(input.costs, exchange),
  };
}

function ratio(now: number, planned: number): number {
  return planned > 0 ? now / planned : 1;
}

function scaledCosts(costs: ExchangeCosts, factor: number): ExchangeCosts {
  const { collective, gather, serverDense, serverRows, linkBytesPerSecond } = costs;
  return {
    ...costs,
    collective: scaledCost(collective, factor),
    ...(gather === undefined ? {} : { gather: scaledCost(gather, factor) }),
    ...(serverDense === undefined ? {} : { serverDense: scaledCost(serverDense, factor) }),
    ...(serverRows === undefined ? {} : { serverRows: scaledCost(serverRows, factor) }),
    ...(linkBytesPerSecond === undefined ? {} : { linkBytesPerSecond: linkBytesPerSecond / factor }),
  };
}
