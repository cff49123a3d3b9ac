/** `bench runner`: its arithmetic and its picture, then as typed, with real workers and, where it is installed, with PyTorch. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PeerGroup } from '../../src/bench/allreduce/index.ts';
import type { RunnerBench } from '../../src/bench/index.ts';
import { benchRunner, caseOf, runnerChart } from '../../src/bench/runner/index.ts';
import { trainOnOneDevice } from '../../src/bench/runner/one-device-losses.ts';
import { ourGroup, together } from '../../src/bench/runner/our-groups.ts';
import { writePeerTask } from '../../src/bench/runner/peer-task.ts';
import { madeUpImages, runnerModels } from '../../src/bench/runner/runner-models.ts';
import type { RunnerModel } from '../../src/bench/runner/index.ts';
import { parseTicks } from '../../src/bench/stolen-time.ts';
import { fromWord, toWord } from '../../src/bench/runner/step-parts.ts';
import { torchGroup } from '../../src/bench/torch-group.ts';
import { run } from '../cli/fake-io.ts';
import { component } from '../support/components.ts';

const torch = component('python3-torch');
let cwd = '';
beforeAll(() => {
  cwd = mkdtempSync(join(tmpdir(), 'bench-runner-'));
});
afterAll(() => rmSync(cwd, { recursive: true, force: true }));

const figures = {
  ...{ single: 1000, ceiling: 2000, inStep: 1950, workers: 1900, computeMs: 30, waitMs: 1 },
  ...{ ddp: 1200, ddpSingle: 800 },
};

describe('a case', () => {
  it('has the ratios of its own rates', () => {
    const one = caseOf('CNN', { workers: 2, batch: 32 }, figures);
    expect(one).toMatchObject({
      samplesPerSec: 1900,
      speedup: 1.9,
      efficiency: 0.95,
      efficiencyInStep: 1900 / 1950,
      ddpSamplesPerSec: 1200,
    });
  });

  it('is drawn against independent copies, without the peers that were not measured', () => {
    const drawn = (ddp: number | null): string => {
      const one = caseOf('CNN & more', { workers: 2, batch: 32 }, { ...figures, ddp, ddpSingle: ddp });
      const machine = { processor: 'A', cores: 2, memoryGiB: 1, system: 'linux x64', node: 'v20' };
      const shared = { bench: 'runner', date: '2026-01-02T00:00:00.000Z', machine } as const;
      return runnerChart({ ...shared, configuration: {}, skipped: [], notes: [], cases: [one] });
    };
    expect(drawn(1200)).toContain('0.95 (1,900 samples/s)');
    expect(drawn(1200)).toContain('CNN, PyTorch DDP');
    expect(drawn(null)).not.toMatch(/PyTorch|NaN|null/);
  });
});

it('adds the rates of independent copies', async () => {
  const { command } = await copyAnswering(100);
  const copies = together('two copies', [await copyAnswering(100), await copyAnswering(300)]);
  const { micros, ok } = await copies.turn({ bytes: 32, iterations: 1, burst: 1, algorithm: 'train' });
  // Steps of 100 and of 300 microseconds are 4 in 300, as two copies with 150 each would do.
  expect({ micros, ok }).toEqual({ micros: expect.closeTo(150, 9) as number, ok: true });
  expect(copies.command).toMatchObject({ ranks: 2, env: command.env });
});

function copyAnswering(micros: number): Promise<PeerGroup> {
  const command = { name: 'copy', ranks: 1, env: { of: 'all' } };
  return Promise.resolve({
    command,
    turn: () => Promise.resolve({ micros, ok: true }),
  } as unknown as PeerGroup);
}

it('reads how much time the hypervisor took', () => {
  const text = 'cpu  100 5 20 60 3 0 2 10 7 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n';
  expect(parseTicks(text)).toEqual({ stolen: 10, all: 200 });
  expect(parseTicks('cpu 1 2 3\n')).toBeUndefined();
  expect(parseTicks('')).toBeUndefined();
});

it('carries the parts of a step in one word', () => {
  expect(fromWord(toWord({ computeMs: 12.34567, waitMs: 0 }))).toEqual({ computeMs: 12.3457, waitMs: 0 });
  expect(() => fromWord('direct')).toThrow("a worker said 'direct'");
});

it('measures workers against one device and against independent copies', async () => {
  const { code, stdout, stderr } = await run(
    [
      ...['bench', 'runner', '--models', 'cnn', '--batch', '4', '--rounds', '1', '--turn-ms', '20'],
      ...['--peers', 'none', '--picture', 'p.svg', '--output', 'r.json'],
    ],
    { cwd },
  );
  expect(code, stderr).toBe(0);
  expect(stderr).toContain('round 1 of 1, 4 sides');
  expect(stdout).toMatch(/^model +workers +batch .* efficiency /m);
  expect(stdout).toMatch(/^CNN \(LeNet\) on 1 x 28 x 28 +2 +4 +[\d,]+ /m);
  expect(readFileSync(join(cwd, 'p.svg'), 'utf8')).toContain('Workers by getRunner');
  const { cases, notes } = JSON.parse(readFileSync(join(cwd, 'r.json'), 'utf8')) as RunnerBench;
  expect(notes[0]).toContain('The first 3 losses of 2 workers');
  const [one, ...others] = cases;
  expect(others).toEqual([]);
  expect(one).toMatchObject({ workers: 2, batch: 4, ddpSamplesPerSec: null, ddpSingleSamplesPerSec: null });
  const { samplesPerSec, singleSamplesPerSec, ceilingSamplesPerSec } = one!;
  for (const rate of [samplesPerSec, singleSamplesPerSec, ceilingSamplesPerSec, one!.computeMs])
    expect(rate).toBeGreaterThan(0);
  expect(one!.efficiency).toBeCloseTo(samplesPerSec / ceilingSamplesPerSec, 9);
  expect(one!.waitMs).toBeGreaterThanOrEqual(0);
}, 120_000);

it('has no figures for workers whose losses are not those of one device', async () => {
  const order = { model: 'cnn', batch: 4, totalBatch: 8, workers: 2, losses: [0.5] } as const;
  const command = ourGroup({ ...order, name: 'two workers', env: process.env });
  await expect(PeerGroup.start(command)).rejects.toThrow(/loss of step 1 is [\d.]+ on 2 workers and 0\.5 on/);
}, 60_000);

/** What PyTorch is given for a model, with the right losses or others. */
async function taskFor(model: RunnerModel, losses?: readonly number[]): Promise<string> {
  const [workers, batch] = [2, 4];
  const dataset = madeUpImages(runnerModels[model], workers * batch);
  const sizes = { dataset, workers, batchSize: workers * batch, steps: 2 };
  const oneDevice = await trainOnOneDevice(runnerModels[model], sizes);
  const folder = mkdtempSync(join(cwd, 'task-'));
  const given = { ...oneDevice, losses: losses ?? oneDevice.losses };
  return writePeerTask({ model, dataset, oneDevice: given, batch, workers, folder });
}

describe.skipIf(!torch.present)(`PyTorch DDP (${torch.needs})`, () => {
  it.each(process.env['TRIBUTARY_ACCEPTANCE'] ? (['cnn', 'resnet'] as const) : (['cnn'] as const))(
    'comes to our losses with the %s and takes turns',
    async (model) => {
      const options = { ranks: 2, taskFile: await taskFor(model), folder: cwd, env: process.env };
      const group = await PeerGroup.start(torchGroup('ddp_models_peer.py', options));
      try {
        for (const algorithm of runnerModels[model].torchVariants) {
          const result = await group.turn({ bytes: 4, iterations: 2, burst: 1, algorithm });
          expect(result, algorithm).toMatchObject({ ok: true });
        }
      } finally {
        await group.close();
      }
    },
    60_000,
  );

  it('has no figures with other losses', async () => {
    const options = { ranks: 2, taskFile: await taskFor('cnn', [0.5]), folder: cwd, env: process.env };
    const starting = PeerGroup.start(torchGroup('ddp_models_peer.py', options));
    await expect(starting).rejects.toThrow(/the loss of step 0 is [\d.]+ here and 0\.5 at Tributary/);
  }, 60_000);
});

it.each([
  [['--workers', '1'], 'workers is 1; give a whole number from 2'],
  [['--batch', '1,2'], '--batch has "1,2"; tributary bench runner takes one whole number'],
  [['--models', 'mlp'], '--models has "mlp"; tributary bench runner takes cnn, resnet'],
  [['--peers', 'mpi'], '--peers has "mpi"; tributary bench runner takes ddp or none'],
  [['--steps', '3'], '--steps is an option of tributary bench merge, not of runner'],
])('refuses %j with what to do', async (args, message) => {
  const before = readdirSync(cwd).length;
  const { code, stderr } = await run(['bench', 'runner', ...args], { cwd });
  expect(code).toBe(2);
  expect(stderr).toMatch(/^error \[INVALID_COMMAND\]: /);
  expect(stderr).toContain(message);
  expect(readdirSync(cwd)).toHaveLength(before);
});

it('stops with its caller', async () => {
  const stopped = benchRunner({ env: process.env, withPeers: false, signal: AbortSignal.abort() });
  await expect(stopped).rejects.toMatchObject({ code: 'CANCELLED' });
}, 60_000);

it('has an example in the help', async () => {
  const { stdout } = await run(['bench', '--help']);
  expect(stdout).toContain('tributary bench runner --models');
});
