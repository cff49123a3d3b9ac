import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { chooseReduction, type RackNetwork } from '../../src/plan/index.ts';

/** Four racks of eight workers at 10 Gbps, boxes of 80 Gbps, and a core that gives a rack 10 Gbps. */
const network: RackNetwork = {
  racks: 4,
  workersPerRack: 8,
  boxBytesPerSecond: 10e9,
  coreBytesPerSecond: 1.25e9,
  workerBytesPerSecond: 1.25e9,
  between: 'ring',
};

const rates = fc.double({ min: 1e6, max: 1e12, noNaN: true });
const networks = fc.record({
  racks: fc.integer({ min: 1, max: 40 }),
  workersPerRack: fc.integer({ min: 1, max: 64 }),
  boxBytesPerSecond: rates,
  coreBytesPerSecond: rates,
  workerBytesPerSecond: rates,
  between: fc.constantFrom('ring' as const, 'shards' as const),
});

describe('reduction between racks', () => {
  it('is hierarchical behind a slow core, and says why', () => {
    const choice = chooseReduction(network);
    expect(choice.choice).toBe('hierarchical');
    expect(choice.flatCost).toBeCloseTo(4.8e-9, 15);
    expect(choice.hierarchicalCost).toBeCloseTo(1.4e-9, 15);
    expect(choice.reason).toBe(
      'Hierarchical: a gigabyte of the model takes 4.8 s flat through the core and 1.4 s hierarchically ' +
        '(0.8 s inside the rack + 0.6 s between racks by ring).',
    );
    expect(Object.isFrozen(choice)).toBe(true);
  });

  it('is flat behind a fast core, and says why', () => {
    const choice = chooseReduction({ ...network, coreBytesPerSecond: 10e9, between: 'shards' });
    expect(choice.choice).toBe('flat');
    expect(choice.reason).toBe(
      'Flat: a gigabyte of the model takes 0.6 s flat through the core and 0.875 s hierarchically ' +
        '(0.8 s inside the rack + 0.075 s between racks by shards).',
    );
  });

  it('inside the rack waits for the slower of box and worker, and between racks for that of box and core', () => {
    const cost = (changed: Partial<RackNetwork>) =>
      chooseReduction({ ...network, ...changed }).hierarchicalCost;
    expect(cost({ workerBytesPerSecond: 1e9 })).toBeCloseTo(1 / 1e9 + 0.6e-9, 15);
    expect(cost({ boxBytesPerSecond: 1e9 })).toBeCloseTo(8 / 1e9 + 0.75e-9, 15);
  });

  it('is hierarchical exactly if the inequality of the paper holds', () => {
    fc.assert(
      fc.property(networks, (it) => {
        const { racks: r, workersPerRack: n } = it;
        const bottleneck = Math.min(it.boxBytesPerSecond, it.coreBytesPerSecond);
        const flat = (n * (r - 1)) / (r * it.coreBytesPerSecond);
        const levels =
          Math.max(n / it.boxBytesPerSecond, 1 / it.workerBytesPerSecond) + (r - 1) / (r * bottleneck);
        fc.pre(Math.abs(flat - levels) > 1e-9 * levels);
        const { choice, flatCost, hierarchicalCost } = chooseReduction(it);
        expect(flatCost / levels).toBeCloseTo(flat / levels, 9);
        expect(hierarchicalCost / levels).toBeCloseTo(1, 9);
        expect(choice).toBe(flat > levels ? 'hierarchical' : 'flat');
      }),
    );
  });

  it('is flat at equal costs', () => {
    // 3 / 2 through the core, and 1 + 1 / 2 hierarchically: exact in binary.
    const even = {
      racks: 2,
      workersPerRack: 3,
      boxBytesPerSecond: 8,
      coreBytesPerSecond: 1,
      workerBytesPerSecond: 1,
    };
    const { choice, flatCost, hierarchicalCost } = chooseReduction({ ...even, between: 'ring' });
    expect(flatCost).toBe(hierarchicalCost);
    expect(choice).toBe('flat');
  });

  it('is flat in one rack whatever the bandwidths', () => {
    fc.assert(
      fc.property(networks, (it) => {
        const { choice, flatCost, reason } = chooseReduction({ ...it, racks: 1 });
        expect({ choice, flatCost }).toEqual({ choice: 'flat', flatCost: 0 });
        expect(reason).toMatch(/^Flat: there is one rack only; a gigabyte of the model takes 0 s flat /);
      }),
    );
  });

  it('stays flat when the core becomes faster, and neither cost rises', () => {
    fc.assert(
      fc.property(networks, fc.double({ min: 1, max: 1000, noNaN: true }), (it, factor) => {
        const slow = chooseReduction(it);
        const fast = chooseReduction({ ...it, coreBytesPerSecond: it.coreBytesPerSecond * factor });
        expect(fast.flatCost).toBeLessThanOrEqual(slow.flatCost);
        expect(fast.hierarchicalCost).toBeLessThanOrEqual(slow.hierarchicalCost);
        if (slow.choice === 'flat') expect(fast.choice).toBe('flat');
      }),
    );
  });

  it.each([
    ['racks', 0, 'racks is 0; pass a positive integer.'],
    ['workersPerRack', 2.5, 'workersPerRack is 2.5; pass a positive integer.'],
    ['boxBytesPerSecond', 0, 'boxBytesPerSecond is 0; pass a finite number above 0.'],
    ['coreBytesPerSecond', -1, 'coreBytesPerSecond is -1; pass a finite number above 0.'],
    ['workerBytesPerSecond', Infinity, 'workerBytesPerSecond is Infinity; pass a finite number above 0.'],
    ['between', 'tree', "between is tree; pass 'ring' or 'shards'."],
  ])('is refused for %s of %s', (name, value, message) => {
    expect(() => chooseReduction({ ...network, [name]: value })).toThrow(
      expect.objectContaining({ code: 'INVALID_ARGUMENT', message }),
    );
  });
});
