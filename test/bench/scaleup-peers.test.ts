/** The PyTorch peers of `bench scaleup` as real processes: they train in lock step and end with equal weights; or are left out by name. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PeerGroup } from '../../src/bench/allreduce/index.ts';
import type { GroupCommand } from '../../src/bench/allreduce/index.ts';
import { benchScaleup } from '../../src/bench/scaleup/index.ts';
import { DDP_VARIANTS, ddpGroup } from '../../src/bench/scaleup/ddp-group.ts';
import { MPI_VARIANTS, mpiGroup } from '../../src/bench/scaleup/mpi-group.ts';
import { readSamples } from '../../src/bench/scaleup/text-task.ts';
import { writeTorchTask } from '../../src/bench/scaleup/torch-task.ts';
import { component } from '../support/components.ts';
import { byForm } from '../support/long-form.ts';

const env = process.env;
const torch = component('python3-torch');
const openMpi = component('openmpi-bin');
const mpi4py = component('python3-mpi4py');
let folder = '';
let taskFile = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'scaleup-peers-'));
  const file = join(folder, 'texts.csv');
  const line = (_: unknown, i: number): string => `word${i % 7} word${i % 5} word${i % 3},label${i % 3}`;
  await writeFile(file, `${Array.from({ length: 60 }, line).join('\n')}\n`);
  taskFile = writeTorchTask(readSamples(file), folder);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Batches of different sizes, also one that the samples do not divide by, so that an epoch ends within a turn. */
async function expectTurns(command: GroupCommand, variants: readonly string[]): Promise<void> {
  const group = await PeerGroup.start(command);
  try {
    for (const algorithm of variants) {
      for (const bytes of [1, 25]) {
        const result = await group.turn({ bytes, iterations: 3, burst: 1, algorithm });
        expect(result, `batch ${bytes} by ${algorithm}`).toMatchObject({ ok: true });
        expect(result.micros).toBeGreaterThan(0);
      }
    }
    const unknown = group.turn({ bytes: 1, iterations: 1, burst: 1, algorithm: 'by-post' });
    await expect(unknown).rejects.toThrow(variants.join('|'));
  } finally {
    await group.close();
  }
}

describe.skipIf(!torch.present)(`PyTorch (${torch.needs})`, () => {
  it.each([1, 2])(
    'by DDP trains with %i process(es)',
    (ranks) => expectTurns(ddpGroup({ ranks, taskFile, folder, env }), DDP_VARIANTS),
    60_000,
  );

  describe.skipIf(!openMpi.present || !mpi4py.present)(`with MPI (${openMpi.needs}, ${mpi4py.needs})`, () => {
    it.each(byForm([1, 2], [2]))(
      'by hand trains with %i process(es)',
      (ranks) => expectTurns(mpiGroup({ ranks, taskFile, folder, env }), MPI_VARIANTS),
      60_000,
    );
  });
});

describe('a peer that is not there', () => {
  it('is left out of the figures, and named with what to install', async () => {
    const result = await benchScaleup({
      ...{ data: join(folder, 'texts.csv'), learners: [1], batches: [4], modes: ['direct lock-free'] },
      // Without a path there is no mpirun.
      ...{ peers: ['mpi'], rounds: 1, turnMs: 100, warmupMs: 1, env: { ...env, PATH: folder } },
    });
    expect(result.cases).toMatchObject([{ mpiSamplesPerSec: null }]);
    const reason = result.skipped.find((text) => text.startsWith('PyTorch with MPI by hand (1 process): '));
    expect(reason).toMatch(/mpirun cannot be started.*apt-get install .*python3-mpi4py openmpi-bin/);
  }, 60_000);
});
