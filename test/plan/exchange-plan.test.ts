import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { planExchange, type ExchangeInput, type Merging, type PlannedLayer } from '../../src/plan/index.ts';
import { serverShares } from '../../src/plan/server-shares.ts';

const line = (startMs: number, msPerByte: number) => ({ startMs, msPerByte });

/** A language model in backward order: softmax, two dense layers, and a table of which few rows are used. */
const input: ExchangeInput = {
  forwardMs: 10,
  segmentMs: 0.002,
  layers: [
    {
      name: 'softmax',
      backwardMs: 8,
      parameters: [
        { name: 'softmax.weight', elements: 400_000, kind: 'dense' },
        { name: 'softmax.bias', elements: 1000, kind: 'dense' },
      ],
    },
    { name: 'lstm', backwardMs: 12, parameters: [{ name: 'lstm.weight', elements: 500_000, kind: 'dense' }] },
    {
      name: 'embedding',
      backwardMs: 2,
      parameters: [
        { name: 'embedding.table', elements: 10_000_001 * 10, kind: 'sparse', rowLength: 10, sparsity: 1e-4 },
      ],
    },
  ],
  cluster: { workers: 2, servers: 2, machines: 1, workersPerMachine: 2 },
  costs: {
    collective: line(0.5, 4e-6),
    gather: line(1, 4e-6),
    serverDense: line(0.5, 8e-6),
    serverRows: line(0.3, 8e-6),
  },
};

describe('the plan of an exchange', () => {
  const plan = planExchange(input);

  it('has the route, group, bytes and servers of each parameter', () => {
    expect(plan.parameters.map(({ name, route, group }) => [name, route, group])).toEqual([
      ['softmax.weight', 'collective', 0],
      ['softmax.bias', 'collective', 0],
      ['lstm.weight', 'collective', 1],
      ['embedding.table', 'server rows', 2],
    ]);
    expect(plan.parameters[0]).toMatchObject({
      kind: 'dense',
      elements: 400_000,
      bytes: 1_600_000,
      bytesByServer: [],
    });
    // An odd number of rows: one server has one more.
    expect(plan.parameters[3]!.bytesByServer).toEqual([5_000_000 * 40, 5_000_001 * 40]);
    expect(plan.bytesByServer).toEqual(plan.parameters[3]!.bytesByServer);
  });

  it('lists the messages of each group with their times', () => {
    expect(plan.groups.map(({ layers }) => layers)).toEqual([['softmax'], ['lstm'], ['embedding']]);
    const [first] = plan.groups;
    expect(first).toMatchObject({ readyMs: 18, startMs: 18 });
    expect(first!.messages).toHaveLength(1);
    expect(first!.messages[0]!.parameters).toEqual(['softmax.weight', 'softmax.bias']);
    expect(first!.messages[0]!.predictedMs).toBeCloseTo(0.5 + 1_604_000 * 4e-6, 9);
    expect(plan.computeMs).toBeCloseTo(32.004, 9);
  });

  it('predicts all strategies with all ways of merging, and hybrid and optimal as the quickest', () => {
    expect(plan.predictions).toHaveLength(20);
    expect(new Set(plan.predictions.map(({ strategy, merging }) => `${strategy} ${merging}`)).size).toBe(20);
    const quickest = Math.min(...plan.predictions.map((prediction) => prediction.iterationMs));
    expect(plan.iterationMs).toBe(quickest);
    expect(plan.reason).toMatch(/^hybrid: .* ms an iteration by collective, server rows$/);
  });

  it('is frozen throughout, and survives being sent', () => {
    expect(JSON.parse(JSON.stringify(plan))).toEqual(plan);
    const isFrozen = (value: unknown): boolean =>
      typeof value !== 'object' ||
      value === null ||
      (Object.isFrozen(value) && Object.values(value).every(isFrozen));
    expect(isFrozen(plan)).toBe(true);
    expect(planExchange(input)).toEqual(plan);
  });

  it.each([
    ['layer by layer', 3],
    ['single', 1],
    ['buckets', 1],
  ] as [Merging, number][])('merges %s if asked for', (merging, groups) => {
    const asked = planExchange({ ...input, merging });
    expect(asked.groups).toHaveLength(groups);
    const predicted = asked.predictions.find((one) => one.strategy === 'hybrid' && one.merging === merging)!;
    expect(asked.iterationMs).toBe(predicted.iterationMs);
  });

  it('groups dense pushes to servers by what these cost', () => {
    const { parameters, groups, bytesByServer, predictions } = planExchange({
      ...input,
      strategy: 'servers',
    });
    expect(new Set(parameters.map(({ route }) => route))).toEqual(new Set(['server dense', 'server rows']));
    const dense = groups.flatMap(({ messages }) => messages).filter(({ route }) => route === 'server dense');
    for (const { bytes, predictedMs } of dense) expect(predictedMs).toBeCloseTo(0.5 + bytes * 8e-6, 9);
    expect(bytesByServer.reduce((sum, bytes) => sum + bytes, 0)).toBe(901_000 * 4 + 10_000_001 * 40);
    expect(predictions).toHaveLength(20);
  });

  it('takes the routes of a pure strategy where a mix would pay more starts than it saves', () => {
    const tight: ExchangeInput = {
      ...input,
      // Rows by server are cheaper alone; but the weight goes there at no further start.
      layers: [
        {
          name: 'all',
          backwardMs: 1,
          parameters: [
            { name: 'table', elements: 1000, kind: 'sparse', rowLength: 10, sparsity: 0.1 },
            { name: 'weight', elements: 1000, kind: 'dense' },
          ],
        },
      ],
      costs: { collective: line(1, 0), serverDense: line(1.5, 0), serverRows: line(1.2, 0) },
    };
    const { parameters, reason, iterationMs, predictions, candidates } = planExchange(tight);
    expect(parameters.map(({ route }) => route)).toEqual(['server rows', 'server dense']);
    expect(reason).toBe('hybrid: 12.5 ms an iteration by server rows, server dense');
    expect(iterationMs).toBeCloseTo(11 + 1.5, 9);
    const optimal = predictions.filter(({ merging }) => merging === 'optimal');
    expect(optimal.map(({ strategy }) => strategy)).toEqual(['hybrid', 'collectives', 'servers', 'parallax']);
    expect(optimal[0]!.iterationMs).toBe(optimal[2]!.iterationMs);
    expect(candidates).toEqual([
      ...optimal.map((one) => ({ name: one.strategy, iterationMs: one.iterationMs })),
      { name: 'each alone', iterationMs: expect.closeTo(13, 9) as number },
    ]);
  });

  it('takes one message, and what is simple, where more would gain less than it should', () => {
    const quickest = planExchange(input);
    const single = planExchange({ ...input, merging: 'single' });
    const gain = 1 - quickest.iterationMs / single.iterationMs;
    expect(gain).toBeGreaterThan(0);
    expect(planExchange({ ...input, leastGain: gain / 2 }).groups).toHaveLength(quickest.groups.length);
    expect(planExchange({ ...input, leastGain: Math.min(0.99, gain * 1.01) }).groups).toHaveLength(1);
    const modest = planExchange({ ...input, leastGain: 0.99 });
    expect(new Set(modest.parameters.map(({ route }) => route.split(' ')[0]))).toEqual(
      new Set(['collective']),
    );
  });

  it('says what was not taken because it would gain too little, unless the way was given', () => {
    const quickest = planExchange(input);
    const modest = planExchange({ ...input, leastGain: 0.99 });
    const gain = (100 * (1 - quickest.iterationMs / modest.iterationMs)).toFixed(1);
    expect(modest.reason).toMatch(/; '[a-z]+, [a-z ]+' would gain [\d.]+ %, but more messages .* gain 99 %$/);
    expect(modest.reason).toContain(`would gain ${Number(gain)} %`);
    expect(quickest.reason).not.toContain('would gain');
    expect(planExchange({ ...input, leastGain: 0.99, merging: 'single' }).reason).not.toContain('would gain');
    const pure = planExchange({ ...input, leastGain: 0.99, strategy: 'collectives' });
    expect(pure.reason).toMatch(/; 'collectives, [a-z ]+' would gain/);
  });

  it('predicts no servers where there are none', () => {
    const { predictions, bytesByServer } = planExchange({
      ...input,
      cluster: { ...input.cluster, servers: 0 },
    });
    expect(new Set(predictions.map(({ strategy }) => strategy))).toEqual(new Set(['hybrid', 'collectives']));
    expect(bytesByServer).toEqual([]);
  });

  it('costs nothing for layers that have nothing to send', () => {
    const silent = planExchange({ ...input, layers: [{ name: 'relu', backwardMs: 5, parameters: [] }] });
    expect(silent).toMatchObject({ iterationMs: 15, exchangeMs: 0, computeMs: 15 });
    expect(planExchange({ ...input, layers: [] })).toMatchObject({
      iterationMs: 10,
      groups: [],
      computeMs: 10,
    });
  });

  it('never predicts hybrid and optimal as slower than anything else, and groups cost at least what their collectives cost', () => {
    fc.assert(
      fc.property(inputs, (random) => {
        const { iterationMs, predictions, groups, parameters } = planExchange(random);
        for (const prediction of predictions)
          expect(iterationMs).toBeLessThanOrEqual(prediction.iterationMs * (1 + 1e-9));
        for (const { startMs, endMs, messages } of groups) {
          const sumOf = (isOne: (route: string) => boolean) =>
            messages
              .filter(({ route }) => isOne(route))
              .reduce((sum, { predictedMs }) => sum + predictedMs, 0);
          const collectiveMs = sumOf((route) => route === 'collective');
          expect(endMs - startMs).toBeGreaterThanOrEqual(collectiveMs - 1e-6);
          // By servers only what is pushed.
          const mostMs = collectiveMs + sumOf((route) => route.startsWith('server'));
          expect(endMs - startMs).toBeLessThanOrEqual(mostMs + 1e-6);
        }
        const order = parameters.map(({ group }) => group);
        expect(order).toEqual(order.toSorted((x, y) => x - y));
      }),
    );
  });

  it('refuses a parameter that is listed twice and a merging that it does not know', () => {
    const twice = { ...input, layers: [...input.layers, input.layers[0]!] };
    expect(() => planExchange(twice)).toThrow(/Parameter softmax.weight is listed twice/);
    expect(() => planExchange({ ...input, merging: 'best' as Merging })).toThrow(
      /merging is best; pass one of optimal/,
    );
  });
});

describe('shares of servers', () => {
  it('cut tables by rows evenly and everything else by size', () => {
    const shares = serverShares(
      [
        { name: 'table', elements: 70, rowLength: 10 },
        { name: 'weight', elements: 64 },
      ],
      2,
      64,
    );
    expect(shares.get('table')).toEqual([3 * 40, 4 * 40]);
    expect(shares.get('weight')).toEqual([128, 128]);
    expect(serverShares([], 0).size).toBe(0);
  });
});

const costLine = fc.tuple(fc.nat(1000), fc.nat(1000)).map(([a, b]) => line(a / 1000, b / 1e6));
const someLayers: fc.Arbitrary<PlannedLayer[]> = fc
  .array(fc.tuple(fc.nat(50), fc.nat(2000), fc.option(fc.nat(100))), { maxLength: 12 })
  .map((layers) =>
    layers.map(([tenths, rows, percent], i) => ({
      name: `layer ${i}`,
      backwardMs: tenths / 10,
      parameters: [
        percent === null
          ? { name: `p${i}`, elements: rows * 10, kind: 'dense' }
          : { name: `p${i}`, elements: rows * 10, kind: 'sparse', rowLength: 10, sparsity: percent / 100 },
      ],
    })),
  );
const inputs: fc.Arbitrary<ExchangeInput> = fc.record({
  forwardMs: fc.nat(10),
  segmentMs: fc.nat(100).map((n) => n / 1000),
  layers: someLayers,
  cluster: fc.constantFrom(
    { workers: 2, servers: 2, machines: 1, workersPerMachine: 2 },
    { workers: 4, servers: 2, machines: 2, workersPerMachine: 2 },
    { workers: 3, servers: 0, machines: 3, workersPerMachine: 1 },
  ),
  costs: fc.record({
    collective: costLine,
    gather: costLine,
    serverDense: costLine,
    serverRows: costLine,
    linkBytesPerSecond: fc.constantFrom(1e7, 125e6, 1e12),
  }),
  localAggregation: fc.boolean(),
});
