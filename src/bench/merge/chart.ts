/**
 * The picture of `bench merge`: for each model and link a group of bars, the measured time of a step by every merging, with a mark where
 * it was predicted. An SVG text; measures nothing. Invariant: within a group all bars have one scale, from zero.
 */
import { escapeText } from '../svg-text.ts';
import type { MergeBench, MergeCase } from './merge.ts';

const COLOURS = ['#b8743a', '#8a4f7d', '#c9a13b', '#5b9bb8', '#2f6f8f'];
const [WIDTH, LEFT, RIGHT, TOP, BAR, GAP] = [950, 150, 320, 84, 22, 34];

export function mergeChart({ cases, machine, date }: MergeBench): string {
  const titles = [...new Set(cases.map(groupTitle))];
  const groups = titles.map((title) => cases.filter((one) => groupTitle(one) === title));
  let y = TOP;
  const drawn = groups.map((group, i) => {
    const start = y;
    y += 22 + group.length * BAR + GAP;
    return drawGroup(titles[i]!, group, start);
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${y}" viewBox="0 0 ${WIDTH} ${y}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${WIDTH}" height="${y}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">Milliseconds of a step by how gradients are merged</text>
  <text x="20" y="52" fill="#666">${escapeText(`forward, backward and exchange; the line marks the prediction; ${machine.processor}, ${machine.cores} cores, ${date.slice(0, 10)}`)}</text>
${drawn.join('\n')}
</svg>
`;
}

function drawGroup(title: string, group: readonly MergeCase[], top: number): string {
  const largest = Math.max(...group.map(({ predictedMs, measuredMs }) => Math.max(predictedMs, measuredMs)));
  const x = (ms: number): number => LEFT + (ms / largest) * (WIDTH - LEFT - RIGHT);
  const bars = group.map(({ strategy, groups, predictedMs, measuredMs }, i) => {
    const y = top + 14 + i * BAR;
    const mark = x(predictedMs).toFixed(1);
    return `  <text x="${LEFT - 10}" y="${y + 14}" text-anchor="end">${escapeText(strategy)}</text>
  <rect x="${LEFT}" y="${y}" width="${(x(measuredMs) - LEFT).toFixed(1)}" height="${BAR - 5}" rx="2" fill="${COLOURS[i % COLOURS.length]!}"/>
  <line x1="${mark}" x2="${mark}" y1="${y - 2}" y2="${y + BAR - 3}" stroke="#222" stroke-width="2"/>
  <text x="${WIDTH - RIGHT + 16}" y="${y + 14}" fill="#444">${measuredMs.toFixed(1)} ms (predicted ${predictedMs.toFixed(1)}), ${groups} message${groups === 1 ? '' : 's'}</text>`;
  });
  return [`  <text x="20" y="${top}" font-weight="600">${escapeText(title)}</text>`, ...bars].join('\n');
}

function groupTitle({ model, workers, link }: MergeCase): string {
  return `${model}, ${workers} workers, ${link}`;
}
