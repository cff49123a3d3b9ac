/**
 * `npm run test:mutants [-- --seeds N] [name ...]`: puts known bugs back into a copy of the sources, one at a time, and sees the simulation
 * find each of them. Fails if one is not found within the seeds, or no longer applies to the sources. Leaves nothing
 * behind.
 */
import { spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { MUTANTS } from './mutants.ts';
import type { Mutant } from './mutants.ts';

const root = fileURLToPath(new URL('../../', import.meta.url));
const { values, positionals } = parseArgs({
  options: { seeds: { type: 'string', default: '2000' } },
  allowPositionals: true,
});
const chosen = MUTANTS.filter(({ name }) => positionals.length === 0 || positionals.includes(name));

let missed = 0;
for (const mutant of chosen) {
  const folder = copyOfSources();
  try {
    const problem = apply(mutant, folder) ?? (await outcome(folder));
    if (problem.startsWith('seed')) console.log(`found   ${mutant.name}: ${problem}`);
    else {
      missed++;
      console.log(`MISSED  ${mutant.name}: ${problem}`);
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
console.log(`${chosen.length - missed} of ${chosen.length} mutants found`);
process.exitCode = missed > 0 ? 1 : 0;

function copyOfSources(): string {
  const folder = mkdtempSync(join(tmpdir(), 'tributary-mutant-'));
  for (const name of ['src', 'test/simulation', 'build/kernels.wasm', 'package.json', 'tsconfig.json']) {
    cpSync(join(root, name), join(folder, name), { recursive: true });
  }
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
  return folder;
}

/** What hinders it, or undefined. */
function apply({ edits }: Mutant, folder: string): string | undefined {
  for (const { file, find, replace } of edits) {
    const path = join(folder, file);
    const source = readFileSync(path, 'utf8');
    const places = source.split(find).length - 1;
    if (places !== 1) return `no longer applies: ${file} has ${places} places with ${JSON.stringify(find)}`;
    writeFileSync(
      path,
      source.replace(find, () => replace),
    );
  }
  return undefined;
}

/** The line of the first finding, or that there was none. */
async function outcome(folder: string): Promise<string> {
  const child = spawn(
    process.execPath,
    [...process.execArgv, 'test/simulation/main.ts', '--seeds', values.seeds],
    { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] },
  );
  let [output, errors] = ['', ''];
  child.stdout.on('data', (data: Buffer) => (output += data.toString()));
  child.stderr.on('data', (data: Buffer) => (errors += data.toString()));
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve));
  const finding = output.split('\n').find((line) => /^seed \d+: (?!\{)/.test(line));
  if (code === 1 && finding !== undefined) return finding.slice(0, 200);
  return code === 0
    ? `nothing in ${values.seeds} seeds`
    : `the simulation ended with ${code}: ${errors.slice(-500)}`;
}
