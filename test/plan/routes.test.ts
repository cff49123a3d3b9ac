import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { chooseRoutes, type ExchangeCosts, type PlannedParameter } from '../../src/plan/index.ts';

const line = (startMs: number, msPerByte: number) => ({ startMs, msPerByte });

/** Shared memory on one machine: collectives move a dense byte for less, servers a row. */
const costs: ExchangeCosts = {
  collective: line(0.1, 1e-6),
  gather: line(0.2, 4e-6),
  serverDense: line(0.1, 2e-6),
  serverRows: line(0.2, 3e-6),
};
const cluster = { workers: 2, servers: 2, machines: 1, workersPerMachine: 2 };

const weight: PlannedParameter = { name: 'weight', elements: 1_000_000, kind: 'dense' };
const bias: PlannedParameter = { name: 'bias', elements: 10, kind: 'dense' };
const table = (sparsity: number): PlannedParameter => ({
  name: 'embedding',
  elements: 1_000_000,
  kind: 'sparse',
  rowLength: 100,
  sparsity,
});
const routesOf = (...args: Parameters<typeof chooseRoutes>) =>
  chooseRoutes(...args).map(({ route }) => route);

describe('routes', () => {
  it('are collectives for dense parameters and rows by servers for sparse ones, as in the paper', () => {
    expect(routesOf([weight, table(0.01), bias], cluster, costs)).toEqual([
      'collective',
      'server rows',
      'collective',
    ]);
  });

  it('send a table that is nearly dense as a whole, and say why', () => {
    const [choice] = chooseRoutes([table(0.93)], cluster, costs);
    expect(choice).toMatchObject({ name: 'embedding', route: 'collective', bytes: 4_000_000 });
    expect(choice!.predictedMs).toBeCloseTo(4.1, 9);
    expect(choice!.reason).toBe(
      '0.93 of the rows are touched in a step: dense by collective 4.1 ms, rows by server 11 ms, rows by collective 15 ms',
    );
    expect(Object.keys(choice!.alternatives)).toHaveLength(3);
    expect(Object.isFrozen(choice)).toBe(true);
  });

  it('go by rows where rows without a gradient must be left alone, however many are touched', () => {
    const lazy = { ...table(0.93), byRowsOnly: true };
    expect(routesOf([lazy], cluster, costs)).toEqual(['server rows']);
    expect(routesOf([lazy], cluster, costs, { strategy: 'collectives' })).toEqual(['collective rows']);
  });

  it('keep away from servers what they cannot do, with the reason; one dense parameter keeps all', () => {
    const kept = { ...table(0.01), keptHere: 'clip_value comes between aggregation and update' };
    const [choice] = chooseRoutes([kept], cluster, costs, { strategy: 'servers' });
    expect(choice).toMatchObject({ route: 'collective rows' });
    expect(choice!.reason).toMatch(/; not by servers: clip_value comes between/);
    const dense = [{ ...bias, keptHere: 'moving average follows' }, weight];
    expect(routesOf(dense, cluster, costs, { strategy: 'servers' })).toEqual(['collective', 'collective']);
  });

  it('are never dearer than an alternative for a table', () => {
    fc.assert(
      fc.property(fc.nat(1000), (permille) => {
        const [choice] = chooseRoutes([table(permille / 1000)], cluster, costs);
        expect(choice!.predictedMs).toBe(Math.min(...Object.values(choice!.alternatives)));
      }),
    );
  });

  it('keep dense parameters together, even where a small one alone would be cheaper elsewhere', () => {
    const cheapStart = { ...costs, serverDense: line(0.01, 2e-6) };
    expect(routesOf([weight, bias], cluster, cheapStart)).toEqual(['collective', 'collective']);
    expect(routesOf([bias], cluster, cheapStart)).toEqual(['server dense']);
    expect(chooseRoutes([weight, bias], cluster, cheapStart)[1]!.reason).toMatch(
      /^all 2 dense parameters together/,
    );
  });

  it('are those of one kind if asked for', () => {
    const all = [weight, table(0.01)];
    expect(routesOf(all, cluster, costs, { strategy: 'collectives' })).toEqual([
      'collective',
      'collective rows',
    ]);
    expect(routesOf([table(0.9)], cluster, costs, { strategy: 'collectives' })).toEqual(['collective']);
    expect(routesOf(all, cluster, costs, { strategy: 'servers' })).toEqual(['server dense', 'server rows']);
    expect(routesOf([table(0.99)], cluster, costs, { strategy: 'servers' })).toEqual(['server rows']);
  });

  it('need servers and what they cost', () => {
    expect(routesOf([weight, table(0.01)], { ...cluster, servers: 0 }, costs)).toEqual([
      'collective',
      'collective rows',
    ]);
    const { collective } = costs;
    expect(routesOf([weight, table(0.01)], cluster, { collective })).toEqual(['collective', 'collective']);
    expect(() => chooseRoutes([weight], { ...cluster, servers: 0 }, costs, { strategy: 'servers' })).toThrow(
      /strategy is servers; pass one that there are servers and measured costs for/,
    );
  });

  it('count what a slow link carries, which local aggregation and common rows make less', () => {
    const racks = { workers: 8, servers: 2, machines: 2, workersPerMachine: 4 };
    const slow = { ...costs, linkBytesPerSecond: 125e6 };
    const rows = (unionShare: number, localAggregation: boolean) =>
      chooseRoutes([{ ...table(0.1), unionShare }], racks, slow, { localAggregation })[0]!.alternatives[
        'server rows'
      ]!;
    // 404,000 bytes of rows and indices from each of four workers, or once for all four, at 8 ns a byte.
    expect(rows(0.1, false)).toBeCloseTo(0.2 + 4 * 404_000 * 8e-6, 6);
    expect(rows(0.1, true)).toBeCloseTo(0.2 + 404_000 * 8e-6, 6);
    expect(rows(0.8, true)).toBeCloseTo(rows(0.1, false), 6);
    // A dense megabyte by a ring of two machines: as many bytes as it has pass each link.
    const [dense] = chooseRoutes([{ ...weight, elements: 250_000 }], racks, slow);
    expect(dense!.predictedMs).toBeCloseTo(0.1 + 8, 6);
  });

  it('refuse parameters that contradict themselves, by name', () => {
    const refused = (change: Partial<PlannedParameter>) => () =>
      chooseRoutes([{ ...table(0.5), ...change }], cluster, costs);
    expect(refused({ rowLength: 3 })).toThrow(
      /rowLength of embedding is 3; pass a divisor of its 1000000 elements/,
    );
    expect(refused({ sparsity: 1.2 })).toThrow(/sparsity of embedding is 1.2/);
    expect(refused({ unionShare: 0.4 })).toThrow(/unionShare of embedding is 0.4; pass a share from 0.5/);
    expect(refused({ elements: -1 })).toThrow(/elements of embedding is -1/);
    const unmeasured: PlannedParameter = { name: 'embedding', elements: 10, kind: 'sparse', rowLength: 10 };
    expect(() => chooseRoutes([unmeasured], cluster, costs)).toThrow(/sparsity of embedding is NaN/);
    expect(() => chooseRoutes([], { ...cluster, workers: 3 }, costs)).toThrow(/workers is 3; pass at most 2/);
  });
});
