// `npm test` after the build: types, lint and format, then all tests, whose summary comes last. Every check runs even if
// an earlier one failed, so that a stray space never hides a broken test; any failure is the exit code.
// Arguments go to vitest: `npm test -- test/graph`. `--results=<file>` first runs the tests by `run-tests.js` and some seeds of the
// simulation, as continuous integration does.
import { spawnSync } from 'node:child_process';

const RESULTS = '--results=';
/** Of the simulation. */
const SEEDS = 250;
const [first, ...rest] = process.argv.slice(2);
const tests = first?.startsWith(RESULTS)
  ? [
      ['npm', ['run', '--silent', 'sim', '--', '--seeds', String(SEEDS)]],
      ['node', ['scripts/run-tests.js', first.slice(RESULTS.length), ...rest]],
    ]
  : [['npx', ['--no-install', 'vitest', 'run', ...process.argv.slice(2)]]];
const checks = [['npm', ['run', '--silent', 'typecheck']], ['npm', ['run', '--silent', 'lint']], ...tests];

const failed = checks.filter(([program, args]) => {
  console.log(`\n> ${[program, ...args].join(' ')}`);
  return spawnSync(program, args, { stdio: 'inherit', shell: process.platform === 'win32' }).status !== 0;
});
for (const [program, args] of failed) console.error(`Failed: ${[program, ...args].join(' ')}`);
process.exitCode = failed.length > 0 ? 1 : 0;
