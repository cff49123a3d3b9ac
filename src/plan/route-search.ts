/**
 * The routes of the quickest step: from each of several starts, parameters are moved to other routes as long as the whole step
 * is predicted to become shorter. Terms: a unit is what moves together: one table; one large dense parameter, as it is worth
 * a message of its own; all small dense ones; all dense ones. How long a step takes is not known here: it is asked for, and
 * each routing once. Not an optimum, as two moves may gain what neither gains alone. Invariants: pure, and the same for the
 * same figures; never slower than a start; at most `MOST_STEPS` steps are predicted beside the starts, of which at most
 * `MOST_GROUPED` need groups of their own, which is what takes time.
 */
import { counted, rounded, routeTitles, withKept } from './routes.ts';
import type { PlannedParameter, Route, RouteTimes } from './routes.ts';
import type { Routes } from './step-time.ts';

export interface RouteSearch {
  readonly parameters: readonly PlannedParameter[];
  /** The routes that each may take, by its name. */
  readonly times: ReadonlyMap<string, RouteTimes>;
  /** Milliseconds of the whole step. */
  readonly stepMs: (routes: Routes) => number;
  /** The same for routings that can share groups, so that all but the first of them are predicted at once. */
  readonly groupsKey: (routes: Routes) => unknown;
}

/** A dense parameter with this share of all dense bytes is large; there are at most 1 / share of them. */
const LARGE_SHARE = 1 / 8;
const [MOST_STEPS, MOST_GROUPED] = [512, 32];
/** The same for the reasons, of a plan that the search may not have ended with. */
const [MOST_COMPARED, MOST_GROUPED_COMPARED] = [128, 8];

interface Unit {
  readonly names: readonly string[];
  readonly routes: readonly Route[];
}

export class RouteSteps {
  readonly #search: RouteSearch;
  readonly #units: readonly Unit[];
  readonly #known = new Map<string, number>();
  readonly #grouped = new Set<unknown>();
  #left = { steps: MOST_STEPS, grouped: MOST_GROUPED };

  constructor(search: RouteSearch) {
    this.#search = search;
    this.#units = unitsOf(search);
  }

  /** Milliseconds of a step that is always predicted, whatever has been before. */
  stepMs(routes: Routes): number {
    const key = this.#keyOf(routes);
    const ms = this.#known.get(key) ?? this.#search.stepMs(routes);
    this.#known.set(key, ms);
    this.#grouped.add(this.#search.groupsKey(routes));
    return ms;
  }

  /** The routes of the quickest step that moves lead to from any of the starts, of which there is at least one. */
  quickest(starts: readonly Routes[]): Routes {
    const ascending = [...starts].sort((a, b) => this.stepMs(a) - this.stepMs(b));
    const ends = ascending.map((start) => this.#improved(start));
    return ends.reduce((best, one) => (this.stepMs(one) < this.stepMs(best) ? one : best));
  }

  /** Why each parameter takes its route, by its name: what the step takes with it and with each other one. */
  reasons(routes: Routes): ReadonlyMap<string, string> {
    this.#left = { steps: MOST_COMPARED, grouped: MOST_GROUPED_COMPARED };
    const { parameters } = this.#search;
    const dense = parameters.filter(({ kind }) => kind === 'dense');
    const isOne = new Set(dense.map(({ name }) => routes.get(name))).size <= 1;
    // Of dense parameters on one route all are compared at once.
    const units = isOne ? this.#units : this.#units.filter(({ names }) => names.length < dense.length);
    const texts = new Map(units.map((unit) => [unit, this.#comparison(routes, unit)]));
    return new Map(
      parameters.map((parameter) => {
        const { name, kind, sparsity } = parameter;
        const unit = units.find(({ names }) => names.includes(name))!;
        const { length } = unit.names;
        const of =
          kind === 'sparse'
            ? `${rounded(sparsity!)} of the rows are touched in a step`
            : length === dense.length
              ? counted(length)
              : length === 1
                ? 'a large dense parameter'
                : `the ${length} smaller dense parameters together`;
        return [name, withKept(parameter, parameters, `${of}: ${texts.get(unit)!}`)];
      }),
    );
  }

  #improved(start: Routes): Routes {
    let [best, bestMs] = [start, this.stepMs(start)];
    for (let hasMoved = true; hasMoved;) {
      hasMoved = false;
      for (const unit of this.#units) {
        for (const route of unit.routes) {
          const moved = movedTo(best, unit, route);
          const ms = moved && this.#affordableMs(moved);
          if (moved === undefined || ms === undefined || ms >= bestMs) continue;
          [best, bestMs, hasMoved] = [moved, ms, true];
        }
      }
    }
    return best;
  }

  /** Undefined if it is not known and enough have been predicted. */
  #affordableMs(routes: Routes): number | undefined {
    const known = this.#known.get(this.#keyOf(routes));
    if (known !== undefined) return known;
    const isNew = !this.#grouped.has(this.#search.groupsKey(routes));
    if (this.#left.steps === 0 || (isNew && this.#left.grouped === 0)) return undefined;
    this.#left.steps--;
    if (isNew) this.#left.grouped--;
    return this.stepMs(routes);
  }

  /** The route that is taken first. */
  #comparison(routes: Routes, unit: Unit): string {
    const own = routes.get(unit.names[0]!)!;
    const others = unit.routes.flatMap((route): [Route, number][] => {
      const moved = movedTo(routes, unit, route);
      const ms = moved && this.#affordableMs(moved);
      return ms === undefined ? [] : [[route, ms]];
    });
    others.sort((a, b) => a[1] - b[1]);
    const listed = [[own, this.stepMs(routes)] as const, ...others].map(
      ([route, ms]) => `${Number(ms.toPrecision(3))} ms with ${routeTitles[route]}`,
    );
    return `the step takes ${listed.join(', ')}`;
  }

  #keyOf(routes: Routes): string {
    return this.#search.parameters.map(({ name }) => routes.get(name)!).join();
  }
}

/** Undefined if all of it is there. */
function movedTo(routes: Routes, { names }: Unit, route: Route): Routes | undefined {
  if (names.every((name) => routes.get(name) === route)) return undefined;
  const moved = new Map(routes);
  for (const name of names) moved.set(name, route);
  return moved;
}

/** Largest first, as they matter most: all dense parameters, tables, large dense ones, small ones. */
function unitsOf({ parameters, times }: RouteSearch): Unit[] {
  const unit = (members: readonly PlannedParameter[]): Unit[] =>
    members.length === 0
      ? []
      : [
          {
            names: members.map(({ name }) => name),
            routes: [...times.get(members[0]!.name)!.keys()],
          },
        ];
  const descending = [...parameters].sort((a, b) => b.elements - a.elements);
  const dense = descending.filter(({ kind }) => kind === 'dense');
  const largeElements = LARGE_SHARE * dense.reduce((sum, { elements }) => sum + elements, 0);
  const large = dense.filter(({ elements }) => elements >= largeElements && elements > 0);
  const small = dense.filter((one) => !large.includes(one));
  const tables = descending.filter(({ kind }) => kind === 'sparse');
  return [
    ...unit(dense),
    ...tables.flatMap((table) => unit([table])),
    ...(dense.length > 1 ? large.flatMap((one) => unit([one])) : []),
    ...(small.length < dense.length ? unit(small) : []),
  ];
}
