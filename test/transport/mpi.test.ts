/** The MPI transport in real processes under mpirun: the conformance suite, Open MPI's own collectives, and leaving. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createMpiTransport } from '../../src/transport/mpi/index.ts';
import { component } from '../support/components.ts';
import { scenarios } from './conformance.ts';
import { programOf } from '../support/test-program.ts';

const RANK_PROGRAM = fileURLToPath(new URL('./mpi-rank.ts', import.meta.url));
const DEADLINE_MS = 55_000;

interface Line {
  readonly rank: number;
  readonly scenario: string;
  readonly error?: string;
}

/** Runs a suite with so many ranks; the transport class of Open MPI is 'vader' (shared memory) or 'tcp'. */
async function runRanks(suite: string, ranks: number, transportClass: string): Promise<readonly Line[]> {
  const seed = Math.floor(Math.random() * 2 ** 31);
  const settings = ['--mca', 'pml', 'ob1', '--mca', 'btl', `${transportClass},self`];
  const child = spawn(
    'mpirun',
    [
      ...['--oversubscribe', '--bind-to', 'none', ...settings, '-n', `${ranks}`],
      ...[process.execPath, ...programOf(RANK_PROGRAM), suite, `${seed}`],
    ],
    {
      env: {
        ...process.env,
        OMPI_ALLOW_RUN_AS_ROOT: '1',
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1',
        // Jobs that end early leave their folder behind.
        OMPI_MCA_orte_tmpdir_base: folder,
      },
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  );
  // mpirun passes the signal on to its ranks; killed outright, it could not.
  const timer = setTimeout(() => child.kill('SIGTERM'), DEADLINE_MS);
  const [output, errors] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'close')]);
  clearTimeout(timer);
  const lines = output
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Line);
  const failure = lines.find((line) => line.error !== undefined);
  if (failure)
    throw new Error(
      `rank ${failure.rank} of ${ranks}, seed ${seed}, '${failure.scenario}': ${failure.error}`,
    );
  if (lines.length === 0) throw new Error(`mpirun gave no result: ${errors}`);
  return lines;
}

let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'mpi-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const openMpi = component('openmpi-bin');

describe.skipIf(!openMpi.present)(`the MPI transport (${openMpi.needs})`, () => {
  it.each([
    [2, 'vader'],
    [3, 'vader'],
    [5, 'vader'],
    [2, 'tcp'],
    [3, 'tcp'],
  ])('keeps the contract between %i ranks over %s', async (ranks, transportClass) => {
    const lines = await runRanks('contract', ranks, transportClass);
    const names = scenarios.filter(({ sizes }) => sizes.includes(ranks)).map(({ name }) => name);
    for (let rank = 0; rank < ranks; rank++) {
      const seen = lines.filter((line) => line.rank === rank).map(({ scenario }) => scenario);
      expect(seen).toEqual([...names, 'closed']);
    }
  });

  it.each([2, 3])('reduces by MPI_Allreduce, and takes messages back, between %i ranks', async (ranks) => {
    const lines = await runRanks('native', ranks, 'vader');
    expect(lines.filter(({ scenario }) => scenario === 'closed')).toHaveLength(ranks);
  });

  it.each([2, 3])('lets a rank leave that is done, between %i ranks', async (ranks) => {
    const lines = await runRanks('closing', ranks, 'vader');
    expect(lines.filter(({ scenario }) => scenario === 'closed')).toHaveLength(ranks);
  });

  it('names a rank that gave up', async () => {
    const lines = await runRanks('leaving', 2, 'vader');
    expect(lines).toEqual([{ rank: 0, scenario: 'names a rank that gave up, with its reason' }]);
  });
});

it('says what to install where the library is missing', () => {
  expect(() => createMpiTransport({ libraryPath: 'libno-such-mpi.so.1' })).toThrow(
    expect.objectContaining({
      code: 'MISSING_COMPONENT',
      message: expect.stringContaining('apt-get install openmpi-bin libopenmpi3') as string,
    }) as Error,
  );
});
