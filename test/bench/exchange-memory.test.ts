/** The bound of `bench exchange`: threads that update parts of one vector together. No rate is asserted. */
import { expect, it } from 'vitest';
import { measureMemoryBandwidth } from '../../src/bench/exchange/index.ts';

it.each([
  [1, 4],
  [2, 1 << 20],
  [3, 4 * 1003],
])('%i threads measure a vector of %i bytes', async (threads, bytes) => {
  // Every thread checks that its part was updated in every round, and fails the measurement otherwise.
  const rate = await measureMemoryBandwidth({ bytes, threads, rounds: 3 });
  expect(rate).toBeGreaterThan(0);
  expect(rate).toBeLessThan(Infinity);
});

it.each([
  [{ bytes: 6, threads: 1 }, /bytes is 6/],
  [{ bytes: 4, threads: 2 }, /bytes is 4/],
  [{ bytes: 8, threads: 0 }, /threads is 0/],
  [{ bytes: 8, threads: 1, rounds: 0 }, /rounds is 0/],
])('refuses %o', async (options, message) => {
  await expect(measureMemoryBandwidth(options)).rejects.toMatchObject({
    code: 'INVALID_ARGUMENT',
    message: expect.stringMatching(message) as string,
  });
});
