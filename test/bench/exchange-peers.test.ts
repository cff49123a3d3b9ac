/** The peers of `bench exchange` as real processes: they exchange rightly, and end with the same weights, bit by bit. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PeerGroup } from '../../src/bench/allreduce/index.ts';
import type { GroupCommand } from '../../src/bench/allreduce/index.ts';
import {
  checksum,
  CHECKED_EXCHANGES,
  elementsOf,
  expectedWeights,
  formatChecksum,
  GLOO_VARIANTS,
  glooExchangeGroup,
  OPEN_MPI_VARIANTS,
  openMpiExchangeGroup,
} from '../../src/bench/exchange/index.ts';
import { component } from '../support/components.ts';

const env = process.env;
const openMpi = component('openmpi-bin');
const torch = component('python3-torch');
/** Lengths that no vector instruction divides, and a tensor that MPI cuts into several messages. */
const model = [1003, 1, 7, 70_001].map((length, i) => ({ key: `tensor${i}`, length }));
const bytes = 4 * elementsOf(model);
let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'exchange-peers-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

function expectedChecksum(ranks: number, exchanges: number): string {
  const pattern = expectedWeights(ranks, exchanges);
  const weights = Float32Array.from({ length: bytes / 4 }, (_, i) => pattern[i % pattern.length]!);
  return formatChecksum(checksum(weights));
}

async function expectTurns(command: GroupCommand, variants: readonly string[]): Promise<void> {
  const group = await PeerGroup.start(command);
  try {
    for (const algorithm of variants) {
      // Fewer exchanges than are checked, as many, and more in several bursts.
      for (const iterations of [1, CHECKED_EXCHANGES, 10]) {
        const result = await group.turn({ bytes, iterations, burst: 3, algorithm });
        const exchanges = Math.min(iterations, CHECKED_EXCHANGES);
        expect(result, `${iterations} by ${algorithm}`).toMatchObject({
          ok: true,
          algorithm: expectedChecksum(command.ranks, exchanges),
        });
        expect(result.micros).toBeGreaterThan(0);
      }
    }
    const wrong = group.turn({ bytes: bytes + 4, iterations: 1, burst: 1, algorithm: variants[0]! });
    await expect(wrong).rejects.toThrow(`${bytes}`);
  } finally {
    await group.close();
  }
}

describe.skipIf(!openMpi.present)(`Open MPI with our update (${openMpi.needs})`, () => {
  it.each([
    [2, 'shm'],
    [3, 'tcp'],
  ] as const)('exchanges among %i ranks over %s, in place and not', async (ranks, transport) => {
    const command = openMpiExchangeGroup({ model, ranks, transport, folder, env });
    expect(command).toMatchObject({ name: 'Open MPI', settings: { MALLOC_TOP_PAD_: '268435456' } });
    await expectTurns(command, OPEN_MPI_VARIANTS);
  });
});

describe.skipIf(!torch.present)(`gloo with torch's update (${torch.needs})`, () => {
  it.each([2, 3])('exchanges among %i ranks', async (ranks) => {
    await expectTurns(glooExchangeGroup({ model, ranks, transport: 'tcp', folder, env }), GLOO_VARIANTS);
  });

  it('says what to install where its Python is missing', async () => {
    const pythonPath = join(folder, 'no-python');
    const command = glooExchangeGroup({ model, ranks: 2, transport: 'tcp', folder, env, pythonPath });
    await expect(PeerGroup.start(command)).rejects.toMatchObject({
      code: 'MISSING_COMPONENT',
      message: expect.stringContaining('apt-get install python3-torch') as string,
    });
  });
});

it('name a model shortly on the command line of a rank', () => {
  const address = { host: 'h', port: 1, token: 't' };
  const common = { ranks: 2, transport: 'shm', folder: 'f', env: {} } as const;
  const [mpirun] = openMpiExchangeGroup({ ...common, model: 'resnet18' }).processes(address);
  expect(mpirun!.args.at(-1)).toBe('resnet18');
  expect(mpirun!.args.join(' ')).toContain('--mca btl vader,self');
  const ranks = glooExchangeGroup({ ...common, model: 'resnet18' }).processes(address);
  expect(ranks.map(({ args }) => args.at(-1))).toEqual(['11689512', '11689512']);
  // The ranks meet at one file, and those of another group elsewhere.
  expect(ranks[0]!.args.at(-2)).toBe(ranks[1]!.args.at(-2));
  const others = glooExchangeGroup({ ...common, model: 'resnet18' }).processes(address);
  expect(others[0]!.args.at(-2)).not.toBe(ranks[0]!.args.at(-2));
});
