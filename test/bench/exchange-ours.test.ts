/**
 * `bench exchange` with small models, as real processes: every placement and transport exchanges rightly, which each turn
 * checks bit by bit, and the sweeps vary what they say. No rate is asserted.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { benchExchange } from '../../src/bench/exchange/index.ts';
import type { ExchangeBench, ExchangeBenchOptions } from '../../src/bench/exchange/index.ts';
import { clientOf } from '../../src/kvstore/index.ts';

/** Lengths that no vector instruction divides; one tensor has several chunks. */
const model = '1003,1,7,70001';
const common = { model, env: process.env, peers: [], rounds: 5, turnMs: 5 } as const;

/** What the runs of this file leave behind would be here. */
const folder = mkdtempSync(join(tmpdir(), 'exchange-ours-'));
beforeAll(() => void (process.env['TMPDIR'] = folder));
afterAll(() => {
  const left = readdirSync(folder);
  rmSync(folder, { recursive: true, force: true });
  expect(left.filter((name) => name.startsWith('tributary'))).toEqual([]);
});

const anyNumber = expect.any(Number) as number;
const isPositive = (value: unknown): boolean => typeof value === 'number' && value > 0;

describe('our side', () => {
  it.each<[string, Partial<ExchangeBenchOptions>, Partial<ExchangeBench>]>([
    ['by shared memory', {}, { placement: 'NCC', servers: 1, transport: 'shm' }],
    ['in the process of a worker', { placement: 'CC', aggregation: 'wide' }, { placement: 'CC', servers: 1 }],
    ['on three servers, two tenants', { servers: 3, tenants: 2, cores: 1 }, { placement: 'NCS', servers: 3 }],
    [
      'of three workers, sharded',
      { workers: 3, placement: 'CS', chunkBytes: 4096 },
      { servers: 3, workers: 3 },
    ],
    [
      'of three workers in two clients by TCP, two tenants',
      { workers: 3, clients: 2, tenants: 2, transport: 'tcp' },
      { placement: 'CS', servers: 3 },
    ],
    ['of a client that reduces first', { clients: 1, unfused: true }, { placement: 'NCC' }],
  ])('exchanges %s', async (_, options, expected) => {
    const result = await benchExchange({ ...common, ...options });
    expect(result).toMatchObject({ bench: 'exchange', model: '4 tensors', sweep: null, ...expected });
    const { workers = 2, clients = workers, tenants = 1 } = options;
    const { aggregation = 'tall', chunkBytes = 32768 } = options;
    expect(result.cases).toEqual([
      {
        ...{ model: '4 tensors', workers, servers: result.servers, clients, tenants },
        ...{ transport: result.transport, aggregation, chunkBytes },
        ...{ exchangesPerSec: anyNumber, bytesPerSec: anyNumber, memoryShare: anyNumber },
        ...{ glooExchangesPerSec: null, ratioGloo: null, openmpiExchangesPerSec: null, ratioOpenmpi: null },
      },
    ]);
    const [{ exchangesPerSec, bytesPerSec }] = result.cases as [ExchangeBench['cases'][number]];
    expect(exchangesPerSec).toBeGreaterThan(0);
    expect(bytesPerSec / exchangesPerSec).toBeCloseTo((workers + 4) * 4 * 71_012, 0);
    // What a nonce proves must not be seen in a list of processes.
    expect(JSON.stringify(result.configuration)).not.toMatch(/[0-9a-f]{64}/);
    expect(result.configuration['bytes']).toContain('(workers + 4)');
  });

  it('lets workers of clients face servers in shared memory directly, and tells so', async () => {
    const { cases, notes, configuration } = await benchExchange({ ...common, clients: 1 });
    expect(cases).toMatchObject([{ clients: 1, workers: 2 }]);
    expect(configuration['clients']).toMatch(/1 runs of workers, fused/);
    expect(notes.join(' ')).toMatch(/fused.*--unfused/);
  });

  it('sweeps chunk lengths, tall and wide', async () => {
    const { cases, sweep } = await benchExchange({ ...common, sweep: 'chunks' });
    expect(sweep).toBe('chunks');
    const points = cases.map(({ aggregation, chunkBytes }) => `${aggregation} ${chunkBytes / 1024}`);
    const lengths = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
    expect(points).toEqual(['tall', 'wide'].flatMap((kind) => lengths.map((length) => `${kind} ${length}`)));
    expect(cases.every(({ exchangesPerSec }) => isPositive(exchangesPerSec))).toBe(true);
  });

  it('sweeps numbers of tenants', async () => {
    const { cases } = await benchExchange({ ...common, sweep: 'tenants' });
    expect(cases.map(({ tenants }) => tenants)).toEqual([1, 2, 4, 8]);
  });

  it('compares key by core with worker by core', async () => {
    const { cases } = await benchExchange({ ...common, workers: 3, sweep: 'assignment', chunkBytes: 4096 });
    expect(cases).toMatchObject([{ assignment: 'key-by-core' }, { assignment: 'worker-by-core' }]);
  });

  it.each<[string, Partial<ExchangeBenchOptions>]>([
    ['by shm', { transport: 'shm' }],
    ['by tcp', { transport: 'tcp' }],
    ['by a client of two workers', { clients: 1, unfused: true }],
  ])('exchanges rows of a table %s', async (_, options) => {
    const sizes = { rows: 50, tableRows: 1003, rowLength: 5 };
    const { cases, memory } = await benchExchange({ ...common, ...sizes, ...options });
    expect(memory).toBeNull();
    expect(cases).toMatchObject([{ ...sizes, model: 'table', memoryShare: null, ratioDense: anyNumber }]);
  });

  it.each([
    [
      4,
      2,
      [
        [0, 1],
        [2, 3],
      ],
    ],
    [5, 3, [[0], [1, 2], [3, 4]]],
    [3, 1, [[0, 1, 2]]],
    [2, 2, [[0], [1]]],
  ])('%i workers in %i clients are runs of ranks', (workers, clients, expected) => {
    const all = Array.from({ length: workers }, (_, worker) => clientOf(worker, workers, clients));
    for (const [number, ranks] of expected.entries())
      for (const rank of ranks) expect(all[rank]).toEqual({ number, ranks });
  });
});

describe('a wrong option', () => {
  it.each<[Partial<ExchangeBenchOptions>, string, RegExp]>([
    [{ clients: 3 }, 'INVALID_ARGUMENT', /3 clients of 2 workers cannot be; give 1 to 2/],
    [{ clients: 0 }, 'INVALID_ARGUMENT', /0 clients of 2 workers/],
    [{ clients: 1, sweep: 'assignment' }, 'INVALID_ARGUMENT', /has no clients/],
    [
      { model: 'vgg19', workers: 6, clients: 1, unfused: true },
      'OUT_OF_SHARED_MEMORY',
      /first worker of a client/,
    ],
    [{ workers: 0 }, 'INVALID_ARGUMENT', /workers is 0/],
    [{ model: 'resnet19' }, 'INVALID_ARGUMENT', /no model 'resnet19'.*resnet18/],
    [{ placement: 'CS', servers: 3 }, 'INVALID_ARGUMENT', /CS of 2 workers has 2 servers, not 3/],
    [{ placement: 'NCC', servers: 2 }, 'INVALID_ARGUMENT', /NCS/],
    [{ chunkBytes: 100 }, 'INVALID_ARGUMENT', /multiple of 64/],
    [{ tableRows: 100 }, 'INVALID_ARGUMENT', /give rows/],
    [{ rows: 60, tableRows: 100 }, 'INVALID_ARGUMENT', /at most 50 rows/],
    [{ rows: 6, sweep: 'chunks' }, 'INVALID_ARGUMENT', /leave one of them out/],
    [{ model: 'vgg19', tenants: 8 }, 'OUT_OF_SHARED_MEMORY', /fewer tenants/],
  ])('%o is refused', async (options, code, message) => {
    await expect(benchExchange({ ...common, ...options })).rejects.toMatchObject({
      code,
      message: expect.stringMatching(message) as string,
    });
  });

  it('a signal ends the run', async () => {
    const controller = new AbortController();
    const run = benchExchange({
      ...{ ...common, signal: controller.signal },
      onProgress: (message) => {
        if (message.startsWith('warming up')) controller.abort();
      },
    });
    await expect(run).rejects.toThrow();
  });
});
