/** The time of a whole step: its lanes by hand, and against a second reading of the rule. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { iterationMs, optimalGroups, type PlannedLayer, type Route } from '../../src/plan/index.ts';
import { predictStep, stepProblems, type RoutedInput } from '../../src/plan/step-time.ts';
import { allGroupings } from './brute-force.ts';

const line = (startMs: number, msPerByte: number) => ({ startMs, msPerByte });
const dense = (name: string, backwardMs: number, bytes: number): PlannedLayer => ({
  ...{ name, backwardMs, parameters: [{ name, kind: 'dense', elements: bytes / 4 }] },
});
/** A table whose rows take 1000 bytes with their indices: 10 of 100 rows with 24 elements. */
const table = (name: string, backwardMs: number): PlannedLayer => ({
  ...{ name, backwardMs },
  parameters: [{ name, kind: 'sparse', elements: 2400, rowLength: 24, sparsity: 0.1 }],
});

const input: RoutedInput = {
  forwardMs: 10,
  layers: [dense('a', 4, 1000), table('t', 2), dense('b', 4, 2000), dense('c', 5, 1000)],
  cluster: { workers: 2, servers: 2, machines: 1, workersPerMachine: 2 },
  costs: {
    ...{ collective: line(2, 0.004), gather: line(3, 0.006) },
    ...{ serverDense: line(4, 0.002), serverRows: line(1, 0.01), serverPushShare: 0.25 },
  },
};
const routed = (a: Route, t: Route, b: Route, c: Route) =>
  stepProblems(input)(
    new Map([
      ['a', a],
      ['t', t],
      ['b', b],
      ['c', c],
    ]),
  );

describe('the time of a step', () => {
  it('lets the pushes of a group start beside its collectives, keeps their bytes behind these, and pulls behind everything', () => {
    const problem = routed('collective', 'server rows', 'collective', 'collective');
    // Compute ends at 25. By one message of 4000 bytes collectives end at 43, then a quarter of the 10 ms of bytes.
    expect(iterationMs(problem, [4])).toBeCloseTo(43 + 2.5 + 0.75 * 11, 9);
    // In three groups messages end at 14 + 6, 20 + 10 + 2.5 and 32.5 + 6: rows leave with their group.
    expect(iterationMs(problem, [1, 2, 1])).toBeCloseTo(38.5 + 0.75 * 11, 9);
    const { computedMs, exchangeMs, timeline } = predictStep(problem, [1, 2, 1]);
    expect(computedMs).toBe(25);
    expect(exchangeMs).toBeCloseTo(6 + 12.5 + 6, 9);
    expect(timeline.filter(({ lane }) => lane === 'servers')).toEqual([
      { lane: 'servers', name: 'push t to b', startMs: 20, endMs: 32.5 },
      { lane: 'servers', name: 'update and pull', startMs: 38.5, endMs: 46.75 },
    ]);
    expect(timeline.filter(({ lane }) => lane === 'communication')).toEqual([
      { lane: 'communication', name: 'a', startMs: 14, endMs: 20 },
      { lane: 'communication', name: 't to b', startMs: 20, endMs: 30 },
      { lane: 'communication', name: 'c', startMs: 32.5, endMs: 38.5 },
    ]);
  });

  it('hides pushes behind the backward pass, and pays one start in each group for all that goes there', () => {
    const problem = routed('server dense', 'server rows', 'server dense', 'server dense');
    expect(iterationMs(problem, [4])).toBeCloseTo(25 + 4 + 8 + 10, 9);
    // A quarter of 4 + 2, 1 + 10, 4 + 4 and 4 + 2 behind 14, 16, 20 and 25, where each has ended before the next is ready.
    expect(iterationMs(problem, [1, 1, 1, 1])).toBeCloseTo(25 + 1.5 + 0.75 * 22, 9);
    expect(problem.messagesIn(0, 4)).toMatchObject([
      { route: 'server dense', parameters: ['a', 'b', 'c'], bytes: 4000, predictedMs: 12 },
      { route: 'server rows', parameters: ['t'], predictedMs: 11 },
    ]);
    expect(problem.messagesIn(0, 2)).toMatchObject([
      { route: 'server dense', parameters: ['a'], bytes: 1000, predictedMs: 6 },
      { route: 'server rows', parameters: ['t'], predictedMs: 11 },
    ]);
  });

  it('cuts a message where a parameter on servers lies between its gradients', () => {
    const problem = routed('collective', 'server rows', 'server dense', 'collective');
    expect(problem.messagesIn(0, 4).map(({ parameters }) => parameters)).toEqual([
      ['a'],
      ['c'],
      ['b'],
      ['t'],
    ]);
    expect(problem.collectiveMs(0, 4)).toBeCloseTo(6 + 6, 9);
    expect(problem.exchangeMs(0, 0, 4)).toBeCloseTo(6 + 6 + 0.25 * (4 + 10), 9);
    expect(routed('collective', 'server rows', 'collective', 'collective').collectiveMs(0, 4)).toBe(18);
  });

  it('sends whole tables with their group, on their own, and rows by collectives behind all groups', () => {
    const whole = routed('collective', 'collective', 'collective', 'collective');
    expect(whole.messagesIn(0, 2).map(({ parameters }) => parameters)).toEqual([['a'], ['t']]);
    expect(whole.exchangeMs(0, 0, 2)).toBeCloseTo(6 + 2 + 9600 * 0.004, 9);
    const rows = routed('collective', 'collective rows', 'collective', 'collective');
    expect(rows.exchangeMs(0, 0, 2)).toBeCloseTo(6, 9);
    expect(iterationMs(rows, [4])).toBeCloseTo(25 + 18 + 9, 9);
    expect(rows.grouped).not.toBe(whole.grouped);
  });

  it('agrees with a second reading of the rule, and the optimal groups are the best of all', () => {
    fc.assert(
      fc.property(steps, ([random, routes]) => {
        const problem = stepProblems(random)(routes);
        const all = allGroupings(random.layers.length);
        for (const grouping of all.slice(0, 20)) {
          const ms = secondReading(random, routes, grouping);
          expect(iterationMs(problem, grouping)).toBeCloseTo(ms, 6);
          expect(predictStep(problem, grouping).iterationMs).toBeCloseTo(ms, 6);
        }
        const best = Math.min(...all.map((grouping) => secondReading(random, routes, grouping)));
        expect(iterationMs(problem, optimalGroups(problem))).toBeCloseTo(best, 6);
      }),
      { numRuns: 200 },
    );
  });

  it('refuses a share of the push that is none', () => {
    const costs = { ...input.costs, serverPushShare: 1.5 };
    expect(() => stepProblems({ ...input, costs })).toThrow(/serverPushShare is 1.5/);
  });
});

const costLine = fc.tuple(fc.nat(50), fc.nat(50)).map(([a, b]) => line(a / 10, b / 10_000));
const steps = fc
  .record({
    sizes: fc.array(
      fc.record({
        backwardMs: fc.nat(10),
        bytes: fc.nat(1000),
        route: fc.constantFrom<Route>('collective', 'collective rows', 'server dense', 'server rows'),
        isTable: fc.boolean(),
      }),
      { minLength: 1, maxLength: 7 },
    ),
    costs: fc.record({
      ...{ collective: costLine, gather: costLine, serverDense: costLine, serverRows: costLine },
      serverPushShare: fc.nat(10).map((n) => n / 10),
    }),
    segmentMs: fc.nat(20).map((n) => n / 10),
    busyShare: fc.nat(10).map((n) => n / 10),
  })
  .map(({ sizes, ...rest }): [RoutedInput, ReadonlyMap<string, Route>] => {
    const layers = sizes.map(({ backwardMs, bytes, isTable }, i) =>
      isTable ? table(`p${i}`, backwardMs) : dense(`p${i}`, backwardMs, 4 * bytes),
    );
    const routes = sizes.map(({ route, isTable }, i): [string, Route] => {
      if (isTable) return [`p${i}`, route === 'server dense' ? 'server rows' : route];
      return [`p${i}`, route.startsWith('server') ? 'server dense' : 'collective'];
    });
    return [{ ...input, ...rest, layers }, new Map(routes)];
  });

/** Each message in its turn, without sums over what came before. */
function secondReading(
  { forwardMs, layers, segmentMs = 0, busyShare = 0, costs }: RoutedInput,
  routes: ReadonlyMap<string, Route>,
  grouping: readonly number[],
): number {
  const at = (cost: unknown, bytes: number) => {
    const { startMs, msPerByte } = cost as { startMs: number; msPerByte: number };
    return startMs + msPerByte * bytes;
  };
  let [computed, sent, first] = [forwardMs, 0, 0];
  let [denseBytes, tablesMs, rowsMs] = [0, 0, 0];
  const starts: number[] = [];
  const share = costs.serverPushShare!;
  grouping.forEach((count, group) => {
    const members = layers.slice(first, first + count);
    first += count;
    let [run, took]: [number | undefined, number] = [undefined, 0];
    const endRun = () => {
      if (run !== undefined) took += at(costs.collective, run);
      run = undefined;
    };
    let wholeMs = 0;
    let [pushedBytes, pushedRowsMs] = [0, 0];
    const ownStarts: number[] = [];
    for (const { backwardMs, parameters } of members) {
      computed += backwardMs;
      const { name, kind, elements } = parameters[0]!;
      const route = routes.get(name)!;
      if (kind === 'dense' && route === 'collective') run = (run ?? 0) + 4 * elements;
      if (kind === 'sparse' && route === 'collective') wholeMs += at(costs.collective, 4 * elements);
      if (route === 'collective rows') rowsMs += at(costs.gather, 1000);
      if (route === 'server rows') {
        ownStarts.push(at(costs.serverRows, 0));
        pushedRowsMs += at(costs.serverRows, 1000) - at(costs.serverRows, 0);
      }
      if (route !== 'server dense') continue;
      endRun();
      ownStarts.push(at(costs.serverDense, 0));
      pushedBytes += 4 * elements;
    }
    endRun();
    took = Math.max(took + wholeMs, share * Math.max(0, ...ownStarts));
    took += share * (at(costs.serverDense, pushedBytes) - at(costs.serverDense, 0) + pushedRowsMs);
    const isLast = group === grouping.length - 1;
    sent = Math.max(sent, computed) + took;
    starts.push(...ownStarts);
    denseBytes += pushedBytes;
    tablesMs += pushedRowsMs;
    if (!isLast) computed += segmentMs + busyShare * took;
  });
  const denseMs = at(costs.serverDense, denseBytes) - at(costs.serverDense, 0);
  return sent + rowsMs + (1 - share) * (Math.max(0, ...starts) + denseMs + tablesMs);
}
