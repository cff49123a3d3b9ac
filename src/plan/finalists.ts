/**
 * Which routes are worth trying in real steps: those that are predicted to be so nearly as quick
 * that the prediction does not tell them apart. Pure; measures nothing. Invariants: the first is
 * what the plan itself takes; none comes twice; the same for the same figures.
 */
import { planExchange, type ExchangeInput, type ExchangePlan, type RouteCandidate } from './exchange-plan.ts';
import { chooseRoutes, type Route, type Strategy } from './routes.ts';

/** Routes that could be taken, and the plan with them. */
export interface Finalist {
  readonly name: RouteCandidate['name'];
  readonly plan: ExchangePlan;
}

export interface FinalistOptions {
  /** How much longer than the quickest a step may be predicted, as a share of that. */
  readonly within: number;
  readonly most: number;
}

const STRATEGIES: readonly Strategy[] = ['collectives', 'servers', 'parallax'];

/** Only the plan itself if its routes were given, or follow from a strategy. */
export function finalists(
  input: ExchangeInput,
  plan: ExchangePlan,
  { within, most }: FinalistOptions,
): readonly Finalist[] {
  const own: Finalist = { name: 'hybrid', plan };
  if ((input.strategy ?? 'hybrid') !== 'hybrid' || input.routes !== undefined) return [own];
  const { layers, cluster, costs, localAggregation = true } = input;
  const parameters = layers.flatMap((layer) => layer.parameters);
  const withRoutes = (name: Finalist['name'], routes: Readonly<Record<string, Route>>): Finalist => ({
    name,
    plan: planExchange({ ...input, routes }),
  });
  const simple = STRATEGIES.filter((name) => plan.candidates.some((one) => one.name === name)).map(
    (strategy) => {
      const chosen = chooseRoutes(parameters, cluster, costs, { localAggregation, strategy });
      return withRoutes(strategy, Object.fromEntries(chosen.map(({ name, route }) => [name, route])));
    },
  );
  // What was found, however little it gains.
  const found = withRoutes('hybrid', recordOf(planExchange({ ...input, leastGain: 0 })));
  const all = [own, ...simple, found];
  const ms = ({ plan: { iterationMs } }: Finalist): number => iterationMs;
  const leastMs = Math.min(...all.map(ms));
  const keys = all.map((one) => JSON.stringify(recordOf(one.plan)));
  const close = all.filter((one, i) => keys.indexOf(keys[i]!) === i && ms(one) <= (1 + within) * leastMs);
  const others = close.filter((one) => one !== own).sort((a, b) => ms(a) - ms(b));
  const sameAs = simple.find((_, i) => keys[1 + i] === keys[0]);
  return [sameAs ? { ...own, name: sameAs.name } : own, ...others].slice(0, most);
}

/** The routes of a plan, with which another can be made that takes the same. */
export function recordOf({ parameters }: ExchangePlan): Readonly<Record<string, Route>> {
  return Object.fromEntries(parameters.map(({ name, route }) => [name, route]));
}
