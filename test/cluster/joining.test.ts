/** What a process that waits to get into a cluster reads meanwhile, by a clock of the test's own. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { join, type WaitingReport } from '../../src/cluster/joining.ts';
import type { Line } from '../../src/cluster/line.ts';
import { SECRET } from '../support/secrets.ts';

beforeEach(
  () =>
    void vi.useFakeTimers({
      toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'],
    }),
);
afterEach(() => void vi.useRealTimers());

/** Dials for ever. */
const line = { dial: () => new Promise(() => undefined) } as unknown as Line;

it('says what it waits for after two seconds, then less and less often, and ends with the address', async () => {
  const reports: WaitingReport[] = [];
  const joined = join(line, {
    ...{ scheduler: '10.0.0.9:7077', secret: SECRET, title: 'process 1', host: 'a', address: {} },
    onWaiting: (report) => reports.push(report),
  });
  const ended = expect(joined).rejects.toMatchObject({
    code: 'UNREACHABLE',
    message: expect.stringMatching(
      /^The scheduler at 10\.0\.0\.9:7077 cannot be reached .* after 60000 ms; /,
    ) as string,
  });
  await vi.advanceTimersByTimeAsync(1999);
  expect(reports).toEqual([]);
  await vi.advanceTimersByTimeAsync(58_001);
  await ended;
  expect(reports.map(({ waitedMs }) => waitedMs)).toEqual([2000, 6000, 14_000, 30_000]);
  expect(reports[0]!.text).toMatch(
    /10\.0\.0\.9:7077 .*; this process gives up after 60000 ms \(joinTimeoutMs\)$/,
  );
  await vi.advanceTimersByTimeAsync(600_000);
  expect(reports).toHaveLength(4);
});
