/** The picture of a benchmark: bars in proportion, texts safe for XML. */
import { expect, it } from 'vitest';
import { barChart } from '../../src/bench/index.ts';

it('draws bars in proportion to their values and escapes texts', () => {
  const svg = barChart(
    [
      { label: 'a < b', value: 1, note: '1x' },
      { label: 'c', value: 2, note: '2x' },
    ],
    { title: 'T & U', subtitle: 's', reference: 1 },
  );
  const widths = [...svg.matchAll(/<rect x="170"[^>]* width="([\d.]+)"/g)].map((match) => Number(match[1]));
  expect(widths).toHaveLength(2);
  expect(widths[1]! / widths[0]!).toBeCloseTo(2, 1);
  expect(svg).toContain('a &lt; b');
  expect(svg).toContain('T &amp; U');
});
