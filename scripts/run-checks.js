// `npm test` after the build: types, lint and format side by side, then all tests, whose summary comes last. Every check runs
// even if an earlier one failed, so that a stray space never hides a broken test; any failure is the exit code.
// Arguments go to vitest: `npm test -- test/graph`. `--results=<file>` first runs the tests by `run-tests.js` and some seeds of the
// simulation, as continuous integration does.
import { Buffer } from 'node:buffer';
import { spawn } from 'node:child_process';

const RESULTS = '--results=';
/** Of the simulation. */
const SEEDS = 2000;
const [first, ...rest] = process.argv.slice(2);
const isContinuous = first?.startsWith(RESULTS) ?? false;
const quick = [
  ['npm', ['run', '--silent', 'typecheck']],
  ['npm', ['run', '--silent', 'lint']],
  ...(isContinuous ? [['npm', ['run', '--silent', 'sim', '--', '--seeds', String(SEEDS)]]] : []),
];
const tests = isContinuous
  ? ['node', ['scripts/run-tests.js', first.slice(RESULTS.length), ...rest]]
  : ['npx', ['--no-install', 'vitest', 'run', ...process.argv.slice(2)]];

const textOf = ([program, args]) => [program, ...args].join(' ');

/** What a check printed, and whether it failed. */
function run([program, args], stdio) {
  return new Promise((resolve) => {
    const child = spawn(program, args, { stdio, shell: process.platform === 'win32' });
    const printed = [];
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (bytes) => printed.push(bytes));
    child.on('error', (error) => resolve({ printed: `${error.message}\n`, hasFailed: true }));
    child.on('close', (code) => resolve({ printed: Buffer.concat(printed), hasFailed: code !== 0 }));
  });
}

const failed = [];
const running = quick.map((check) => ({ check, result: run(check, ['ignore', 'pipe', 'pipe']) }));
for (const { check, result } of running) {
  const { printed, hasFailed } = await result;
  console.log(`\n> ${textOf(check)}`);
  process.stdout.write(printed);
  if (hasFailed) failed.push(check);
}
console.log(`\n> ${textOf(tests)}`);
if ((await run(tests, 'inherit')).hasFailed) failed.push(tests);
for (const check of failed) console.error(`Failed: ${textOf(check)}`);
process.exitCode = failed.length > 0 ? 1 : 0;
