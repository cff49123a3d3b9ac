/**
 * Has tests import the sources as `compile-programs.ts` compiled them: Node then loads them by itself, and the threads
 * and processes that they start are compiled as well, as in the package that users install. Tests and what they import
 * of `test` stay TypeScript. Invariant: all of a test's imports of `src` go there, so that no module is there twice.
 */
import { dirname, resolve } from 'node:path';
import type { Plugin } from 'vitest/config';
import { compiledPath, packageFolder } from './test-program.ts';

/** What is compiled needs nothing of vitest. */
export const COMPILED_MODULES = /\/build\/programs\/.*\.js$/;

export function compiledSources(): Plugin {
  return {
    name: 'compiled-sources',
    enforce: 'pre',
    resolveId(source, importer) {
      if (importer === undefined || !source.startsWith('.') || !source.endsWith('.ts')) return undefined;
      const path = resolve(dirname(importer), source);
      return path.startsWith(`${packageFolder}src/`) ? compiledPath(path) : undefined;
    },
  };
}
