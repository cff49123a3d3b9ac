/**
 * The pictures of `bench exchange`: exchanges per second over the bytes of a chunk, tall against wide, and over the number of
 * tenants. SVG texts in the style of the other benchmarks; they measure nothing. Invariant: the vertical axis begins at
 * zero, so that heights may be compared.
 */
import { formatBytes } from '../allreduce/index.ts';
import type { Machine } from '../machine.ts';
import { escapeText } from '../svg-text.ts';

/** Of a case of the bench, what the sweep of chunks needs. */
export interface ChunkPoint {
  readonly chunkBytes: number;
  readonly aggregation: 'tall' | 'wide';
  readonly exchangesPerSec: number;
}

/** Of a case of the bench, what the picture of tenants needs. */
export interface TenantPoint {
  readonly tenants: number;
  /** Of all tenants together. */
  readonly exchangesPerSec: number;
}

/** What was measured and where; for the head of a picture. */
export interface ChartSubject {
  readonly model: string;
  readonly workers: number;
  readonly transport: 'shm' | 'tcp';
  readonly machine: Machine;
  /** ISO 8601. */
  readonly date: string;
}

interface Series {
  readonly name: string;
  readonly colour: string;
  readonly points: readonly (readonly [x: number, y: number])[];
}

interface LineChart {
  readonly title: string;
  readonly subtitle: string;
  readonly xTitle: string;
  readonly xScale: 'linear' | 'logarithmic';
  readonly formatX: (x: number) => string;
  readonly series: readonly Series[];
  /** A line of text below each x, such as a ratio, and what it is. */
  readonly notes: ReadonlyMap<number, string>;
  readonly notesTitle: string;
}

const OURS = '#2f6f8f';
const OTHER = '#b8743a';
const TRANSPORTS = { shm: 'shared memory', tcp: 'TCP on loopback' } as const;
const [WIDTH, HEIGHT] = [920, 470];
const AREA = { left: 80, right: 785, top: 78, bottom: 375 };
const TICKS = 5;

/** A line for each aggregation that was measured; below, how many times faster tall is. */
export function chunkSweepChart(points: readonly ChunkPoint[], subject: ChartSubject): string {
  const of = (aggregation: ChunkPoint['aggregation']): (readonly [number, number])[] =>
    points
      .filter((point) => point.aggregation === aggregation)
      .map(({ chunkBytes, exchangesPerSec }) => [chunkBytes, exchangesPerSec] as const);
  const [tall, wide] = [of('tall'), new Map(of('wide'))];
  return lineChart({
    title: `Exchanges of ${subject.model} per second over the length of a chunk`,
    subtitle: describe(subject),
    xTitle: 'bytes of a chunk',
    xScale: 'logarithmic',
    formatX: formatBytes,
    series: [
      { name: 'wide', colour: OTHER, points: [...wide] },
      { name: 'tall', colour: OURS, points: tall },
    ],
    notes: new Map(
      tall.flatMap(([bytes, rate]) => {
        const other = wide.get(bytes);
        return other === undefined ? [] : [[bytes, `${(rate / other).toFixed(2)}×`] as const];
      }),
    ),
    notesTitle: 'tall / wide',
  });
}

/** The sum over the tenants; below, its share of what the fewest had. */
export function tenantsChart(points: readonly TenantPoint[], subject: ChartSubject): string {
  const line = points.map(({ tenants, exchangesPerSec }) => [tenants, exchangesPerSec] as const).sort(byX);
  const alone = line[0]?.[1] ?? 1;
  return lineChart({
    title: `Exchanges of ${subject.model} per second, all tenants together`,
    subtitle: describe(subject),
    xTitle: 'tenants',
    xScale: 'linear',
    formatX: (tenants) => `${tenants}`,
    series: [{ name: 'all tenants', colour: OURS, points: line }],
    notes: new Map(line.map(([tenants, rate]) => [tenants, `${((100 * rate) / alone).toFixed(0)} %`])),
    notesTitle: `of ${line[0]?.[0] ?? 1} alone`,
  });
}

function describe({ workers, transport, machine, date }: ChartSubject): string {
  return `${workers} workers, ${TRANSPORTS[transport]}; higher is better; ${machine.processor}, ${machine.cores} cores, ${date.slice(0, 10)}`;
}

const byX = (a: readonly [number, number], b: readonly [number, number]): number => a[0] - b[0];

function lineChart(chart: LineChart): string {
  const series = chart.series.filter(({ points }) => points.length > 0);
  const xs = [...new Set(series.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
  const step = tickStep(Math.max(0, ...series.flatMap(({ points }) => points.map(([, y]) => y))));
  const scaled = (x: number): number => (chart.xScale === 'logarithmic' ? Math.log2(x) : x);
  const [first, last] = [scaled(xs[0] ?? 1), scaled(xs.at(-1) ?? 2)];
  const x = (value: number): number =>
    AREA.left + ((scaled(value) - first) / (last - first || 1)) * (AREA.right - AREA.left);
  const y = (value: number): number => AREA.bottom - (value / (step * TICKS)) * (AREA.bottom - AREA.top);
  const ticks = Array.from({ length: TICKS + 1 }, (_, i) => Number((i * step).toPrecision(6)));
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${WIDTH}" height="${HEIGHT}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">${escapeText(chart.title)}</text>
  <text x="20" y="52" fill="#666">${escapeText(chart.subtitle)}</text>
${[
  ...ticks.map((tick) => gridLine(tick, y(tick))),
  ...xs.map((value) => text(x(value), AREA.bottom + 22, chart.formatX(value), '#444')),
  ...endLabels(series, y),
  ...series.map((entry) => curve(entry, x, y)),
  ...[...chart.notes].map(([value, note]) => text(x(value), AREA.bottom + 68, note, OURS)),
  ...(chart.notes.size > 0 ? [text(AREA.right + 68, AREA.bottom + 68, chart.notesTitle, OURS)] : []),
  text((AREA.left + AREA.right) / 2, AREA.bottom + 44, chart.xTitle, '#666'),
].join('\n')}
</svg>
`;
}

/** 1, 2, 2.5 or 5 times a power of ten, so that the ticks reach the value. */
function tickStep(highest: number): number {
  const least = highest / TICKS || 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= least * (1 - 1e-9))!;
}

function gridLine(value: number, y: number): string {
  return `  <line x1="${AREA.left}" x2="${AREA.right}" y1="${y.toFixed(1)}" y2="${y.toFixed(1)}" stroke="#e4e6ea"/>
  <text x="${AREA.left - 10}" y="${(y + 4).toFixed(1)}" text-anchor="end" fill="#666">${value}</text>`;
}

function text(x: number, y: number, words: string, colour: string): string {
  return `  <text x="${x.toFixed(1)}" y="${y}" text-anchor="middle" font-size="12" fill="${colour}">${escapeText(words)}</text>`;
}

function curve(
  { colour, points }: Series,
  x: (value: number) => number,
  y: (value: number) => number,
): string {
  const places = [...points].sort(byX).map(([px, py]) => [x(px).toFixed(1), y(py).toFixed(1)] as const);
  const dots = places.map(([px, py]) => `<circle cx="${px}" cy="${py}" r="3.5" fill="${colour}"/>`);
  return `  <polyline points="${places.map((place) => place.join()).join(' ')}" fill="none" stroke="${colour}" stroke-width="2.5"/>
  ${dots.join('')}`;
}

/** Beside the last point of each line, moved apart where they would overlap. */
function endLabels(series: readonly Series[], y: (value: number) => number): string[] {
  const labels = series
    .map(({ name, colour, points }) => ({ name, colour, at: y([...points].sort(byX).at(-1)![1]) }))
    .sort((a, b) => a.at - b.at);
  let above = -Infinity;
  return labels.map(({ name, colour, at }) => {
    above = Math.max(at, above + 18);
    return `  <text x="${AREA.right + 12}" y="${(above + 4).toFixed(1)}" fill="${colour}" font-weight="600">${name}</text>`;
  });
}
