/** Who trains, as flags and files say it: what becomes of both, and what is refused. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { checkConfig } from '../../src/cli/config-check.ts';
import { onOfFlags, type WhoTrainsFlags } from '../../src/cli/who-trains.ts';
import type { On } from '../../src/runner/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { start } from './program.ts';
import { writeTinyRun } from './tiny-run.ts';

const folder = temporaryFolders();
const onOf = (config: object) =>
  checkConfig(
    { model: 'mlp', data: { kind: 'mnist' }, ...config },
    { source: '/project/tributary.config.ts', defaultName: 'tributary' },
  ).on;

describe('a configuration', () => {
  test('of an earlier version says the same by on', () => {
    expect(onOf({ learners: 'auto', learnerMode: 'auto' })).toEqual({ learners: 'auto' });
    expect(onOf({ learners: 2, learnerMode: 'server locked' })).toEqual({
      ...{ learners: 2, update: 'locked', appliedBy: 'server' },
    });
    expect(onOf({ workers: 2, learners: 1, learnerMode: 'auto' })).toEqual({ workers: 2 });
    expect(onOf({ resources: 'machines.json' })).toEqual({ machines: '/project/machines.json' });
    expect(onOf({ resources: { workers: 3, transport: 'tcp' } })).toEqual({ workers: 3, transport: 'tcp' });
    expect(onOf({})).toBe('auto');
  });

  test('has its paths made absolute', () => {
    const access = { namespace: 'a', nonceFile: 'nonces/a.nonce' };
    expect(onOf({ on: { servers: ['a:1'], access } })).toEqual({
      ...{ servers: ['a:1'], access: { namespace: 'a', nonceFile: '/project/nonces/a.nonce' } },
    });
  });
});

describe('flags', () => {
  const on = (given: WhoTrainsFlags, before: On = 'auto') => onOfFlags(given, before, '/here');

  test.each<[WhoTrainsFlags, On, On]>([
    [{}, { workers: 2 }, { workers: 2 }],
    [{ workers: 3 }, { learners: 2 }, { workers: 3 }],
    [{ workers: 3 }, { machines: 'm.json', transport: 'tcp' }, { workers: 3, transport: 'tcp' }],
    [{ learners: '2' }, { workers: 4 }, { learners: 2 }],
    [{ mode: 'server locked' }, 'auto', { learners: 'auto', update: 'locked', appliedBy: 'server' }],
    [
      { mode: 'mpi-esgd', clients: 2 },
      { workers: 4, consistency: 'asynchronous' },
      { mode: 'mpi-esgd', workers: 4, clients: 2 },
    ],
    [{ servers: '2', 'server-cores': 3 }, { workers: 2 }, { workers: 2, servers: 2, serverCores: 3 }],
    [{ staleness: 4 }, { mode: 'dist-sgd', workers: 2 }, { workers: 2, consistency: { staleness: 4 } }],
    [
      { elastic: 0.3, 'every-steps': 8 },
      { workers: 2 },
      { workers: 2, consistency: { elastic: 0.3, everySteps: 8 } },
    ],
    [
      { servers: 'a:1, b:2', service: 's', 'nonce-file': 's.nonce' },
      { workers: 2 },
      { workers: 2, servers: ['a:1', 'b:2'], access: { namespace: 's', nonceFile: '/here/s.nonce' } },
    ],
  ])('%j with %j are %j', (given, before, expected) => {
    expect(on(given, before)).toEqual(expected);
  });

  test.each<[WhoTrainsFlags, RegExp]>([
    [{ service: 'a' }, /--service and --nonce-file together/],
    [{ servers: 'two' }, /a number or addresses for --servers/],
    [{ staleness: 1, elastic: 1 }, /--staleness or --elastic, not both/],
    [{ learners: '2', clients: 2 }, /--clients or --learners, not both/],
    [{ learners: '2', mode: 'mpi-sgd' }, /--mode or --learners, not both/],
    [{ learners: '1000' }, /a whole number from 1 to 254/],
  ])('%j are refused', (given, message) => {
    expect(() => on(given)).toThrow(message);
  });
});

test('tributary train stops in an asynchronous mode, and goes on in another', async () => {
  const cwd = folder();
  writeTinyRun(cwd, { config: { on: undefined, epochs: 100_000, batchSize: 4 } });
  const first = start(['train', 'tiny.json', '--mode', 'dist-asgd', '--workers', '2', '--json'], cwd);
  await first.waitFor('epoch');
  first.child.kill('SIGINT');
  const stopped = await first.ended;
  expect(stopped.code, stopped.stderr).toBe(130);
  const { step } = JSON.parse(stopped.lines.at(-1)!) as { step: number };
  const stored = JSON.parse(readFileSync(join(cwd, 'runs', 'tiny', 'config.json'), 'utf8')) as object;
  expect(stored).toMatchObject({ on: { mode: 'dist-asgd', workers: 2 } });
  expect(readdirSync(join(cwd, 'runs', 'tiny', 'checkpoints')).length).toBeGreaterThan(0);
  const more = ['--mode', 'mpi-esgd', '--clients', '2', '--max-steps', String(step + 20), '--json'];
  const rest = await start(['train', 'runs/tiny', '--resume', ...more], cwd).ended;
  expect(rest.code, rest.stderr).toBe(0);
  const told = rest.lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  expect(told).toContainEqual(expect.objectContaining({ type: 'resumed', step }));
  expect(told.at(-1)).toMatchObject({
    type: 'finished',
    steps: step + 20,
    mode: 'mpi-esgd',
    clients: 2,
    workers: 2,
  });
}, 180_000);

test('clients with weights of their own share the batch size of an example, and resuming keeps it', async () => {
  const cwd = folder();
  const texts = Array.from(
    { length: 100 },
    (_, i) => `what is number ${i % 7} of ${i},${i % 2 ? 'odd' : 'even'}`,
  );
  for (const part of ['train', 'test']) writeFileSync(join(cwd, `trec6-${part}.csv`), texts.join('\n'));
  const example = ['train', 'trec6', '--data', '.', '--json', '--workers', '2'];
  const batchSize = () =>
    (JSON.parse(readFileSync(join(cwd, 'runs', 'trec6', 'config.json'), 'utf8')) as { batchSize: number })
      .batchSize;

  const elastic = await start([...example, '--mode', 'dist-esgd', '--max-steps', '2'], cwd).ended;
  expect(elastic.code, elastic.stderr).toBe(0);
  expect(batchSize()).toBe(25);

  const synchronous = [...example, '--mode', 'dist-sgd', '--max-steps', '3'];
  const resumed = await start([...synchronous, '--resume'], cwd).ended;
  expect(resumed.code, resumed.stderr).toBe(0);
  expect(batchSize()).toBe(25);

  const named = [...example, '--mode', 'dist-esgd', '--max-steps', '1', '--batch-size', '10', '--overwrite'];
  expect((await start(named, cwd).ended).code).toBe(0);
  expect(batchSize()).toBe(10);
}, 180_000);
