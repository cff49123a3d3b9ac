/** Holds that vectors are in every clone, and that those of another folder are used only where it has them. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { firstVectors, givenFolder } from './support/shared.ts';
import { packageFolder } from './support/test-program.ts';

const own = join(packageFolder, 'test');
const other = mkdtempSync(join(tmpdir(), 'tributary-shared-'));
afterAll(() => rmSync(other, { recursive: true }));
mkdirSync(join(other, 'vectors'));
writeFileSync(
  join(other, 'vectors/optimizers.json'),
  JSON.stringify([{ name: 'another', kind: 'optimizer' }]),
);

interface Case {
  readonly name: string;
  readonly kind?: string;
}
const namesOf = (kind: string) =>
  firstVectors<Case>([other, own], 'optimizers.json', (one) => one.kind === kind).map(({ name }) => name);

describe('the oracle vectors', () => {
  it.each([
    'clip.json',
    'collectives.json',
    'compression.json',
    'ops.json',
    'optimizers.json',
    'partition.json',
    'scheduling.json',
    'training.json',
  ])('include %s, whose cases have names of their own', (file) => {
    const names = firstVectors<Case>([own], file).map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
  });

  it('of another folder replace those of the repository, kind by kind', () => {
    expect(namesOf('optimizer')).toEqual(['another']);
    expect(namesOf('easgd').length).toBeGreaterThan(0);
    expect(firstVectors<Case>([other, own], 'clip.json')).toEqual(firstVectors<Case>([own], 'clip.json'));
  });

  it('of a kind that nobody has are an error, not a suite without a test', () => {
    expect(() => namesOf('momentum')).toThrow(/optimizers.json has no case/);
  });

  it('are not looked for in a folder that is not there', () => {
    expect(givenFolder(undefined)).toBeUndefined();
    expect(givenFolder(other)).toBe(other);
    expect(() => givenFolder(join(other, 'absent'))).toThrow(/TRIBUTARY_SHARED names .*absent/);
  });
});
