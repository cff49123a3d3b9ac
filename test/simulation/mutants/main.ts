/**
 * `npm run test:mutants [-- [--from SEED] NAME ...]`: puts faults that Tributary had back into a copy of the sources, one at a
 * time, and sees that the simulation finds each within 2,000 seeds, from seed 0 or from the one that is given. Fails if one is
 * not found, or if a mutant no longer applies to the sources.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { compile, compilePrograms } from '../../support/compile-programs.ts';
import { compiledFolder, compiledName, packageFolder } from '../../support/test-program.ts';
import { mutated, MUTANTS } from './mutants.ts';
import type { Mutant } from './mutants.ts';

const SEEDS = 2000;

const { values, positionals: wanted } = parseArgs({
  allowPositionals: true,
  options: { from: { type: 'string', default: '0' } },
});
const unknown = wanted.filter((name) => !MUTANTS.some((mutant) => mutant.name === name));
if (unknown.length > 0) {
  console.error(
    `There is no mutant ${unknown.join(', ')}; there are ${MUTANTS.map(({ name }) => name).join(', ')}.`,
  );
  process.exit(2);
}
compilePrograms();
const failed = MUTANTS.filter(({ name }) => wanted.length === 0 || wanted.includes(name)).filter(
  (mutant) => !isFound(mutant),
);
console.log(
  failed.length === 0 ? 'All were found.' : `Not found: ${failed.map(({ name }) => name).join(', ')}.`,
);
process.exitCode = failed.length === 0 ? 0 : 1;

/** Prints a line about it. */
function isFound({ name, fault, changes }: Mutant): boolean {
  const folder = mkdtempSync(join(tmpdir(), 'tributary-mutant-'));
  try {
    cpSync(compiledFolder, join(folder, 'programs'), { recursive: true, dereference: true });
    symlinkSync(join(packageFolder, 'node_modules'), join(folder, 'node_modules'));
    const paths = new Set(changes.map(({ path }) => path));
    for (const path of paths) {
      const text = mutated(readFileSync(join(packageFolder, path), 'utf8'), path, { name, changes });
      writeFileSync(join(folder, 'programs', compiledName(path)), compile(text, join(packageFolder, path)));
    }
    const program = join(folder, 'programs/test/simulation/main.js');
    const args = ['--seeds', String(SEEDS), '--from', values.from, '--quiet'];
    const { status, stdout } = spawnSync(process.execPath, [program, ...args], {
      encoding: 'utf8',
      maxBuffer: 2 ** 28,
    });
    const finding = /^seed \d+: .*$/m.exec(stdout)?.[0];
    console.log(`${name}: ${fault}`);
    console.log(`  ${finding ?? `NOT FOUND in ${SEEDS} seeds from ${values.from} (exit code ${status})`}`);
    return status === 1 && finding !== undefined;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
