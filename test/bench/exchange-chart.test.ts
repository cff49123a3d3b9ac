/** The pictures of `bench exchange`: lines by aggregation over the length of a chunk, and the tenants' sum. */
import { expect, it } from 'vitest';
import { chunkSweepChart, tenantsChart } from '../../src/bench/exchange/index.ts';
import type { ChartSubject, ChunkPoint } from '../../src/bench/exchange/index.ts';

const subject: ChartSubject = {
  model: 'resnet18',
  workers: 2,
  transport: 'shm',
  machine: { processor: 'A & B <fast>', cores: 2, memoryGiB: 1, system: 'linux x64', node: 'v20' },
  date: '2026-01-02T00:00:00.000Z',
};
const point = (
  chunkBytes: number,
  exchangesPerSec: number,
  aggregation: ChunkPoint['aggregation'] = 'tall',
): ChunkPoint => ({ chunkBytes, exchangesPerSec, aggregation });

const lines = (svg: string): number[][][] =>
  [...svg.matchAll(/<polyline points="([^"]*)"/g)].map(([, text]) =>
    text!.split(' ').map((pair) => pair.split(',').map(Number)),
  );

it('draws tall and wide over the logarithm of the bytes, from zero, in order', () => {
  const svg = chunkSweepChart(
    [
      point(65536, 120),
      point(4096, 40),
      point(16384, 80),
      ...[4096, 16384, 65536].map((bytes) => point(bytes, 40, 'wide')),
    ],
    subject,
  );
  const [wide, tall] = lines(svg);
  expect(tall!.map(([x]) => x)).toEqual(wide!.map(([x]) => x));
  const [a, b, c] = tall!;
  expect(b![0]! - a![0]!).toBeCloseTo(c![0]! - b![0]!, 0);
  // Twice and three times as high above the axis, which the label 0 marks.
  const zero = Number(/y="([\d.]+)" text-anchor="end" fill="#666">0</.exec(svg)![1]) - 4;
  expect(zero - b![1]!).toBeCloseTo(2 * (zero - a![1]!), 0);
  expect(zero - c![1]!).toBeCloseTo(3 * (zero - a![1]!), 0);
  for (const text of ['>1.00×<', '>2.00×<', '>3.00×<', '>4 KB<', '>64 KB<', '>tall<', '>wide<', 'resnet18'])
    expect(svg).toContain(text);
  expect(svg).toContain('A &amp; B &lt;fast&gt;');
});

it('leaves out an aggregation that was not measured', () => {
  const svg = chunkSweepChart([point(32768, 50)], subject);
  expect(lines(svg)).toHaveLength(1);
  expect(svg).not.toMatch(/>wide<|tall \/ wide|NaN|Infinity/);
});

it('draws the sum of the tenants with its share of one alone', () => {
  const svg = tenantsChart(
    [1, 2, 4, 8].map((tenants) => ({ tenants, exchangesPerSec: 200 - 2 * tenants })),
    { ...subject, transport: 'tcp' },
  );
  expect(lines(svg)).toHaveLength(1);
  for (const text of ['>100 %<', '>93 %<', '>8<', '>of 1 alone<', 'TCP on loopback', '>200<'])
    expect(svg).toContain(text);
});

it('stays a picture without points', () => {
  for (const svg of [chunkSweepChart([], subject), tenantsChart([], subject)]) {
    expect(svg).toMatch(/^<svg[^]*<\/svg>\n$/);
    expect(svg).not.toMatch(/NaN|Infinity|undefined/);
  }
});
