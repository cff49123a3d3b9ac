/** What a core remembers of workers that go back again and again. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, it } from 'vitest';
import { Meetings } from '../../src/server/cores/meetings.ts';
import { Recovery } from '../../src/server/cores/recovery.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

it('forgets what workers said in earlier attempts to go back', async () => {
  // Two are counted and one comes, so that nobody meets.
  const tenant = { meetings: new Meetings(() => [0, 1]) };
  const recovery = new Recovery(tenant as never, undefined as never, undefined as never, 0);
  const said = Array.from({ length: 100 }, (_, i) => {
    const steps = [i, i + 1];
    recovery.gather(
      0,
      `attempt ${i}`,
      steps,
      () => undefined,
      () => undefined,
    );
    return new WeakRef(steps);
  });
  // A weak reference keeps what it names until the end of the turn.
  await new Promise(setImmediate);
  collectGarbage();
  expect(said.filter((one) => one.deref() !== undefined)).toHaveLength(1);
  // The last is still there for the meeting.
  const met: unknown[] = [];
  recovery.gather(
    1,
    'other',
    [99],
    (_, step) => void met.push(step),
    () => undefined,
  );
  expect(met).toEqual([99]);
});
