import fc from 'fast-check';
import { expect, it } from 'vitest';
import { asOne, fitLine, type TriedStep } from '../../src/runner/exchange-trial.ts';

const step = (messages: number, bytes: number, exchangeMs: number): TriedStep => ({
  ...{ messages, bytes, exchangeMs, computeMs: 10, hiddenMs: 0 },
});

it('finds the line that messages were made by', () => {
  const costs = fc.record({ a: fc.integer({ min: 1, max: 50 }), b: fc.integer({ min: 1, max: 100 }) });
  fc.assert(
    fc.property(costs, ({ a, b }) => {
      const made = [27, 4, 1].map((messages) => step(messages, 7e6, messages * a * 0.1 + 7 * b * 0.1));
      const { startMs, msPerByte } = fitLine(made);
      expect(startMs).toBeCloseTo(a * 0.1, 6);
      expect(msPerByte * 1e6).toBeCloseTo(b * 0.1, 6);
    }),
  );
});

it('gives no negative cost, whatever noise does', () => {
  const noisy = fc.array(fc.tuple(fc.integer({ min: 1, max: 60 }), fc.nat(1e8), fc.nat(1e4)), {
    minLength: 1,
    maxLength: 4,
  });
  fc.assert(
    fc.property(noisy, (rows) => {
      const { startMs, msPerByte } = fitLine(
        rows.map(([messages, bytes, ms]) => step(messages, bytes, ms / 100)),
      );
      expect(startMs).toBeGreaterThanOrEqual(0);
      expect(msPerByte).toBeGreaterThanOrEqual(0);
      expect(Number.isFinite(startMs + msPerByte)).toBe(true);
    }),
  );
});

it('takes the bytes alone where more messages were no slower', () => {
  const { startMs, msPerByte } = fitLine([step(27, 7e6, 60), step(4, 7e6, 63), step(1, 7e6, 66)]);
  expect(startMs).toBe(0);
  expect(msPerByte * 7e6).toBeGreaterThan(59);
});

it('takes means over the workers of a step', () => {
  const early = { ...step(1, 7e6, 9), computeMs: 10, hiddenMs: 2 };
  const late = { ...step(1, 7e6, 4), computeMs: 15, hiddenMs: 0 };
  expect(asOne([early, late])).toEqual({ ...early, computeMs: 12.5, exchangeMs: 6.5, hiddenMs: 1 });
});
