/**
 * The picture of `bench scaleup`: for each batch size a group of bars, how many times faster than one process several are, by
 * update mode, by the PyTorch peers, and at most. An SVG text in the style of the other benchmarks; measures nothing.
 * Invariant: every bar begins at zero, and is relative to one process of its own system.
 */
import type { ScaleupBench, ScaleupCase } from './scaleup-case.ts';
import { escapeText } from '../svg-text.ts';

interface Bar {
  readonly name: string;
  readonly colour: string;
  readonly value: number;
}

const CEILING = { name: 'independent copies (ceiling)', colour: '#c9ced3' } as const;
const DDP = { name: 'PyTorch DDP over gloo', colour: '#b8743a' } as const;
const MPI = { name: 'PyTorch, MPI by hand', colour: '#8a4f7d' } as const;
const OURS = ['#2f6f8f', '#5b9bb8', '#1f4a60', '#8cbfd4', '#4f9272'] as const;
const [WIDTH, HEIGHT] = [920, 470];
const AREA = { left: 70, right: 890, top: 130, bottom: 405 };
/** Share of a group's width that stays free. */
const GAP = 0.14;
const LEGEND_COLUMNS = 3;
const TICK = 0.5;

/** Of the cases with the most learners. */
export function scaleupChart({ cases, machine, data, date }: ScaleupBench): string {
  const learners = Math.max(1, ...cases.map((one) => one.learners));
  const shown = cases.filter((one) => one.learners === learners);
  const groups = [...new Set(shown.map(({ batch }) => batch))].map((batch) => ({
    batch,
    bars: barsOf(shown.filter((one) => one.batch === batch)),
  }));
  const largest = Math.max(1, ...groups.flatMap(({ bars }) => bars.map(({ value }) => value)));
  const ticks = Array.from({ length: Math.ceil((largest * 1.05) / TICK) + 1 }, (_, i) => i * TICK);
  const y = (value: number): number => AREA.bottom - (value / ticks.at(-1)!) * (AREA.bottom - AREA.top);
  const groupWidth = (AREA.right - AREA.left) / Math.max(1, groups.length);
  const names = new Map(
    groups.flatMap(({ bars }) => bars.map(({ name, colour }) => [name, colour] as const)),
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${WIDTH}" height="${HEIGHT}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">${escapeText(`Speed-up of ${learners} learner${learners === 1 ? '' : 's'} on one machine by batch size`)}</text>
  <text x="20" y="52" fill="#666">${escapeText(`text-CNN on ${data}; to one process of the same system; ${machine.processor}, ${machine.cores} cores, ${date.slice(0, 10)}`)}</text>
${[
  ...legend([...names]),
  ...ticks.map((tick) => gridLine(tick, y(tick))),
  ...groups.flatMap(({ batch, bars }, i) => group(batch, bars, AREA.left + i * groupWidth, groupWidth, y)),
  `  <text x="${(AREA.left + AREA.right) / 2}" y="${AREA.bottom + 48}" text-anchor="middle" fill="#666">samples in a batch</text>`,
].join('\n')}
</svg>
`;
}

/** In the order of the modes; then the peers and the ceiling, which all modes share. */
function barsOf(cases: readonly ScaleupCase[]): Bar[] {
  const [first] = cases;
  if (!first) return [];
  const { ddpSamplesPerSec, mpiSamplesPerSec, torchSamplesPerSec } = first;
  const { ceilingSamplesPerSec, singleSamplesPerSec } = first;
  const peerBar = (peer: Omit<Bar, 'value'>, rate: number | null): Bar[] =>
    rate === null || torchSamplesPerSec === null ? [] : [{ ...peer, value: rate / torchSamplesPerSec }];
  return [
    ...cases.map(({ mode, speedup }, i) => ({
      ...{ name: `Tributary, ${mode}`, colour: OURS[i % OURS.length]!, value: speedup },
    })),
    ...peerBar(DDP, ddpSamplesPerSec),
    ...peerBar(MPI, mpiSamplesPerSec),
    { ...CEILING, value: ceilingSamplesPerSec / singleSamplesPerSec },
  ];
}

function group(
  batch: number,
  bars: readonly Bar[],
  left: number,
  width: number,
  y: (value: number) => number,
): string[] {
  const barWidth = (width * (1 - GAP)) / Math.max(1, bars.length);
  const start = left + (width * GAP) / 2;
  return [
    ...bars.map(({ value, colour }, i) => {
      const x = start + i * barWidth;
      const top = y(value);
      return `  <rect x="${x.toFixed(1)}" y="${top.toFixed(1)}" width="${(barWidth - 2).toFixed(1)}" height="${(AREA.bottom - top).toFixed(1)}" rx="2" fill="${colour}"/>
  <text x="${(x + barWidth / 2 - 1).toFixed(1)}" y="${(top - 5).toFixed(1)}" text-anchor="middle" font-size="9.5" fill="#444">${value.toFixed(2)}</text>`;
    }),
    `  <text x="${(left + width / 2).toFixed(1)}" y="${AREA.bottom + 22}" text-anchor="middle">${batch}</text>`,
  ];
}

function gridLine(tick: number, y: number): string {
  const isOne = tick === 1;
  const line = isOne ? 'stroke="#222" stroke-dasharray="4 3"' : 'stroke="#e4e4e4"';
  return `  <line x1="${AREA.left}" x2="${AREA.right}" y1="${y.toFixed(1)}" y2="${y.toFixed(1)}" ${line}/>
  <text x="${AREA.left - 8}" y="${(y + 4).toFixed(1)}" text-anchor="end" fill="#666">${tick.toFixed(1)}×</text>`;
}

function legend(names: readonly (readonly [name: string, colour: string])[]): string[] {
  const width = (AREA.right - AREA.left) / LEGEND_COLUMNS;
  return names.map(([name, colour], i) => {
    const x = AREA.left + (i % LEGEND_COLUMNS) * width;
    const y = 70 + Math.floor(i / LEGEND_COLUMNS) * 20;
    return `  <rect x="${x.toFixed(1)}" y="${y}" width="12" height="12" rx="2" fill="${colour}"/>
  <text x="${(x + 18).toFixed(1)}" y="${y + 11}" font-size="12">${escapeText(name)}</text>`;
  });
}
