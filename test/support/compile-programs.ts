/**
 * Compiles the sources and the programs of the tests once, before the tests: a process that a test starts then loads
 * plain JavaScript, in less than half the time of TypeScript, and so does each of its threads; tests import the sources
 * from here, too (`compiled-sources.ts`). No types are checked here, and tests themselves are not compiled. Invariants:
 * the folder mirrors the package, so that every relative path holds in it; only what has changed is written; a file
 * appears whole or not at all, so runs side by side may share it.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, statSync, symlinkSync } from 'node:fs';
import { utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import type { TestProject } from 'vitest/node';
import { compiledFolder, compiledName, packageFolder } from './test-program.ts';

const FOLDERS = ['src', 'test'];
/** AssemblyScript, which is no TypeScript, and tests, which no program imports. */
const NOT_COMPILED = /^src\/kernels\/assembly\/|\.test\.ts$/;
/** What else the sources read by a path relative to themselves. */
const LINKED = ['package.json', 'build/kernels.wasm'];
const SETTINGS = join(packageFolder, 'tsconfig.json');
/** What is compiled by other rules is compiled again. */
const RULES = [SETTINGS, fileURLToPath(import.meta.url)];

export default function setup(project: TestProject): void {
  compilePrograms();
  project.onTestsRerun(compilePrograms);
}

export function compilePrograms(): void {
  for (const path of LINKED) link(path);
  const rulesChanged = Math.max(...RULES.map(changedMs));
  const isCurrent = (target: string, changed: number): boolean =>
    existsSync(target) && changedMs(target) === changed && statSync(target).ctimeMs >= rulesChanged;
  for (const path of FOLDERS.flatMap(filesOf)) {
    const source = join(packageFolder, path);
    // Known before it is read: a change in between is compiled by the next run.
    const changed = changedMs(source);
    const target = join(compiledFolder, compiledName(path));
    if (isCurrent(target, changed)) continue;
    const text = readFileSync(source, 'utf8');
    writeWhole(target, path.endsWith('.ts') ? compile(text, source) : text, changed);
  }
}

function filesOf(folder: string): string[] {
  const entries = readdirSync(join(packageFolder, folder), { recursive: true, withFileTypes: true });
  return entries
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(packageFolder.length))
    .filter((path) => !NOT_COMPILED.test(path));
}

/** With a map, so that what fails in a test is shown where it is written. */
export function compile(text: string, fileName: string): string {
  const { compilerOptions: written } = ts.readConfigFile(SETTINGS, (path) => readFileSync(path, 'utf8'))
    .config as { readonly compilerOptions: object };
  const { options } = ts.convertCompilerOptionsFromJson(written, packageFolder);
  // Alone, a file does not know that it is part of a package of ECMAScript modules.
  const compilerOptions = { ...options, module: ts.ModuleKind.ESNext, noEmit: false, sourceMap: true };
  const { outputText, sourceMapText } = ts.transpileModule(text, { fileName, compilerOptions });
  const map = JSON.stringify({ ...(JSON.parse(sourceMapText!) as object), sources: [fileName] });
  const inline = `data:application/json;base64,${Buffer.from(map).toString('base64')}`;
  return outputText.replace(/(?<=\n\/\/# sourceMappingURL=).*\s*$/, inline);
}

/** Whole milliseconds, which can be written back. */
function changedMs(path: string): number {
  return Math.round(statSync(path).mtimeMs);
}

/** The time of the source is that of what was made of it, so that any other source, also an older one, is seen. */
function writeWhole(target: string, text: string, changed: number): void {
  const unfinished = `${target}.${process.pid}`;
  mkdirSync(dirname(target), { recursive: true });
  writeFileSync(unfinished, text);
  utimesSync(unfinished, changed / 1000, changed / 1000);
  renameSync(unfinished, target);
}

function link(path: string): void {
  const target = join(compiledFolder, path);
  mkdirSync(dirname(target), { recursive: true });
  try {
    symlinkSync(join(packageFolder, path), target);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}
