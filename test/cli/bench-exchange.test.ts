/** `tributary bench exchange`: its options, what it prints and draws; with peers where they are installed. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { ExchangeBench, NeighbourCase } from '../../src/bench/index.ts';
import { component } from '../support/components.ts';
import { run } from './fake-io.ts';

const quick = ['--model', '1003,1,7,70001', '--turn-ms', '5', '--rounds', '5'];
let cwd = '';
beforeAll(() => {
  cwd = mkdtempSync(join(tmpdir(), 'bench-exchange-'));
});
afterAll(() => rmSync(cwd, { recursive: true, force: true }));

function bench(...args: string[]): ReturnType<typeof run> {
  return run(['bench', 'exchange', ...quick, ...args], { cwd, env: process.env as Record<string, string> });
}

describe.each(['shm', 'tcp'])('over %s', (transport) => {
  it('prints a table and draws bars', async () => {
    const { code, stdout, stderr } = await bench(
      '--transport',
      transport,
      '--peers',
      'none',
      '--picture',
      'p.svg',
    );
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/model +chunk +aggregation +tenants +exchanges\/s +GB\/s +of memory\n/);
    expect(stdout).toMatch(/4 tensors +32 KB +tall +1 /);
    expect(stdout).toMatch(/GB\/s before.*GB\/s after.*\(workers \+ 4\)/);
    expect(readFileSync(join(cwd, 'p.svg'), 'utf8')).toContain('Exchanges of 4 tensors per second');
  });
});

const openMpi = component('openmpi-bin');
const torch = component('python3-torch');
describe.skipIf(!openMpi.present || !torch.present)(`with peers (${openMpi.needs}, ${torch.needs})`, () => {
  it('gives ratios to both as JSON', async () => {
    const { code, stdout, stderr } = await bench('--json', '--output', 'result.json');
    expect(code, stderr).toBe(0);
    const result = JSON.parse(stdout) as ExchangeBench;
    expect(JSON.parse(readFileSync(join(cwd, 'result.json'), 'utf8'))).toEqual(result);
    const [one] = result.cases;
    expect(Object.keys(one!)).toEqual([
      ...['model', 'workers', 'servers', 'clients', 'tenants', 'transport', 'aggregation', 'chunkBytes'],
      ...['exchangesPerSec', 'bytesPerSec', 'memoryShare', 'glooExchangesPerSec', 'ratioGloo'],
      ...['openmpiExchangesPerSec', 'ratioOpenmpi'],
    ]);
    expect(one!.ratioGloo).toBeCloseTo(one!.exchangesPerSec / one!.glooExchangesPerSec!, 6);
    expect(one!.ratioOpenmpi).toBeCloseTo(one!.exchangesPerSec / one!.openmpiExchangesPerSec!, 6);
    expect(result.skipped).toEqual([]);
    expect(result.configuration['nonFinite']).toContain('not searched for NaN');
  });
});

it('prints and draws a sweep', async () => {
  const { code, stdout, stderr } = await bench('--sweep', 'tenants', '--picture', 'tenants.svg');
  expect(code, stderr).toBe(0);
  expect(stdout.match(/^4 tensors/gm)).toHaveLength(4);
  expect(readFileSync(join(cwd, 'tenants.svg'), 'utf8')).toContain('all tenants together');
});

it('prints and draws rows', async () => {
  const size = ['--table-rows', '1000', '--row-length', '8', '--rows', '20'];
  const { code, stdout, stderr } = await bench(...size, '--picture', 'rows.svg');
  expect(code, stderr).toBe(0);
  expect(stdout).toMatch(/1,000 x 8 +20 /);
  expect(readFileSync(join(cwd, 'rows.svg'), 'utf8')).toContain(
    'Exchanges of 20 rows of a table against dense exchanges',
  );
});

describe('a wrong command line', () => {
  it.each([
    [['--transport', 'mpi'], 'takes shm or tcp'],
    [['--peers', 'horovod'], 'gloo, openmpi or none'],
    [['--ranks', '2'], 'an option of tributary bench allreduce, not of exchange'],
    [['--placement', 'XYZ'], 'CC, CS, NCC, NCS'],
    [['--clients', '3'], '3 clients of 2 workers'],
  ])('%j is refused', async (args, fault) => {
    const { code, stderr } = await bench(...args);
    expect(code).toBe(2);
    expect(stderr).toContain(fault);
  });

  it('options of exchange are none of compute', async () => {
    const { code, stderr } = await run(['bench', 'compute', '--workers', '2']);
    expect(code).toBe(2);
    expect(stderr).toContain('--workers is an option of tributary bench exchange, not of compute');
  });
});

it.each(['--output', '--picture'])(
  'refuses a file of %s that it could not write before it measures',
  async (option) => {
    const { code, stdout, stderr } = await bench(option, '.');
    expect([code, stdout]).toEqual([1, '']);
    expect(stderr).toContain(`it is a folder. Give another file by ${option}.`);
    expect(stderr).not.toContain('round');
  },
);

it('prints what a hostile neighbour costs', async () => {
  const { code, stdout, stderr } = await bench('--neighbour', '--json');
  expect(code, stderr).toBe(0);
  const { cases, sweep } = JSON.parse(stdout) as ExchangeBench;
  expect(sweep).toBe('neighbour');
  const [one] = cases as NeighbourCase[];
  expect(one!.ratioAlone).toBeCloseTo(one!.exchangesPerSec / one!.aloneExchangesPerSec, 6);
  const both = await bench('--neighbour', '--sweep', 'tenants');
  expect(both.stderr).toContain('does not go together');
});
