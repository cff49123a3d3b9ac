// Runs all tests as continuous integration does: a file that fails is run once more, and named as flaky if it passes then.
// Usage: node scripts/run-tests.js results.json [arguments of vitest]. Writes the last results of every file to
// results.json in the form of vitest's JSON reporter; without any result there is no such file.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { runTwice } from './test-results.js';

const [results, ...args] = process.argv.slice(2);
if (results === undefined || results.startsWith('-')) {
  console.error('Usage: node scripts/run-tests.js results.json [arguments of vitest]');
  process.exit(2);
}
const shown = (file) => relative(process.cwd(), file);
const folder = mkdtempSync(join(tmpdir(), 'tributary-results-'));
let runs = 0;

function run(files) {
  const path = join(folder, `${++runs}.json`);
  if (files.length > 0) console.log(`\nOnce more, what failed: ${files.map(shown).join(' ')}`);
  const chosen =
    files.length > 0 ? [...args.filter((arg) => arg.startsWith('-')), ...files.map(shown)] : args;
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${path}`];
  const { status, error } = spawnSync('npx', ['--no-install', 'vitest', 'run', ...reporters, ...chosen], {
    stdio: 'inherit',
    shell: process.platform === 'win32',
  });
  if (error) console.error(`vitest did not start: ${error.message}`);
  return {
    code: status ?? 1,
    report: existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : undefined,
  };
}

try {
  const { code, report, flaky } = runTwice(run);
  if (report) writeFileSync(results, JSON.stringify(report));
  for (const file of flaky) console.log(`Flaky: ${shown(file)} failed, and passed when it was run once more`);
  process.exitCode = code;
} finally {
  rmSync(folder, { recursive: true });
}
