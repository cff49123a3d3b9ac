/** Clients that do not wait for each other: what becomes of those that are left out, stop, leave early or die. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { getRunner } from '../../src/runner/index.ts';
import { programOf } from '../support/test-program.ts';
import { smallModels } from './small-models.ts';
import { withoutWaits } from '../support/worker-output.ts';

const PROGRAM = fileURLToPath(new URL('clients-program.ts', import.meta.url));

function run(name: string): Record<string, unknown> {
  const { status, stdout, stderr } = spawnSync(process.execPath, [...programOf(PROGRAM), name], {
    encoding: 'utf8',
    timeout: 170_000,
  });
  expect({ status, stderr: withoutWaits(stderr) }).toEqual({ status: 0, stderr: '' });
  return JSON.parse(stdout) as Record<string, unknown>;
}

it('counts a client that an epoch leaves out, so that nobody waits for its push', () => {
  expect(run('an epoch leaves a client out')).toEqual({ steps: 20 });
}, 180_000);

it('averages once more at the end of a run that is shorter than an interval', () => {
  const { before, after } = run('elastic for fewer steps than an interval');
  expect(after).toBeLessThan((before as number) / 2);
}, 180_000);

it('goes on after a run that was left early', () => {
  expect(run('leaves a run early, and runs again')).toEqual({ last: 16 });
}, 180_000);

it('stops all clients when a worker of one wants to', () => {
  expect(run('stops all when one wants to')).toEqual({ hasStopped: true });
}, 180_000);

it('ends with the name of a worker that was killed', () => {
  const { message } = run('loses a worker');
  expect(message).toMatch(/worker 1|rank 1|SIGKILL/);
}, 180_000);

it('makes no step in lock step without a worker that was killed', () => {
  const { steps, message } = run('loses a worker in lock step');
  expect(message).toMatch(/worker 1|rank 1|SIGKILL/);
  expect(steps).toBeLessThanOrEqual(20);
}, 180_000);

it.each([
  [{ averageDense: false }, /averageDense is for workers in lock step/],
  [{ batchSize: 0 }, /batchSize is 0; give/],
])('refuses %j before anything is started', async (more, message) => {
  const { model, optimizer } = smallModels.mlp();
  const on = { workers: 2, clients: 2 };
  await expect(getRunner(model, { on, optimizer, ...more })).rejects.toThrow(message);
});

it('refuses a nonce that cannot be read before anything is started', async () => {
  const { model, optimizer } = smallModels.mlp();
  const access = { namespace: 'a', nonceFile: '/nowhere/a.nonce' };
  const on = { workers: 2, servers: ['127.0.0.1:1'], access };
  await expect(getRunner(model, { on, optimizer })).rejects.toMatchObject({ code: 'FILE_NOT_FOUND' });
});

it('refuses a moving average of a table that servers change', async () => {
  const { model, optimizer } = smallModels.rows();
  const g = await import('../../src/graph/index.ts');
  g.movingAverage(model.graph, 0.9);
  const asynchronous = { workers: 2, consistency: 'asynchronous' } as const;
  await expect(getRunner(model, { on: asynchronous, optimizer })).rejects.toThrow(
    /follows the table embedding/,
  );
});
