/**
 * Where tests find oracle vectors and datasets. The vectors are part of the repository, so tests that read them run in
 * every clone; datasets are not, so tests that need one are skipped without it. TRIBUTARY_SHARED names a folder whose
 * `vectors/` and `data/` are used instead where it has them. Invariant: there are always vectors of every kind.
 */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { packageFolder } from './test-program.ts';

const own = resolve(packageFolder, 'test');
const given = givenFolder(process.env['TRIBUTARY_SHARED']);

/** The folder that TRIBUTARY_SHARED names, or undefined. One that is not there is a mistake, not an absence. */
export function givenFolder(name: string | undefined): string | undefined {
  if (name === undefined || name === '') return undefined;
  const path = resolve(packageFolder, name);
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return path;
  throw new Error(`TRIBUTARY_SHARED names ${path}, which is not a folder. Correct it or unset it.`);
}

export interface VectorTensor {
  name: string;
  shape: number[];
  dtype: 'float32' | 'int32' | 'bool' | 'float64';
  data: (number | string)[];
}

export interface Tolerance {
  rtol: number;
  atol: number;
}

/** For the name of a test that needs a dataset. */
export const NEEDS_DATASETS = 'needs datasets, TRIBUTARY_SHARED';

/** The path of a dataset, or undefined where it is not at hand. */
export function datasetPath(file: string): string | undefined {
  const path = given && resolve(given, 'data', file);
  return path && existsSync(path) ? path : undefined;
}

/** The cases of a file: those of TRIBUTARY_SHARED, or, where it has none such, those of the repository. */
export function readVectors<T>(file: string, isWanted: (one: T) => boolean = () => true): T[] {
  return firstVectors(given ? [given, own] : [own], file, isWanted);
}

/** Those of the first folder that has any. */
export function firstVectors<T>(
  folders: readonly string[],
  file: string,
  isWanted: (one: T) => boolean = () => true,
): T[] {
  for (const folder of folders) {
    const path = resolve(folder, 'vectors', file);
    if (!existsSync(path)) continue;
    const cases = (JSON.parse(readFileSync(path, 'utf8')) as T[]).filter(isWanted);
    if (cases.length > 0) return cases;
  }
  throw new Error(`${file} has no case of the kind that is asked for in ${folders.join(' or ')}.`);
}

export const numbers = (data: readonly (number | string)[]): number[] => data.map(Number);

/** The first element outside `atol + rtol * |want|`, or undefined. */
export function firstDifference(
  got: ArrayLike<number>,
  want: ArrayLike<number | string>,
  { rtol, atol }: Tolerance,
): string | undefined {
  if (got.length !== want.length) return `length ${got.length} instead of ${want.length}`;
  for (let i = 0; i < got.length; i++) {
    const expected = Number(want[i]);
    const actual = got[i]!;
    if (Object.is(actual, expected) || (Number.isNaN(actual) && Number.isNaN(expected))) continue;
    if (!(Math.abs(actual - expected) <= atol + rtol * Math.abs(expected)))
      return `[${i}] is ${actual}, expected ${expected}`;
  }
  return undefined;
}
