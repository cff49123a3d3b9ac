// Draws the final screen of recorded terminal sessions as an SVG: the picture of the README, from real output.
// It knows what our own commands write: text, bold, red, carriage return, erase line, cursor hiding; other escapes are dropped.
// Record: script -q -c 'npx tributary train mnist' recording (in a terminal of 92 columns, on a machine that rests).
// Usage: node scripts/terminal-svg.js out.svg 'command 1' recording1 ['command 2' recording2 ...]
import { readFileSync, writeFileSync } from 'node:fs';

const COLUMNS = 92;
const CELL = { width: 8.43, height: 17.5 };
const PADDING = 20;
const BAR = 34;

/** A line is a list of cells; a cell has a character and a style. */
function screenOf(recording) {
  const lines = [[]];
  let column = 0;
  let style = '';
  const tokens = recording.matchAll(/\x1b\[([?\d;]*)([A-Za-z])|\x1b.|[\s\S]/gu); // eslint-disable-line no-control-regex
  for (const [token, parameters, final] of tokens) {
    const line = lines.at(-1);
    if (token === '\r') column = 0;
    else if (token === '\n') {
      lines.push([]);
      column = 0;
    } else if (final === 'm') style = nextStyle(style, parameters);
    else if (final === 'K') line.splice(parameters === '2' ? 0 : column);
    else if (!token.startsWith('\x1b')) {
      while (line.length < column) line.push({ text: ' ', style: '' });
      line[column] = { text: token, style };
      column++;
    }
  }
  while (lines.length > 0 && lines.at(-1).length === 0) lines.pop();
  return lines.map((line) => line.slice(0, COLUMNS));
}

function nextStyle(style, parameters) {
  const classes = new Set(style.split(' ').filter(Boolean));
  for (const code of parameters.split(';')) {
    if (code === '1') classes.add('bold');
    else if (code === '22') classes.delete('bold');
    else if (code === '31') classes.add('red');
    else if (code === '39') classes.delete('red');
    else if (code === '0' || code === '') classes.clear();
  }
  return [...classes].join(' ');
}

/** Without the first and last line that `script` itself adds. */
const readRecording = (path) =>
  readFileSync(path, 'utf8').replace(/^Script (started|done) on .*\r?\n?/gm, '');

const escape = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

/** One <text> for each line, one <tspan> for each run of equal style. */
function textOf(line, y) {
  const runs = [];
  for (const { text, style } of line) {
    const last = runs.at(-1);
    if (last?.style === style) last.text += text;
    else runs.push({ text, style });
  }
  const spans = runs.map(({ text, style }) =>
    style === '' ? escape(text) : `<tspan class="${style}">${escape(text)}</tspan>`,
  );
  return `  <text x="${PADDING}" y="${y}" xml:space="preserve">${spans.join('')}</text>`;
}

const [out, ...pairs] = process.argv.slice(2);
if (out === undefined || pairs.length === 0 || pairs.length % 2 === 1) {
  console.error("Usage: node scripts/terminal-svg.js out.svg 'command' recording ...");
  process.exit(2);
}
const lines = [];
for (let i = 0; i < pairs.length; i += 2) {
  if (i > 0) lines.push([]);
  lines.push([
    { text: '$ ', style: 'prompt' },
    { text: pairs[i], style: '' },
  ]);
  lines.push(...screenOf(readRecording(pairs[i + 1])));
}
const width = Math.ceil(2 * PADDING + COLUMNS * CELL.width);
const height = Math.ceil(BAR + PADDING + lines.length * CELL.height);
const rows = lines.map((line, i) => textOf(line, BAR + 18 + i * CELL.height));
writeFileSync(
  out,
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">
  <title>${escape(pairs.filter((_, i) => i % 2 === 0).join('; '))}</title>
  <style>
    text { font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #d6deeb; }
    .bold { font-weight: 700; fill: #ffffff; }
    .red { fill: #f87171; }
    .prompt { fill: #4ade80; }
  </style>
  <rect width="${width}" height="${height}" rx="10" fill="#0f172a" />
  <circle cx="24" cy="18" r="5.5" fill="#475569" />
  <circle cx="44" cy="18" r="5.5" fill="#475569" />
  <circle cx="64" cy="18" r="5.5" fill="#475569" />
${rows.join('\n')}
</svg>
`,
);
