/**
 * The picture of `bench hybrid`: for each model and link a group of bars, the samples a second of every strategy, and below them the
 * switches of Parallax's table 4 with what each adds. An SVG text; measures nothing.
 * Invariant: within a group all bars have one scale, from zero.
 */
import { escapeText } from '../svg-text.ts';
import { titleOf, type HybridBench, type HybridCase } from './hybrid-case.ts';
import { SWITCH_NAMES } from './strategies.ts';

const STRATEGY_COLOURS: Readonly<Record<string, string>> = {
  servers: '#b8743a',
  collectives: '#8a4f7d',
  hybrid: '#2f6f8f',
};
const SWITCH_COLOURS = ['#c9ced3', '#a9c6d3', '#7fabc0', '#5590ab', '#2f6f8f'] as const;
const [WIDTH, LEFT, RIGHT, TOP, BAR, GAP, HEADING] = [1000, 310, 310, 92, 22, 34, 30];

interface Bar {
  readonly label: string;
  readonly value: number;
  readonly note: string;
  readonly colour: string;
}

interface Group {
  readonly title: string;
  readonly bars: readonly Bar[];
}

export function hybridChart({ cases, machine, date }: HybridBench): string {
  const isSwitch = ({ strategy }: HybridCase): boolean => SWITCH_NAMES.includes(strategy);
  const blocks = [
    {
      heading: 'Strategies',
      groups: groupsOf(
        cases.filter((one) => !isSwitch(one)),
        strategyBar,
      ),
    },
    {
      heading: 'Switches, one after the other',
      groups: groupsOf(cases.filter(isSwitch), switchBar),
    },
  ].filter(({ groups }) => groups.length > 0);
  let y = TOP;
  const drawn = blocks.map(({ heading, groups }) => {
    const lines = [`  <text x="20" y="${y}" font-size="15" font-weight="600">${heading}</text>`];
    y += HEADING;
    for (const group of groups) {
      lines.push(drawGroup(group, y));
      y += 22 + group.bars.length * BAR + GAP;
    }
    return lines.join('\n');
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${y}" viewBox="0 0 ${WIDTH} ${y}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${WIDTH}" height="${y}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">Samples a second by how gradients are exchanged</text>
  <text x="20" y="52" fill="#666">${escapeText(`longer is better, one scale in each group; ${machine.processor}, ${machine.cores} cores for all workers and links, ${date.slice(0, 10)}`)}</text>
${drawn.join('\n')}
</svg>
`;
}

function groupsOf(cases: readonly HybridCase[], barOf: (one: HybridCase) => Bar): Group[] {
  const titles = [...new Set(cases.map(titleOf))];
  return titles.map((title) => ({
    title,
    bars: cases.filter((one) => titleOf(one) === title).map(barOf),
  }));
}

function strategyBar({ strategy, samplesPerSec, relativeToBestPure, collectivesRatio }: HybridCase): Bar {
  const toCollectives = collectivesRatio === undefined ? '' : `, ${collectivesRatio.toFixed(2)}× collectives`;
  const toPure =
    strategy === 'hybrid' ? ` (${relativeToBestPure.toFixed(2)}× best pure${toCollectives})` : '';
  const note = `${rateText(samplesPerSec)}${toPure}`;
  return { label: strategy, value: samplesPerSec, note, colour: STRATEGY_COLOURS[strategy] ?? '#666' };
}

function switchBar({ strategy, samplesPerSec, gain }: HybridCase): Bar {
  const note = `${rateText(samplesPerSec)}${gain === undefined ? '' : ` (${gainText(gain)})`}`;
  const colour = SWITCH_COLOURS[SWITCH_NAMES.indexOf(strategy)] ?? '#666';
  return { label: strategy, value: samplesPerSec, note, colour };
}

/** `+12 %`, `-3 %` */
export function gainText(gain: number): string {
  const share = Math.round(100 * (gain - 1));
  return `${share < 0 ? '' : '+'}${share} %`;
}

function rateText(samplesPerSec: number): string {
  return samplesPerSec >= 100 ? samplesPerSec.toFixed(0) : samplesPerSec.toPrecision(3);
}

function drawGroup({ title, bars }: Group, top: number): string {
  const largest = Math.max(...bars.map(({ value }) => value));
  const width = (value: number): number => (value / largest) * (WIDTH - LEFT - RIGHT);
  const drawn = bars.map(({ label, value, note, colour }, i) => {
    const y = top + 14 + i * BAR;
    return `  <text x="${LEFT - 10}" y="${y + 14}" text-anchor="end">${escapeText(label)}</text>
  <rect x="${LEFT}" y="${y}" width="${width(value).toFixed(1)}" height="${BAR - 5}" rx="2" fill="${colour}"/>
  <text x="${(LEFT + width(value) + 8).toFixed(1)}" y="${y + 14}" fill="#444">${escapeText(note)}</text>`;
  });
  return [`  <text x="20" y="${top}" font-weight="600">${escapeText(title)}</text>`, ...drawn].join('\n');
}
