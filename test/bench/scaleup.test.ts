/** The arithmetic of `bench scaleup`, its picture, and what it refuses. Nothing is measured here. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  benchScaleup,
  bytesPerStep,
  caseOf,
  SCALEUP_MODES,
  scaleupChart,
  stepSizeOf,
} from '../../src/bench/scaleup/index.ts';
import type { MeasuredCase, ScaleupBench } from '../../src/bench/scaleup/index.ts';
import { meanTouchedRows, readSamples } from '../../src/bench/scaleup/text-task.ts';

const measured: MeasuredCase = {
  ...{ batch: 8, learners: 2, mode: 'direct lock-free', samplesPerStep: 8, bytesPerStep: 4000 },
  ...{ samplesPerSec: 1800, singleSamplesPerSec: 1000, ceilingSamplesPerSec: 2000, meanStaleness: 1 },
  ...{ ddpSamplesPerSec: 600, mpiSamplesPerSec: 1200, torchSamplesPerSec: 800 },
};

describe('a case', () => {
  it('has the ratios of its own rates', () => {
    const { speedup, efficiency, bytesPerSec, ...rest } = caseOf(measured);
    expect(speedup).toBeCloseTo(1.8, 12);
    expect(efficiency).toBeCloseTo(0.9, 12);
    // 225 steps a second.
    expect(bytesPerSec).toBeCloseTo(900_000, 6);
    expect(rest).not.toHaveProperty('samplesPerStep');
  });

  it('counts bytes by hand: each weight read to compute, and all that an update reads and writes', () => {
    const size = { denseElements: 10, rows: 3, tableRows: 100, rowLength: 4, slots: 2 };
    // 22 floats: read, gradient read, parameter in and out, two slots in and out.
    expect(bytesPerStep(size, 'direct lock-free', 2)).toBe(22 * 8 * 4);
    expect(bytesPerStep(size, 'server lock-free', 2)).toBe(22 * 8 * 4);
    expect(bytesPerStep({ ...size, slots: 0 }, 'direct lock-free', 2)).toBe(22 * 4 * 4);
    // A copy of 410 floats, read and written.
    expect(bytesPerStep(size, 'direct locked', 2)).toBe(22 * 8 * 4 + 410 * 2 * 4);
    expect(bytesPerStep(size, 'synchronous', 1)).toBe(22 * 8 * 4);
    expect(bytesPerStep(size, 'synchronous', 2)).toBe(22 * 8 * 4 + 8 * (10 + 2 * 12) + 4 * 12 * 7);
  });
});

describe('the texts', () => {
  let folder = '';
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'scaleup-'));
    writeFileSync(join(folder, 'texts.csv'), 'a b a,one\nb c b,two\na b c,one\n');
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  it('give the rows that a mean batch touches, padding included', () => {
    const samples = readSamples(join(folder, 'texts.csv'));
    // a, b and c occur twice and more; padding and the unknown word have ids too.
    expect(samples.facts).toMatchObject({ vocabulary: 5, classes: 2 });
    expect(meanTouchedRows(samples, 1)).toBeCloseTo((3 + 3 + 4) / 3, 12);
    expect(meanTouchedRows(samples, 3)).toBe(4);
  });

  it('give the sizes of the model', () => {
    const samples = readSamples(join(folder, 'texts.csv'));
    const filters = 100 * (3 + 4 + 5) * 128 + 3 * 100;
    expect(stepSizeOf(samples, 3)).toEqual({
      denseElements: filters + 300 * 2 + 2,
      ...{ rows: 4, tableRows: 5, rowLength: 128, slots: 2 },
    });
  });

  it.each([
    [{ learners: [0] }, 'learners is 0'],
    [{ learners: [] }, 'learners is empty'],
    [{ learners: [2, 2] }, 'different whole numbers'],
    [{ batches: [1, 1.5] }, 'batches is 1, 1.5'],
    [{ rounds: 0 }, 'rounds is 0'],
    [{ turnMs: -1 }, 'turnMs is -1'],
    [{ modes: ['by post' as never] }, "no update mode 'by post'; give some of 'direct lock-free'"],
  ])('are not touched with wrong options: %j', async (options, message) => {
    const data = join(folder, 'texts.csv');
    await expect(benchScaleup({ data, env: {}, peers: [], ...options })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining(message) as string,
    });
  });

  it('are named if they are not there', async () => {
    const data = join(folder, 'none.csv');
    await expect(benchScaleup({ data, env: {}, peers: [] })).rejects.toThrow('none.csv');
  });
});

describe('the picture', () => {
  const result = (cases: readonly MeasuredCase[]): ScaleupBench => ({
    ...{ bench: 'scaleup', date: '2026-01-02T00:00:00.000Z', data: 'a<b.csv', configuration: {} },
    machine: { processor: 'A & B', cores: 2, memoryGiB: 1, system: 'linux x64', node: 'v20' },
    ...{ skipped: [], notes: [], cases: cases.map(caseOf) },
  });
  const heights = (svg: string): number[] =>
    [...svg.matchAll(/<rect x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)" rx="2" fill="#\w+"\/>/g)]
      .map(([, height]) => Number(height))
      .filter((height) => height !== 12);

  it('has a bar for each mode, the peers and the ceiling, as high as their speed-ups', () => {
    const svg = scaleupChart(
      result([
        { ...measured, learners: 1 },
        measured,
        { ...measured, mode: 'server locked', samplesPerSec: 500 },
        { ...measured, batch: 32 },
      ]),
    );
    const [direct, server, ddp, mpi, ceiling, ...second] = heights(svg);
    expect(second).toHaveLength(4);
    for (const [height, speedup] of [
      [server, 0.5],
      [ddp, 0.75],
      [mpi, 1.5],
      [ceiling, 2],
    ] as const) {
      expect(height! / direct!).toBeCloseTo(speedup / 1.8, 2);
    }
    for (const text of [
      '>1.80<',
      '>0.50<',
      '>0.75<',
      '>1.50<',
      'PyTorch, MPI by hand',
      '>2.00<',
      '>8<',
      '>32<',
      'Tributary, server locked',
    ])
      expect(svg).toContain(text);
    expect(svg).toContain('Speed-up of 2 learners');
    expect(svg).toContain('a&lt;b.csv');
    expect(svg).toContain('A &amp; B');
  });

  it('leaves out a peer that was not measured, and stays a picture without cases', () => {
    const unmeasured = { ddpSamplesPerSec: null, mpiSamplesPerSec: null, torchSamplesPerSec: null };
    const alone = scaleupChart(result([{ ...measured, ...unmeasured }]));
    expect(heights(alone)).toHaveLength(2);
    expect(heights(scaleupChart(result([{ ...measured, ddpSamplesPerSec: null }])))).toHaveLength(3);
    for (const svg of [alone, scaleupChart(result([]))]) {
      expect(svg).toMatch(/^<svg[^]*<\/svg>\n$/);
      expect(svg).not.toMatch(/NaN|Infinity|undefined|DDP|MPI/);
    }
  });

  it('has colours for all modes', () => {
    const svg = scaleupChart(result(SCALEUP_MODES.map((mode) => ({ ...measured, mode }))));
    expect(new Set(svg.match(/fill="#\w{6}"\/>/g)).size).toBeGreaterThanOrEqual(SCALEUP_MODES.length + 3);
  });
});
