/** A small SVG of horizontal bars, one for each case, with a line where both sides are equal. */
import { escapeText } from './svg-text.ts';

export interface Bar {
  readonly label: string;
  readonly value: number;
  /** Written behind the bar. */
  readonly note: string;
  /** As in '#2f6f8f'. Default: one colour from the reference on, another below. */
  readonly colour?: string | undefined;
}

export interface BarChartOptions {
  readonly title: string;
  readonly subtitle: string;
  /** Drawn as a vertical line. */
  readonly reference: number;
}

export function barChart(bars: readonly Bar[], { title, subtitle, reference }: BarChartOptions): string {
  const [width, left, right, top, row] = [760, 170, 190, 74, 34];
  const height = top + bars.length * row + 24;
  const largest = Math.max(reference, ...bars.map((bar) => bar.value)) * 1.02;
  const x = (value: number) => left + (value / largest) * (width - left - right);
  const rows = bars.map((bar, i) => {
    const y = top + i * row;
    const colour = bar.colour ?? (bar.value >= reference ? '#2f6f8f' : '#b8743a');
    return `  <text x="${left - 10}" y="${y + 19}" text-anchor="end">${escapeText(bar.label)}</text>
  <rect x="${left}" y="${y + 5}" width="${(x(bar.value) - left).toFixed(1)}" height="20" rx="2" fill="${colour}" fill-opacity="0.9"/>
  <text x="${(x(bar.value) + 8).toFixed(1)}" y="${y + 19}" fill="#444" stroke="#fff" stroke-width="5" paint-order="stroke">${escapeText(bar.note)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif" font-size="13" fill="#222">
  <rect width="${width}" height="${height}" fill="#ffffff"/>
  <text x="20" y="30" font-size="17" font-weight="600">${escapeText(title)}</text>
  <text x="20" y="52" fill="#666">${escapeText(subtitle)}</text>
  <line x1="${x(reference).toFixed(1)}" x2="${x(reference).toFixed(1)}" y1="${top - 4}" y2="${height - 16}" stroke="#222" stroke-dasharray="4 3"/>
${rows.join('\n')}
</svg>
`;
}
