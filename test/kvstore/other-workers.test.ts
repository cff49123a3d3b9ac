/** When a worker that waits for others says so, and when it does not. */
import { describe, expect, it } from 'vitest';
import { OtherWorkers } from '../../src/kvstore/remote/other-workers.ts';
import type { AskedRequest } from '../../src/kvstore/remote/other-workers.ts';

const SERVER = 'server 0 at 127.0.0.1:7000';
const PULL = { op: 'exchange', pull: true };
const PUSH_PULL = { op: 'exchange', push: true, pull: true };

function watched(worker: number, workers: number) {
  const lines: string[] = [];
  const others = new OtherWorkers({ worker, workers, namespace: 'a', log: (line) => void lines.push(line) });
  /** The seconds at which lines were logged while a request waited so long. */
  const wait = (request: AskedRequest, seconds: number, startMs = 0): number[] => {
    const at: number[] = [];
    for (let ms = 0; ms <= 1000 * seconds; ms += 100) {
      const before = lines.length;
      others.awaited(request, SERVER, ms, startMs + ms);
      if (lines.length > before) at.push(ms / 1000);
    }
    return at;
  };
  return { others, lines, wait };
}

describe('a worker that waits for others', () => {
  it('says so after two seconds, and less and less often', () => {
    expect(watched(0, 2).wait(PUSH_PULL, 100)).toEqual([2, 6, 14, 30, 62]);
  });

  it.each([
    [1, 2, 'open', "worker 1 of 2 has waited 2 s for worker 0 of service 'a'", 'start it if it does not run'],
    [1, 3, 'open', "worker 1 of 3 has waited 2 s for worker 0 of service 'a'", 'start it if it does not run'],
    [
      1,
      2,
      'gather',
      "worker 1 of 2 has waited 2 s for worker 0 of service 'a'",
      'start it if it does not run',
    ],
    [
      ...([1, 3, 'gather', "worker 1 of 3 has waited 2 s for other workers of service 'a'"] as const),
      'start those of the 3 that do not run',
    ],
  ])('names whom it waits for: worker %i of %i, %s', (worker, workers, op, beginning, end) => {
    const { lines, wait } = watched(worker, workers);
    wait({ op }, 2);
    expect(lines).toEqual([`${beginning}: ${SERVER} has not answered '${op}' yet; ${end}`]);
  });

  it('says nothing of slow ones once all have met, but of lost ones', () => {
    const { others, wait } = watched(0, 2);
    others.answered(PULL);
    expect(wait(PUSH_PULL, 2)).toEqual([2]);
    others.answered(PUSH_PULL);
    expect(wait(PUSH_PULL, 100, 10_000)).toEqual([]);
    expect(wait({ op: 'gather' }, 7, 200_000)).toEqual([2, 6]);
  });

  it('names those whose connection the server has lost, also once all have met', () => {
    const { others, lines, wait } = watched(0, 3);
    others.answered(PUSH_PULL);
    others.answered(PUSH_PULL);
    expect(wait(PUSH_PULL, 10)).toEqual([]);
    others.told(SERVER, [2]);
    expect(wait(PUSH_PULL, 7, 20_000)).toEqual([2, 6]);
    others.told(SERVER, [1, 2]);
    wait({ op: 'apply' }, 14, 20_000);
    expect(lines).toEqual([
      `worker 0 of 3 has waited 2 s for worker 2 of service 'a', which is not connected: ${SERVER} has not answered 'exchange' yet; start it again under its number if it does not run`,
      `worker 0 of 3 has waited 6 s for worker 2 of service 'a', which is not connected: ${SERVER} has not answered 'exchange' yet; start it again under its number if it does not run`,
      `worker 0 of 3 has waited 14 s for workers 1, 2 of service 'a', which are not connected: ${SERVER} has not answered 'apply' yet; start them again under their numbers if they do not run`,
    ]);
    others.told(SERVER, []);
    expect(wait(PUSH_PULL, 100, 60_000)).toEqual([]);
  });

  it('believes only whole numbers of workers that there are', () => {
    const { others, lines, wait } = watched(0, 3);
    others.answered(PUSH_PULL);
    others.answered(PUSH_PULL);
    for (const absent of ['x', [0], [3], ['1'], [1.5], undefined, {}]) others.told(SERVER, absent);
    wait(PUSH_PULL, 100);
    expect(lines).toEqual([]);
  });

  it('says nothing if it is alone, or if the request needs nobody else', () => {
    expect(watched(0, 1).wait(PUSH_PULL, 10)).toEqual([]);
    expect(watched(0, 2).wait({ op: 'checkpoints-written' }, 10)).toEqual([]);
  });
});
