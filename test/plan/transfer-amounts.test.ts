import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { linkBytes, transferBytes } from '../../src/plan/index.ts';

const MILLION = 1e6;

describe('what a worker transfers (table 3 of Parallax)', () => {
  it.each([
    ['dense', 'servers', 2 * 800],
    ['dense', 'collectives', (2 * 7 * 800) / 8],
    ['sparse', 'servers', 2 * 0.05 * 800],
    ['sparse', 'collectives', 2 * 7 * 0.05 * 800],
  ] as const)('%s by %s', (kind, method, expected) => {
    expect(transferBytes(kind, method, { bytes: 800, workers: 8, sparsity: 0.05 })).toBeCloseTo(expected, 9);
  });

  it("gives the amounts of the paper's language model on 48 GPUs", () => {
    // Table 1: 9 million dense parameters; 814 million sparse ones, of which a GPU uses 6.5 million in an iteration.
    const dense = { bytes: 9 * MILLION * 4, workers: 48 };
    const sparse = { bytes: 814 * MILLION * 4, workers: 48, sparsity: 6.5 / 814 };
    expect(transferBytes('dense', 'servers', dense) / MILLION).toBeCloseTo(72, 6);
    expect(transferBytes('dense', 'collectives', dense) / MILLION).toBeCloseTo(70.5, 6);
    expect(transferBytes('sparse', 'servers', sparse) / MILLION).toBeCloseTo(52, 6);
    expect(transferBytes('sparse', 'collectives', sparse) / MILLION).toBeCloseTo(2444, 6);
  });

  it('is (N - 1) times as much for sparse parameters by collectives as by servers', () => {
    fc.assert(
      fc.property(fc.nat(1e6), fc.integer({ min: 1, max: 64 }), fc.nat(100), (bytes, workers, percent) => {
        const load = { bytes, workers, sparsity: percent / 100 };
        const byServers = transferBytes('sparse', 'servers', load);
        expect(transferBytes('sparse', 'collectives', load)).toBeCloseTo((workers - 1) * byServers, 3);
      }),
    );
  });

  it('refuses shares and counts that are none', () => {
    expect(() => transferBytes('sparse', 'servers', { bytes: 1, workers: 2, sparsity: 1.5 })).toThrow(
      /sparsity is 1.5/,
    );
    expect(() => transferBytes('dense', 'servers', { bytes: 1, workers: 0 })).toThrow(/workers is 0/);
  });
});

describe('what leaves a machine through its link', () => {
  const places = (machines: number, workersPerMachine: number, servers = machines) => ({
    machines,
    workersPerMachine,
    servers,
  });

  it('is nothing on one machine', () => {
    for (const kind of ['dense', 'sparse'] as const)
      for (const method of ['servers', 'collectives'] as const)
        for (const localAggregation of [true, false])
          expect(linkBytes(kind, method, places(1, 4), { bytes: 100, sparsity: 0.5, localAggregation })).toBe(
            0,
          );
  });

  it('is the same by servers on all machines and by a ring, where machines send as one', () => {
    fc.assert(
      fc.property(fc.integer({ min: 2, max: 16 }), fc.integer({ min: 1, max: 8 }), (machines, workers) => {
        const byServers = linkBytes('dense', 'servers', places(machines, workers), { bytes: 1000 });
        expect(byServers).toBeCloseTo((2 * (machines - 1) * 1000) / machines, 6);
        const byRing = linkBytes('dense', 'collectives', places(machines, workers), { bytes: 1000 });
        expect(byRing).toBeCloseTo(byServers, 6);
      }),
    );
  });

  it('is counted byte by byte for two machines with one server', () => {
    // The first machine has the server: its own worker is beside it, the other one gets everything from it.
    expect(linkBytes('dense', 'servers', places(2, 1, 1), { bytes: 1000 })).toBe(1000);
    // Three workers on each, not aggregated: the server answers three others.
    const separate = { bytes: 1000, localAggregation: false };
    expect(linkBytes('dense', 'servers', places(2, 3, 1), separate)).toBe(3000);
    expect(linkBytes('sparse', 'servers', places(2, 3, 1), { ...separate, sparsity: 0.1 })).toBeCloseTo(
      300,
      9,
    );
  });

  it('is that of the machine with the most servers', () => {
    // Four servers on three machines: the first has two, half of the parameter, and answers two other machines.
    expect(linkBytes('dense', 'servers', places(3, 1, 4), { bytes: 1000 })).toBe(500 + 2 * 500);
  });

  it('falls with local aggregation by as much as the workers of a machine touch the same rows', () => {
    const load = { bytes: 1000, sparsity: 0.1, localAggregation: true };
    const k = { ...places(2, 4) };
    const separate = linkBytes('sparse', 'servers', k, { ...load, localAggregation: false });
    expect(separate).toBeCloseTo(4 * 0.1 * 1000, 9);
    // All eight touch the same rows, or entirely different ones.
    expect(linkBytes('sparse', 'servers', k, { ...load, unionShare: 0.1 })).toBeCloseTo(100, 9);
    expect(linkBytes('sparse', 'servers', k, { ...load, unionShare: 0.8 })).toBeCloseTo(400, 9);
    const independent = linkBytes('sparse', 'servers', k, load);
    expect(independent).toBeCloseTo((1 - 0.9 ** 4) * 1000, 9);
    expect(linkBytes('sparse', 'collectives', k, { ...load, unionShare: 0.1 })).toBeCloseTo(100, 9);
  });
});
