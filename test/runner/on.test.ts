/** Who trains: what is filled in, what the names of the literature stand for, and what is refused before anything starts. */
import { readdirSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { packageFolder } from '../support/test-program.ts';
import { resolveOn, type Clients, type LockStep, type On, type OnWorkers } from '../../src/runner/on.ts';

const resolved = (on: unknown) => resolveOn(on as On, 'here');
const workersOf = (on: unknown) => resolved(on) as OnWorkers;
const clientsOf = (on: unknown) => workersOf(on).way as Clients;
const nonceFile = '/nonces/mnist.nonce';
const access = { namespace: 'mnist', nonceFile };

describe('who trains where nothing is said', () => {
  it('is this process, all processors or whoever is fastest, as the caller has it', () => {
    expect(resolveOn(undefined, 'here')).toEqual({ kind: 'here' });
    const auto = { kind: 'learners', learners: 'auto', update: 'auto', appliedBy: 'auto' };
    expect(resolveOn(undefined, 'auto')).toMatchObject(auto);
    expect(resolved('auto')).toMatchObject(auto);
    const all = resolveOn(undefined, 'all processors');
    if (availableParallelism() === 1) expect(all.kind).toBe('here');
    else expect(all).toMatchObject({ resources: { workers: availableParallelism() } });
  });

  it('is this process alone for one worker or one learner', () => {
    expect(resolved({ workers: 1 })).toEqual({ kind: 'here' });
    expect(resolved({ learners: 1 })).toEqual({ kind: 'here' });
    expect(resolved({ learners: 1, appliedBy: 'server' })).toMatchObject({ kind: 'learners', learners: 1 });
  });
});

describe('workers', () => {
  it('train in lock step by planned routes', () => {
    expect(workersOf({ workers: 4 })).toMatchObject({
      ...{ kind: 'workers', resources: { workers: 4, transport: 'auto' } },
      way: { kind: 'lock step', strategy: 'hybrid', merging: 'optimal', serverCores: 1 },
    });
    expect((workersOf({ workers: 4, servers: 2 }).way as LockStep).servers).toBe(2);
    expect(workersOf({ workers: 4, servers: 0 }).way).toMatchObject({ strategy: 'collectives' });
    expect(workersOf({ workers: 4, mode: 'collective' }).way).toMatchObject({ strategy: 'collectives' });
  });

  it('form clients where that is said, with the name of the literature', () => {
    expect(clientsOf({ workers: 12, clients: 2, servers: 2 })).toEqual({
      ...{ kind: 'clients', mode: 'mpi-sgd', clients: 2, servers: 2, serverCores: 1 },
      consistency: { kind: 'synchronous' },
      access: undefined,
    });
    const elastic = { workers: 12, clients: 4, consistency: { elastic: 0.25, everySteps: 16 } };
    expect(clientsOf(elastic)).toMatchObject({
      ...{ mode: 'mpi-esgd', servers: 1 },
      consistency: { kind: 'elastic', alpha: 0.25, everySteps: 16 },
    });
    const own = { workers: 8, servers: ['10.0.0.9:7000'], access, consistency: { staleness: 4 } };
    expect(clientsOf(own)).toMatchObject({
      ...{ mode: 'dist-asgd', clients: 8, servers: ['10.0.0.9:7000'], access },
      consistency: { kind: 'bounded', staleness: 4 },
    });
  });

  it.each([
    ['dist-sgd', 4, 'synchronous'],
    ['dist-asgd', 4, 'asynchronous'],
    ['dist-esgd', 4, 'elastic'],
    ['mpi-sgd', 1, 'synchronous'],
    ['mpi-asgd', 1, 'asynchronous'],
    ['mpi-esgd', 1, 'elastic'],
  ])('of mode %s are %d clients, %s', (mode, clients, kind) => {
    const way = clientsOf({ mode, workers: 4 });
    expect(way).toMatchObject({ mode, clients, servers: 1, consistency: { kind } });
    if (mode.startsWith('mpi')) expect(clientsOf({ mode, workers: 4, clients: 2 }).clients).toBe(2);
  });

  it('of a mode may say how elastic or stale they are', () => {
    expect(clientsOf({ mode: 'mpi-esgd', workers: 4, consistency: { elastic: 1 } }).consistency).toEqual({
      ...{ kind: 'elastic', alpha: 1, everySteps: 64 },
    });
    expect(clientsOf({ mode: 'dist-asgd', workers: 4, consistency: { staleness: 0 } }).consistency).toEqual({
      ...{ kind: 'bounded', staleness: 0 },
    });
  });
});

describe('learners', () => {
  it('are tried out unless something is said of them', () => {
    expect(resolved({ learners: 4 })).toMatchObject({ learners: 4, update: 'auto', appliedBy: 'auto' });
    expect(resolved({ learners: 4, update: 'locked' })).toMatchObject({
      update: 'locked',
      appliedBy: 'learner',
    });
    const patient = { maxReplacements: 0, maxRestarts: 3, stallMs: 10, startMs: 20, segmentDirectory: '/a' };
    expect(resolved({ learners: 2, ...patient })).toMatchObject(patient);
    expect(resolved({ learners: 'auto', appliedBy: 'server' })).toMatchObject({
      ...{ update: 'lock-free', appliedBy: 'server' },
    });
  });
});

it('is read by one function: nothing else tells workers and learners apart by their names', () => {
  const folder = join(packageFolder, 'src');
  const sources = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts'))
    .map((name) => ({ name, text: readFileSync(join(folder, name), 'utf8') }));
  const naming = (words: RegExp) =>
    sources.flatMap(({ name, text }) => (words.test(text) ? [name] : [])).sort();
  expect(naming(/\b(WORKERS|LEARNERS)_OPTIONS\b/)).toEqual([join('runner', 'on.ts')]);
  const guards = /\b(checkTeam|checkMode|otherTeam|teamFaults|checkForWorkers|checkForLearners)\b/;
  expect(naming(guards)).toEqual([]);
  // Whoever trains is told what that function made of it.
  expect(naming(/resolveOn\(/)).toEqual([
    join('cli', 'who-trains.ts'),
    ...['fit.ts', 'get-runner.ts', 'on.ts'].map((name) => join('runner', name)),
  ]);
});

it('cannot be changed afterwards', () => {
  const own = workersOf({ mode: 'mpi-esgd', workers: 4 });
  expect([own, own.way, own.resources, own.resources.machines, (own.way as Clients).consistency]).toSatisfy(
    (parts: object[]) => parts.every((part) => Object.isFrozen(part)),
  );
});

describe('refused by name, with what would work instead', () => {
  it.each<[string, unknown, RegExp]>([
    [
      'workers and learners',
      { workers: 2, learners: 2 },
      /workers of workers and learners of learners.*either/,
    ],
    ['an unknown name', { worker: 2 }, /on has no option "worker"\. Did you mean "workers"/],
    ['an unknown word', 'atuo', /on is "atuo"\. Did you mean "auto"/],
    ['an unknown mode', { mode: 'mpi-egsd', workers: 2 }, /mode is 'mpi-egsd'\. Did you mean "mpi-esgd"/],
    [
      'more clients than workers',
      { workers: 2, clients: 3 },
      /clients is 3 but there are 2 workers; give 1 to 2/,
    ],
    [
      'more servers than workers',
      { workers: 2, servers: 3 },
      /servers is 3 but there are 2 workers.*addresses/,
    ],
    ['the same of clients', { workers: 2, clients: 2, servers: 3 }, /servers is 3 but there are 2 workers/],
    [
      'no servers for clients',
      { workers: 2, clients: 2, servers: 0 },
      /servers is 0 but there are 2 workers/,
    ],
    [
      'dist with clients',
      { mode: 'dist-sgd', workers: 4, clients: 2 },
      /leave out clients, or use mode 'mpi-sgd'/,
    ],
    [
      'a mode and another consistency',
      { mode: 'mpi-sgd', workers: 2, consistency: 'asynchronous' },
      /another mode/,
    ],
    [
      'collective with servers',
      { mode: 'collective', workers: 2, servers: 1 },
      /which has no servers.*mpi-sgd/,
    ],
    [
      'collective without lock step',
      { mode: 'collective', workers: 2, consistency: { elastic: 1 } },
      /another mode/,
    ],
    ['a strategy of clients', { workers: 2, clients: 2, strategy: 'servers' }, /strategy.*no such plan/],
    ['merging without lock step', { workers: 2, consistency: 'asynchronous', merging: 'single' }, /merging/],
    ['addresses without access', { workers: 2, servers: ['a:1'] }, /need access to a service.*nonceFile/],
    ['access without addresses', { workers: 2, access }, /access is for servers of their own.*addresses/],
    ['access of clients without', { workers: 2, clients: 2, access }, /access is for servers of their own/],
    ['cores of servers elsewhere', { workers: 2, servers: ['a:1'], access, serverCores: 2 }, /--cores/],
    ['what is no address', { workers: 2, servers: ['a'], access }, /give addresses such as/],
    ['no addresses', { workers: 2, servers: [], access }, /at least one/],
    ['half of an access', { workers: 2, servers: ['a:1'], access: { namespace: 'a' } }, /nonceFile/],
    [
      'a share above 1',
      { workers: 2, consistency: { elastic: 1.5 } },
      /elastic is 1.5; give a share above 0/,
    ],
    ['steps that are none', { workers: 2, consistency: { elastic: 1, everySteps: 0 } }, /everySteps is 0/],
    [
      'negative staleness',
      { workers: 2, consistency: { staleness: -1 } },
      /staleness is -1; give a whole number/,
    ],
    ['a misspelt part', { workers: 2, consistency: { elastic: 1, every: 2 } }, /no option "every"/],
    ['clients of one worker', { workers: 1, clients: 1 }, /workers is 1.*2 or more/],
    [
      'too many learners',
      { learners: 1000 },
      /learners is 1000; give 'auto' or a whole number from 1 to 254/,
    ],
    ['half a replacement', { learners: 2, maxReplacements: 0.5 }, /maxReplacements is 0.5; give a whole/],
    ['no time at all', { learners: 2, stallMs: 0 }, /stallMs is 0; give a number of milliseconds above 0/],
    ['patience of workers', { workers: 2, stallMs: 5 }, /workers of workers and stallMs of learners/],
    ['an unknown way to update', { learners: 2, update: 'free' }, /update is 'free'/],
    [
      'a strategy without servers',
      { workers: 2, servers: 0, strategy: 'servers' },
      /servers is 0 and strategy/,
    ],
    ['no workers', { workers: 0 }, /workers is 0; expected at least 1/],
  ])('%s', (_what, on, message) => {
    expect(() => resolved(on)).toThrow(message);
    expect(() => resolved(on)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }) as Error);
  });
});
