import { describe, expect, it } from 'vitest';
import { costFunction, linearCost, measuredCost } from '../../src/plan/index.ts';
import { scaledCost } from '../../src/plan/exchange-costs.ts';

const points = [
  { bytes: 1000, ms: 2 },
  { bytes: 2000, ms: 3 },
  { bytes: 4000, ms: 9 },
];

describe('the cost of an exchange', () => {
  it('is a line', () => {
    expect(linearCost(2, 0.5)(10)).toBe(7);
    expect(costFunction({ startMs: 2, msPerByte: 0.5 })(0)).toBe(2);
  });

  it('is straight between measured points, flat before them, and goes on after them', () => {
    const cost = costFunction(points);
    expect([0, 1000, 1500, 2000, 3000, 4000, 5000].map(cost)).toEqual([2, 2, 2.5, 3, 6, 9, 12]);
    expect(measuredCost([{ bytes: 10, ms: 4 }])(1e6)).toBe(4);
  });

  it('can be scaled in either form', () => {
    expect(scaledCost({ startMs: 2, msPerByte: 0.5 }, 2)).toEqual({ startMs: 4, msPerByte: 1 });
    expect(costFunction(scaledCost(points, 3))(1500)).toBe(7.5);
  });

  it('refuses what cannot have been measured', () => {
    expect(() => linearCost(-1, 0)).toThrow(/startMs is -1/);
    expect(() => measuredCost([])).toThrow(/at least one measured point/);
    expect(() => measuredCost([points[1]!, points[0]!])).toThrow(
      /points\[1\].bytes is 1000; pass more than the 2000/,
    );
    expect(() => measuredCost([points[0]!, { bytes: 1001, ms: 1 }])).toThrow(
      /points\[1\].ms is 1; pass at least the 2/,
    );
  });
});
