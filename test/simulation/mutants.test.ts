/** The faults that are kept still apply to the sources; whether each is found is what `npm run test:mutants` sees. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { packageFolder } from '../support/test-program.ts';
import { mutated, MUTANTS } from './mutants/mutants.ts';

it.each(MUTANTS)('$name changes the sources', (mutant) => {
  for (const path of new Set(mutant.changes.map((change) => change.path))) {
    const text = readFileSync(join(packageFolder, path), 'utf8');
    expect(mutated(text, path, mutant)).not.toBe(text);
  }
});
