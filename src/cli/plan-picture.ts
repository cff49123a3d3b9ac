/**
 * The picture of a plan: what computing, collectives and servers do in one iteration, as lanes over time, an SVG text. Made of the
 * plan's timeline alone. Invariant: all lanes have the same scale, and end where the plan says that the iteration ends.
 */
import type { ExchangePlan } from '../plan/index.ts';

const [WIDTH, LEFT, RIGHT] = [960, 130, 20];
const LANES = [
  { lane: 'compute', title: 'computing', y: 84, colours: ['#2f6f8f', '#5b9bb8'] },
  { lane: 'communication', title: 'communication', y: 154, colours: ['#b8743a', '#d6a06f'] },
  { lane: 'servers', title: 'servers', y: 224, colours: ['#8a4f7d', '#b07fa5'] },
] as const;
const LANE_HEIGHT = 46;
/** Below the last lane. */
const [AXIS_SPACE, END_SPACE] = [22, 40];
const TICKS = 8;
/** Narrower bars have no room for a name. */
const LEAST_NAMED = 34;
const CHARACTER_WIDTH = 6.2;

export function planPicture(plan: ExchangePlan, title: string): string {
  const { iterationMs, timeline, groups, strategy, merging } = plan;
  const x = (ms: number): number => LEFT + (ms / Math.max(iterationMs, 1e-9)) * (WIDTH - LEFT - RIGHT);
  const shown = LANES.filter(({ lane }) => lane !== 'servers' || timeline.some((bar) => bar.lane === lane));
  const axisY = shown.at(-1)!.y + LANE_HEIGHT + AXIS_SPACE;
  const height = axisY + END_SPACE;
  const lanes = shown.map(({ lane, title: name, y, colours }) => {
    const bars = timeline.filter((interval) => interval.lane === lane);
    return [
      `  <text x="${LEFT - 12}" y="${y + LANE_HEIGHT / 2 + 4}" text-anchor="end">${name}</text>`,
      ...bars.map((bar, i) => drawn(bar.name, x(bar.startMs), x(bar.endMs), y, colours[i % colours.length]!)),
    ].join('\n');
  });
  const step = niceStep(iterationMs / TICKS);
  const ticks = Array.from({ length: Math.floor(iterationMs / step) + 1 }, (_, i) => i * step);
  const subtitle = `${strategy}, ${merging} merging: ${groups.length} message${groups.length === 1 ? '' : 's'}, ${iterationMs.toPrecision(3)} ms predicted`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${WIDTH}" height="${height}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">${escape(title)}</text>
  <text x="20" y="54" fill="#666">${escape(subtitle)}</text>
${lanes.join('\n')}
${ticks.map((ms) => `  <line x1="${x(ms).toFixed(1)}" x2="${x(ms).toFixed(1)}" y1="${axisY - 12}" y2="${axisY - 6}" stroke="#666"/>\n  <text x="${x(ms).toFixed(1)}" y="${axisY + 10}" text-anchor="middle" fill="#666">${Number(ms.toPrecision(3))}</text>`).join('\n')}
  <text x="${(LEFT + WIDTH - RIGHT) / 2}" y="${axisY + 30}" text-anchor="middle" fill="#666">milliseconds</text>
</svg>
`;
}

function drawn(name: string, from: number, to: number, y: number, colour: string): string {
  const width = Math.max(0.5, to - from);
  const bar = `  <rect x="${from.toFixed(1)}" y="${y}" width="${width.toFixed(1)}" height="${LANE_HEIGHT}" fill="${colour}" stroke="#fff" stroke-width="0.5"><title>${escape(name)}</title></rect>`;
  if (width < LEAST_NAMED) return bar;
  const room = Math.floor((width - 8) / CHARACTER_WIDTH);
  const short = name.length <= room ? name : `${name.slice(0, Math.max(1, room - 1))}…`;
  return `${bar}\n  <text x="${(from + width / 2).toFixed(1)}" y="${y + LANE_HEIGHT / 2 + 4}" text-anchor="middle" font-size="11" fill="#fff">${escape(short)}</text>`;
}

/** 1, 2 or 5 times a power of ten, at least `least`. */
function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-6)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least) ?? least;
}

function escape(text: string): string {
  return text.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]!);
}
