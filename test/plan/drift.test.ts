import { describe, expect, it } from 'vitest';
import { hasDrifted, planExchange, recalibrated, type ExchangeInput } from '../../src/plan/index.ts';

const input: ExchangeInput = {
  forwardMs: 20,
  segmentMs: 1,
  layers: [
    { name: 'fc', backwardMs: 30, parameters: [{ name: 'w', elements: 1_000_000, kind: 'dense' }] },
    {
      name: 'embedding',
      backwardMs: 40,
      parameters: [
        {
          name: 'table',
          elements: 1_000_000,
          kind: 'sparse',
          rowLength: 10,
          sparsity: 0.1,
          unionShare: 0.15,
        },
      ],
    },
  ],
  cluster: { workers: 2, servers: 1, machines: 2, workersPerMachine: 1 },
  costs: {
    collective: { startMs: 1, msPerByte: 5e-6 },
    serverDense: { startMs: 1, msPerByte: 5e-6 },
    serverRows: [
      { bytes: 0, ms: 2 },
      { bytes: 1_000_000, ms: 10 },
    ],
    linkBytesPerSecond: 125e6,
  },
  merging: 'layer by layer',
};
const plan = planExchange(input);

describe('drift', () => {
  it('is a difference of more than a share, up or down', () => {
    expect(hasDrifted(plan, {}, 0.2)).toBe(false);
    expect(hasDrifted(plan, { computeMs: plan.computeMs * 1.19 }, 0.2)).toBe(false);
    expect(hasDrifted(plan, { computeMs: plan.computeMs * 1.21 }, 0.2)).toBe(true);
    expect(hasDrifted(plan, { exchangeMs: plan.exchangeMs * 0.79 }, 0.2)).toBe(true);
    expect(hasDrifted(plan, { sparsity: { table: 0.11 } }, 0.2)).toBe(false);
    expect(hasDrifted(plan, { sparsity: { table: 0.13, unknown: 1 } }, 0.2)).toBe(true);
  });

  it('is not what nobody would notice in an iteration', () => {
    const tiny = { startMs: 0.001, msPerByte: 0 };
    const quick = planExchange({
      ...input,
      costs: { collective: tiny, serverDense: tiny, serverRows: tiny },
    });
    expect(hasDrifted(quick, { exchangeMs: quick.exchangeMs * 10 }, 0.2)).toBe(false);
  });

  it('refuses a share that is none', () => {
    expect(() => hasDrifted(plan, {}, 0)).toThrow(/share is 0/);
  });
});

describe('recalibrated figures', () => {
  it('predict for the old groups what was measured, so that planning anew comes to an end', () => {
    const measured = { computeMs: plan.computeMs * 1.5, exchangeMs: plan.exchangeMs * 0.5 };
    const again = planExchange(recalibrated(input, plan, measured));
    expect(again.computeMs).toBeCloseTo(measured.computeMs, 9);
    expect(again.exchangeMs).toBeCloseTo(measured.exchangeMs, 9);
    expect(hasDrifted(again, measured, 1e-6)).toBe(false);
  });

  it('predict it though collectives and pushes to servers overlap', () => {
    // The last message ends long after the backward pass, and rows go to servers meanwhile.
    const costs = { ...input.costs, collective: { startMs: 10, msPerByte: 4e-5 } };
    const late: ExchangeInput = { ...input, costs, busyShare: 0.1, strategy: 'parallax' };
    const before = planExchange(late);
    expect(before.groups[0]!.endMs).toBeGreaterThan(before.computeMs + 50);
    for (const [compute, exchange] of [
      [3, 1],
      [1, 0.2],
      [0.8, 2],
    ] as const) {
      const measured = { computeMs: before.computeMs * compute, exchangeMs: before.exchangeMs * exchange };
      const again = planExchange(recalibrated(late, before, measured));
      expect(again.computeMs).toBeCloseTo(measured.computeMs, 5);
      expect(again.exchangeMs).toBeCloseTo(measured.exchangeMs, 5);
    }
  });

  it('take over the sparsity, and keep a union that is possible with it', () => {
    const { layers } = recalibrated(input, plan, { sparsity: { table: 0.3 } });
    expect(layers[1]!.parameters[0]).toMatchObject({ sparsity: 0.3, unionShare: 0.3 });
    expect(hasDrifted(planExchange({ ...input, layers }), { sparsity: { table: 0.3 } }, 0.01)).toBe(false);
  });

  it('do not count rows twice that have become more: messages are longer, and cost what they did', () => {
    const servers: ExchangeInput = { ...input, strategy: 'parallax' };
    const before = planExchange(servers);
    const longer = planExchange(recalibrated(servers, before, { sparsity: { table: 0.3 } }));
    expect(longer.exchangeMs).toBeGreaterThan(1.05 * before.exchangeMs);
    const measured = { exchangeMs: longer.exchangeMs, sparsity: { table: 0.3 } };
    const again = planExchange(recalibrated(servers, before, measured));
    expect(again.exchangeMs).toBeCloseTo(measured.exchangeMs, 6);
    const [now, then] = [longer, again].map(({ parameters }) => parameters[1]!.predictedMs);
    expect(now).toBeCloseTo(then!, 6);
  });
});
