/** The folder of shared oracle vectors and datasets; tests that need it are skipped where it is absent. */
import { existsSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { packageFolder } from './test-program.ts';

export const sharedFolder = resolve(packageFolder, process.env.TRIBUTARY_SHARED ?? '../shared');

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

export function hasShared(path: string): boolean {
  return existsSync(resolve(sharedFolder, path));
}

export function readVectors<T>(file: string): T[] {
  return JSON.parse(readFileSync(resolve(sharedFolder, 'vectors', file), 'utf8')) as T[];
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
