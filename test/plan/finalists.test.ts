/** Which routes are tried before one is taken. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { finalists, planExchange, recordOf, type ExchangeInput } from '../../src/plan/index.ts';

const line = (startMs: number, msPerByte: number) => ({ startMs, msPerByte });

/** A table and dense layers, by collectives about as quick as by servers. */
const inputWith = (serverFactor: number): ExchangeInput => ({
  forwardMs: 5,
  layers: [
    {
      ...{ name: 'output', backwardMs: 5 },
      parameters: [{ name: 'table', kind: 'sparse', elements: 160_000, rowLength: 16, sparsity: 0.1 }],
    },
    { name: 'lstm', backwardMs: 5, parameters: [{ name: 'lstm', kind: 'dense', elements: 500_000 }] },
  ],
  cluster: { workers: 4, machines: 4, workersPerMachine: 1, servers: 4 },
  costs: {
    ...{ collective: line(1, 1e-5), gather: line(1, 4e-5) },
    ...{ serverDense: line(serverFactor, serverFactor * 1e-5), serverRows: line(1, 1e-5) },
  },
  leastGain: 0.05,
});
const limits = { within: 0.3, most: 3 };

describe('candidates for a trial', () => {
  it('are those that a prediction does not tell apart, what it would take first', () => {
    const input = inputWith(1.2);
    const plan = planExchange(input);
    const [first, ...others] = finalists(input, plan, limits);
    expect(recordOf(first!.plan)).toEqual(recordOf(plan));
    expect(others.length).toBeGreaterThan(0);
    expect(finalists(input, plan, { ...limits, most: 2 })).toHaveLength(2);
    expect(finalists(input, plan, { ...limits, within: 0 })).toHaveLength(1);
  });

  it('do not include what is far slower', () => {
    const input = inputWith(30);
    const listed = finalists(input, planExchange(input), limits);
    expect(listed.map(({ name }) => name)).not.toContain('servers');
  });

  it('are none but the plan itself where routes are given or follow from a strategy', () => {
    const input = inputWith(1.2);
    const routes = { table: 'server rows', lstm: 'server dense' } as const;
    for (const asked of [{ routes }, { strategy: 'servers' as const }]) {
      const own = { ...input, ...asked };
      const listed = finalists(own, planExchange(own), limits);
      expect(listed.map(({ plan }) => recordOf(plan))).toEqual([routes]);
    }
  });

  it('differ, and are predicted as their routes alone would be', () => {
    fc.assert(
      fc.property(fc.double({ min: 0.1, max: 5, noNaN: true }), (factor) => {
        const input = inputWith(factor);
        const listed = finalists(input, planExchange(input), limits);
        const keys = listed.map(({ plan }) => JSON.stringify(recordOf(plan)));
        expect(new Set(keys).size).toBe(keys.length);
        for (const { plan } of listed) {
          const alone = planExchange({ ...input, routes: recordOf(plan) });
          expect(alone.iterationMs).toBe(plan.iterationMs);
        }
      }),
      { numRuns: 30 },
    );
  });
});

describe('a plan with given routes', () => {
  it('takes them, whatever the strategy', () => {
    const routes = { table: 'collective rows', lstm: 'server dense' } as const;
    const plan = planExchange({ ...inputWith(10), strategy: 'collectives', routes });
    expect(recordOf(plan)).toEqual(routes);
  });

  it('refuses what a parameter cannot take, by its name', () => {
    for (const lstm of ['server rows', undefined] as never[]) {
      const routes = { table: 'collective rows', lstm } as const;
      expect(() => planExchange({ ...inputWith(1), routes })).toThrow(/route of lstm/);
    }
  });
});
