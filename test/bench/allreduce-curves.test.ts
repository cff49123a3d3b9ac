/** The picture of `bench allreduce`: a curve for each side that is there, ratios below. */
import { expect, it } from 'vitest';
import { curves, formatBytes } from '../../src/bench/allreduce/index.ts';
import type { AllReduceBench, AllReduceCase } from '../../src/bench/allreduce/index.ts';

function entry(
  bytes: number,
  oursUs: number,
  openmpiUs: number | null,
  glooUs: number | null,
): AllReduceCase {
  return {
    transport: 'shm',
    ranks: 2,
    bytes,
    algorithm: 'auto',
    oursUs,
    openmpiUs,
    glooUs,
    ratioOpenmpi: openmpiUs === null ? null : openmpiUs / oursUs,
    ratioGloo: glooUs === null ? null : glooUs / oursUs,
    algbwGBs: bytes / oursUs / 1e3,
    busbwGBs: bytes / oursUs / 1e3,
    openmpiVariant: null,
  };
}

function bench(cases: readonly AllReduceCase[]): AllReduceBench {
  return {
    bench: 'allreduce',
    date: '2026-01-02T00:00:00.000Z',
    machine: { processor: 'A & B <fast>', cores: 2, memoryGiB: 1, system: 'linux x64', node: 'v20' },
    transport: 'shm',
    ranks: 2,
    configuration: {},
    skipped: [],
    notes: [],
    cases,
  };
}

const points = (svg: string): number[][][] =>
  [...svg.matchAll(/<polyline points="([^"]*)"/g)].map(([, text]) =>
    text!.split(' ').map((pair) => pair.split(',').map(Number)),
  );

it('draws time over bytes on logarithmic axes, with the ratios', () => {
  const svg = curves(bench([entry(1024, 1, 10, 100), entry(4096, 10, 10, 1000), entry(16384, 100, 50, 1e4)]));
  const [gloo, openMpi, ours] = points(svg);
  expect(ours!.map(([x]) => x)).toEqual(gloo!.map(([x]) => x));
  const [a, b, c] = ours!;
  expect(b![0]! - a![0]!).toBeCloseTo(c![0]! - b![0]!, 0);
  expect(a![1]! - b![1]!).toBeCloseTo(b![1]! - c![1]!, 0);
  expect(openMpi![1]).toEqual(ours![1]);
  for (const text of ['>10×<', '>1.0×<', '>0.5×<', '>100×<', '>1 KB<', '>16 KB<', '>10 ms<'])
    expect(svg).toContain(text);
  expect(svg).toContain('A &amp; B &lt;fast&gt;');
});

it('leaves out what is absent, and draws the fastest algorithm of a size', () => {
  const svg = curves(bench([entry(1024, 7, 10, null), entry(1024, 2, 10, null), entry(2048, 3, null, null)]));
  expect(svg).not.toContain('gloo');
  const [openMpi, ours] = points(svg);
  expect(openMpi).toHaveLength(1);
  expect(ours).toHaveLength(2);
  expect(svg).toContain('>5.0×<');
  expect(svg).not.toContain('NaN');
});

it('names sizes as people do', () => {
  expect([4, 1024, 1536, 65536, 2 ** 20, 128 * 2 ** 20].map(formatBytes)).toEqual([
    '4 B',
    '1 KB',
    '1536 B',
    '64 KB',
    '1 MB',
    '128 MB',
  ]);
});
