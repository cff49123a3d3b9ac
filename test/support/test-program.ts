/**
 * How tests start a program: compiled, as `compile-programs.ts` left it before the tests, or from the sources where
 * that has not run. It starts nothing itself. Invariant: a program is compiled together with all that it imports, so
 * that a process never has the same module twice.
 */
import { existsSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** Both end in a slash. A program that is compiled itself is two folders deeper. */
export const packageFolder = fileURLToPath(
  new URL(import.meta.url.endsWith('.ts') ? '../../' : '../../../../', import.meta.url),
);
export const compiledFolder = join(packageFolder, 'build/programs/');

export function compiledName(path: string): string {
  return path.replace(/\.ts$/, '.js');
}

/** The arguments by which Node runs the program that is in this TypeScript file. */
export function programOf(path: string): string[] {
  const compiled = compiledPath(path);
  return compiled === undefined ? ['--import', import.meta.resolve('tsx'), path] : [compiled];
}

/** The address (file:) of a module, for what is compiled and imports it: the sources, or a program of `programOf`. */
export function moduleOf(address: string): string {
  const compiled = compiledPath(fileURLToPath(address));
  return compiled === undefined ? address : pathToFileURL(compiled).href;
}

/** The address of a module as `startThread` takes it. */
export function threadOf(address: string): URL {
  return new URL(moduleOf(address).replace(/\.[jt]s$/, ''));
}

export function compiledPath(path: string): string | undefined {
  const compiled = join(compiledFolder, compiledName(relative(packageFolder, path)));
  return compiled.startsWith(compiledFolder) && existsSync(compiled) ? compiled : undefined;
}
