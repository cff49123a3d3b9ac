/** Which routes are taken for the quickest step, and how hard they are looked for. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { planExchange, type ExchangeInput, type Route } from '../../src/plan/index.ts';
import { RouteSteps } from '../../src/plan/route-search.ts';
import { routeTimes } from '../../src/plan/routes.ts';
import type { Routes } from '../../src/plan/step-time.ts';

const line = (startMs: number, msPerByte: number) => ({ startMs, msPerByte });
const dense = (name: string, elements: number) => ({ name, kind: 'dense' as const, elements });
const table = (name: string, rows: number, sparsity: number) => ({
  ...{ name, kind: 'sparse' as const, elements: rows * 16, rowLength: 16, sparsity },
});
const words = (name: string, sparsity: number) => ({
  ...{ name, kind: 'sparse' as const, elements: 100_000 * 256, rowLength: 256, sparsity },
});
const cluster = { workers: 4, servers: 2, machines: 2, workersPerMachine: 2 };

/**
 * The language model of `bench hybrid`, 4 workers on 2 hosts with 1 Gbit/s: two tables of 100,000 words with 256 columns, 4.1 MB of
 * rows a step, and 0.9 MB of dense parameters. Times are chosen, not measured: both workers of a host push what is dense.
 */
const languageModel: ExchangeInput = {
  ...{ forwardMs: 12, segmentMs: 0.3 },
  layers: [
    { name: 'output', backwardMs: 8, parameters: [words('output.table', 0.0388)] },
    { name: 'projection', backwardMs: 2, parameters: [dense('projection.weight', 128 * 256)] },
    { name: 'lstm', backwardMs: 6, parameters: [dense('lstm.weight', 4 * 128 * (256 + 128 + 1))] },
    { name: 'embedding', backwardMs: 12, parameters: [words('embedding.table', 0.0012)] },
  ],
  cluster,
  costs: {
    ...{ collective: line(2, 1.7e-5), gather: line(3, 4e-5) },
    ...{ serverDense: line(1.5, 3.4e-5), serverRows: line(1.5, 7e-6) },
  },
  leastGain: 0.05,
};

const routesIn = (input: ExchangeInput) =>
  Object.fromEntries(planExchange(input).parameters.map(({ name, route }) => [name, route]));

describe('routes by the whole step', () => {
  it('are those of the mix where dense gradients cost less by collectives, and rows by servers', () => {
    expect(routesIn(languageModel)).toEqual({
      'output.table': 'server rows',
      'projection.weight': 'collective',
      'lstm.weight': 'collective',
      'embedding.table': 'server rows',
    });
    const { candidates } = planExchange(languageModel);
    const ms = new Map(candidates.map(({ name, iterationMs }) => [name, iterationMs]));
    expect(ms.get('hybrid')! / ms.get('servers')!).toBeLessThan(0.9);
    expect(ms.get('hybrid')!).toBe(ms.get('parallax')!);
  });

  it('say what the step takes with each and with every other one', () => {
    const { parameters, candidates } = planExchange(languageModel);
    const [first, second] = parameters;
    const servers = planExchange({ ...languageModel, strategy: 'servers' }).iterationMs;
    expect(second!.reason).toMatch(/^all 2 dense parameters together: the step takes/);
    expect(second!.reason).toContain(
      `${Number(candidates[0]!.iterationMs.toPrecision(3))} ms with dense by collective, ${Number(servers.toPrecision(3))} ms with dense by server`,
    );
    expect(first!.reason).toMatch(
      /^0.039 of the rows are touched in a step: the step takes [\d.]+ ms with rows by server, [\d.]+ ms with rows by collective, [\d.]+ ms with dense by collective$/,
    );
  });

  it('part dense parameters where a start costs more than bytes and both lanes are free', () => {
    const input: ExchangeInput = {
      ...{ forwardMs: 1, cluster },
      // The first hides behind the backward pass; the last one cannot, and is cheaper by servers.
      layers: [
        { name: 'early', backwardMs: 1, parameters: [dense('early', 100_000)] },
        { name: 'late', backwardMs: 30, parameters: [dense('late', 100_000)] },
      ],
      costs: { collective: line(20, 0), serverDense: line(1, 1e-5), serverRows: line(1, 1e-5) },
    };
    expect(routesIn(input)).toEqual({ early: 'collective', late: 'server dense' });
    const { candidates, parameters } = planExchange(input);
    const [hybrid, ...others] = candidates.map(({ iterationMs }) => iterationMs);
    for (const other of others) expect(hybrid).toBeLessThan(other);
    expect(parameters[1]!.reason).toMatch(
      /^a large dense parameter: the step takes 37 ms with dense by server, 52 ms with dense by collective$/,
    );
  });

  it('are never predicted to be slower than any strategy that could have been taken', () => {
    fc.assert(
      fc.property(inputs, (input) => {
        const { iterationMs, candidates, predictions, parameters } = planExchange(input);
        for (const one of [...candidates, ...predictions])
          expect(iterationMs).toBeLessThanOrEqual(one.iterationMs * (1 + 1e-9));
        for (const { route, alternatives } of parameters) expect(alternatives).toHaveProperty([route]);
        expect(planExchange(input).parameters).toEqual(parameters);
      }),
    );
  });

  it('stay by a simpler strategy that is slower by less than the least gain', () => {
    fc.assert(
      fc.property(inputs, (input) => {
        const quickest = planExchange(input).iterationMs;
        const single = planExchange({ ...input, leastGain: 0.05 });
        // Once for groups, once for routes.
        expect(single.iterationMs).toBeLessThanOrEqual((quickest / 0.95 ** 2) * (1 + 1e-9));
      }),
    );
  });
});

describe('the search', () => {
  const layers = Array.from({ length: 160 }, (_, i) =>
    i % 4 === 0 ? table(`t${i}`, 1000 + i, 0.1) : dense(`p${i}`, 1 + (i % 7 === 0 ? 1e6 : i)),
  );
  const costs = {
    ...{ collective: line(1, 1e-6), gather: line(1, 1e-6) },
    ...{ serverDense: line(1, 1e-6), serverRows: line(1, 1e-6) },
  };
  const times = routeTimes(layers, cluster, costs);
  const start: Routes = new Map(layers.map(({ name }) => [name, 'collective'] as [string, Route]));

  it('predicts few steps however many tables there are, and none twice', () => {
    const [asked, grouped] = [new Set<string>(), new Set<string>()];
    const groupsKey = (routes: Routes) => [...routes.values()].map((one) => one === 'collective').join();
    const steps = new RouteSteps({
      ...{ parameters: layers, times },
      // The more is moved, the better: every move is taken, and the search would go on.
      stepMs: (routes) => {
        const key = [...routes.values()].join();
        expect(asked.has(key)).toBe(false);
        asked.add(key);
        grouped.add(groupsKey(routes));
        return 1000 - [...routes.values()].filter((route) => route === 'server rows').length;
      },
      groupsKey,
    });
    const found = steps.quickest([start]);
    expect(asked.size).toBeLessThanOrEqual(513);
    expect(grouped.size).toBeLessThanOrEqual(33);
    expect([...found.values()].filter((route) => route === 'server rows').length).toBeGreaterThan(20);
    steps.reasons(found);
    expect(grouped.size).toBeLessThanOrEqual(33 + 8);
    expect(asked.size).toBeLessThanOrEqual(513 + 128);
  });

  it('moves small dense parameters together, and only to routes that they may take', () => {
    const kept = layers.map((one, i) => (i === 1 ? { ...one, keptHere: 'a reason' } : one));
    const moved: Routes[] = [];
    const steps = (parameters: typeof layers) =>
      new RouteSteps({
        ...{ parameters, times: routeTimes(parameters, cluster, costs) },
        stepMs: (routes) => moved.push(routes),
        groupsKey: (routes) => routes,
      });
    steps(layers).quickest([start]);
    const small = layers.filter(({ kind, elements }) => kind === 'dense' && elements < 1e6);
    for (const routes of moved) expect(new Set(small.map(({ name }) => routes.get(name))).size).toBe(1);
    expect(moved.some((routes) => [...routes.values()].includes('server dense'))).toBe(true);
    moved.length = 0;
    steps(kept).quickest([start]);
    expect(moved.some((routes) => [...routes.values()].includes('server dense'))).toBe(false);
  });
});

const costLine = fc.tuple(fc.nat(1000), fc.nat(1000)).map(([a, b]) => line(a / 100, b / 1e7));
const inputs: fc.Arbitrary<ExchangeInput> = fc.record({
  forwardMs: fc.nat(10),
  segmentMs: fc.nat(100).map((n) => n / 1000),
  busyShare: fc.nat(10).map((n) => n / 10),
  layers: fc
    .array(fc.tuple(fc.nat(50), fc.nat(50_000), fc.option(fc.nat(100)), fc.nat(9)), { maxLength: 14 })
    .map((sizes) =>
      sizes.map(([backwardMs, rows, percent, kept], i) => ({
        ...{ name: `layer ${i}`, backwardMs: backwardMs / 5 },
        parameters: [
          {
            ...(percent === null ? dense(`p${i}`, rows * 16) : table(`p${i}`, rows, percent / 100)),
            ...(kept === 0 ? { keptHere: 'a reason' } : {}),
          },
        ],
      })),
    ),
  cluster: fc.constantFrom(cluster, { ...cluster, servers: 0 }, { ...cluster, machines: 1, workers: 2 }),
  costs: fc.record({
    ...{ collective: costLine, gather: costLine, serverDense: costLine, serverRows: costLine },
    serverPushShare: fc.nat(10).map((n) => n / 10),
    linkBytesPerSecond: fc.constantFrom(1e7, 125e6, 1e12),
  }),
  localAggregation: fc.boolean(),
});
