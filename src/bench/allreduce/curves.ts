/**
 * The picture of `bench allreduce`: time over bytes, both on logarithmic axes, a curve for each side, and below each
 * size how many times slower the peers are. An SVG text; it measures nothing.
 */
import { formatBytes } from './allreduce.ts';
import type { AllReduceBench, AllReduceCase } from './allreduce.ts';
import { escapeText } from '../svg-text.ts';

interface Series {
  readonly name: string;
  readonly colour: string;
  readonly micros: (entry: AllReduceCase) => number | null;
  readonly ratio?: (entry: AllReduceCase) => number | null;
}

const SERIES: readonly Series[] = [
  { name: 'gloo', colour: '#8a8f98', micros: ({ glooUs }) => glooUs, ratio: ({ ratioGloo }) => ratioGloo },
  {
    name: 'Open MPI',
    colour: '#b8743a',
    micros: ({ openmpiUs }) => openmpiUs,
    ratio: ({ ratioOpenmpi }) => ratioOpenmpi,
  },
  { name: 'Tributary', colour: '#2f6f8f', micros: ({ oursUs }) => oursUs },
];

const [WIDTH, HEIGHT] = [920, 520];
const AREA = { left: 80, right: 785, top: 78, bottom: 400 };
const TITLES = { shm: 'shared memory', tcp: 'TCP on loopback', mpi: 'MPI' } as const;

/** Where a bench has several algorithms, the fastest of each size is drawn. */
export function curves(bench: AllReduceBench): string {
  const cases = fastest(bench.cases);
  const series = SERIES.filter(({ micros }) => cases.some((entry) => micros(entry) !== null));
  const times = series.flatMap(({ micros }) => cases.map(micros)).filter((time) => time !== null);
  const [low, high] = [Math.floor(Math.log10(Math.min(...times))), Math.ceil(Math.log10(Math.max(...times)))];
  const decades = Array.from({ length: high - low + 1 }, (_, i) => 10 ** (low + i));
  const [first, last] = [Math.log2(cases[0]?.bytes ?? 1), Math.log2(cases.at(-1)?.bytes ?? 2)];
  const x = (bytes: number) =>
    AREA.left + ((Math.log2(bytes) - first) / (last - first || 1)) * (AREA.right - AREA.left);
  const y = (micros: number) =>
    AREA.bottom - ((Math.log10(micros) - low) / (high - low || 1)) * (AREA.bottom - AREA.top);
  const processor = `${bench.machine.processor}, ${bench.machine.cores} cores, ${bench.date.slice(0, 10)}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${WIDTH}" height="${HEIGHT}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">Allreduce of ${bench.ranks} ranks by ${TITLES[bench.transport]}</text>
  <text x="20" y="52" fill="#666">${escapeText(`time of one operation, lower is better; ${processor}`)}</text>
${decades.map((decade) => gridLine(decade, y(decade))).join('\n')}
${cases.map(({ bytes }) => sizeLabel(bytes, x(bytes))).join('\n')}
${endLabels(series, cases, y).join('\n')}
${series.map((entry) => curve(entry, cases, x, y)).join('\n')}
${ratioRows(series, cases, x).join('\n')}
</svg>
`;
}

function fastest(cases: readonly AllReduceCase[]): AllReduceCase[] {
  const best = new Map<number, AllReduceCase>();
  for (const entry of cases) {
    const known = best.get(entry.bytes);
    if (!known || entry.oursUs < known.oursUs) best.set(entry.bytes, entry);
  }
  return [...best.values()].sort((a, b) => a.bytes - b.bytes);
}

function gridLine(micros: number, y: number): string {
  const label = micros >= 1e6 ? `${micros / 1e6} s` : micros >= 1e3 ? `${micros / 1e3} ms` : `${micros} µs`;
  return `  <line x1="${AREA.left}" x2="${AREA.right}" y1="${y.toFixed(1)}" y2="${y.toFixed(1)}" stroke="#e4e6ea"/>
  <text x="${AREA.left - 10}" y="${(y + 4).toFixed(1)}" text-anchor="end" fill="#666">${label}</text>`;
}

function sizeLabel(bytes: number, x: number): string {
  return `  <text x="${x.toFixed(1)}" y="${AREA.bottom + 22}" text-anchor="middle" font-size="11" fill="#444">${formatBytes(bytes)}</text>`;
}

function curve(
  { colour, micros }: Series,
  cases: readonly AllReduceCase[],
  x: (bytes: number) => number,
  y: (micros: number) => number,
): string {
  const points = cases.flatMap((entry): [number, number][] => {
    const time = micros(entry);
    return time === null ? [] : [[x(entry.bytes), y(time)]];
  });
  const path = points.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join(' ');
  const dots = points.map(
    ([px, py]) => `<circle cx="${px.toFixed(1)}" cy="${py.toFixed(1)}" r="3.5" fill="${colour}"/>`,
  );
  return `  <polyline points="${path}" fill="none" stroke="${colour}" stroke-width="2.5"/>
  ${dots.join('')}`;
}

/** Beside the last point of each curve, moved apart where they would overlap. */
function endLabels(
  series: readonly Series[],
  cases: readonly AllReduceCase[],
  y: (micros: number) => number,
): string[] {
  const last = cases.at(-1);
  if (!last) return [];
  const labels = series
    .flatMap(({ name, colour, micros }) => {
      const time = micros(last);
      return time === null ? [] : [{ name, colour, at: y(time) }];
    })
    .sort((a, b) => a.at - b.at);
  let above = -Infinity;
  return labels.map(({ name, colour, at }) => {
    above = Math.max(at, above + 18);
    return `  <text x="${AREA.right + 12}" y="${(above + 4).toFixed(1)}" fill="${colour}" font-weight="600">${name}</text>`;
  });
}

/** One row for each peer: its time / ours. */
function ratioRows(
  series: readonly Series[],
  cases: readonly AllReduceCase[],
  x: (bytes: number) => number,
): string[] {
  const peers = series.filter(({ ratio }) => ratio !== undefined).reverse();
  return peers.flatMap(({ name, colour, ratio }, row) => {
    const y = AREA.bottom + 62 + row * 24;
    const cells = cases.flatMap((entry) => {
      const value = ratio!(entry);
      if (value === null) return [];
      const text = value >= 10 ? value.toFixed(0) : value.toFixed(1);
      return [
        `  <text x="${x(entry.bytes).toFixed(1)}" y="${y}" text-anchor="middle" font-size="12" fill="${colour}">${text}×</text>`,
      ];
    });
    return [
      ...cells,
      `  <text x="${AREA.right + 30}" y="${y}" font-size="12" fill="${colour}">${name} / ours</text>`,
    ];
  });
}
