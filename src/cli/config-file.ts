/**
 * Finds and reads what `tributary train` is given: a TypeScript, JavaScript or JSON configuration, or the folder of an
 * earlier run. A TypeScript file may import `tributary`; it gets this very package, whatever is installed beside it.
 * Invariants: anything unreadable is FILE_NOT_FOUND or INVALID_CONFIG with the file's name; only a file that the caller names is
 * run, and what a JSON file names only with the caller's trust.
 */
import { readFileSync, statSync } from 'node:fs';
import { basename, extname, join, resolve } from 'node:path';
import { createJiti } from 'jiti';
import { TributaryError, UsageError } from '../base/index.ts';
import type { ModelFunction, ResolvedConfig } from './config.ts';
import { checkConfig } from './config-check.ts';
import { isRecord } from './config-schema.ts';
import { isCode, refuseConfig, trustedModelFile, type Trust } from './run-trust.ts';

export const CONFIG_FILE = 'config.json';
const CODE = 'TypeScript or JavaScript';
const EXTENSIONS = ['.ts', '.mts', '.js', '.mjs', '.json'];

/** Whether a word means a file or folder rather than the name of an example. */
export function looksLikePath(word: string): boolean {
  return EXTENSIONS.includes(extname(word)) || /[/\\]/.test(word);
}

export async function loadConfigFile(given: string, cwd: string, trust: Trust = {}): Promise<ResolvedConfig> {
  const path = resolve(cwd, given);
  const found = statSync(path, { throwIfNoEntry: false });
  if (found?.isDirectory()) {
    const config = await loadConfigFile(join(path, CONFIG_FILE), cwd, trust);
    // A run that was moved or copied goes on where it is now, not where it was.
    return config.output === undefined ? config : { ...config, output: path };
  }
  if (!found?.isFile()) {
    throw new UsageError('FILE_NOT_FOUND', `There is no configuration ${path}. Check the path.`, { path });
  }
  if (!EXTENSIONS.includes(extname(path))) {
    throw new UsageError(
      'INVALID_CONFIG',
      `${path} is no configuration: expected a file ending in ${EXTENSIONS.join(', ')}. Rename it or give another.`,
      { path },
    );
  }
  if (!isCode(path)) return attachModelFunction(readStoredConfig(path), path, trust);
  return checkConfig(await runModule(path), { source: path, defaultName: defaultName(path) });
}

/** A configuration in JSON as it is stored: a model function is only named. Runs nothing. */
export function readStoredConfig(path: string): ResolvedConfig {
  return checkConfig(readJson(path), { source: path, defaultName: defaultName(path) });
}

/** `tributary.config.ts` gives `tributary`. */
function defaultName(path: string): string {
  const name = basename(path, extname(path)).replace(/\.config$/, '');
  return name.replace(/[^\w.-]/gu, '-') || 'run';
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as unknown;
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(
      'INVALID_CONFIG',
      `${path} is not readable JSON: ${reason}. Correct the file.`,
      { path },
      cause,
    );
  }
}

async function runModule(path: string): Promise<unknown> {
  // The address is computed: this file must not depend on the package's own entry, which exports `defineConfig` of it.
  const entry = new URL(`../index${extname(import.meta.url)}`, import.meta.url).href;
  const tributary = (await import(entry)) as Record<string, unknown>;
  try {
    const jiti = createJiti(import.meta.url, {
      fsCache: false,
      interopDefault: false,
      moduleCache: false,
      virtualModules: { tributary },
    });
    const loaded = await jiti.import<Record<string, unknown>>(path);
    if (isRecord(loaded['default'])) return loaded['default'];
    throw new UsageError(
      'INVALID_CONFIG',
      `${path} has no default export that is an object. Write: export default defineConfig({ ... })`,
      { path },
    );
  } catch (cause) {
    if (cause instanceof TributaryError) throw cause;
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(
      'INVALID_CONFIG',
      `${path} cannot be loaded: ${reason}. Correct the file.`,
      { path },
      cause,
    );
  }
}

/** A stored configuration names the file of its model function; the function comes from there. */
async function attachModelFunction(
  config: ResolvedConfig,
  path: string,
  trust: Trust,
): Promise<ResolvedConfig> {
  const model: object = config.model;
  if (!('config' in model)) {
    refuseConfig(path, trust);
    return config;
  }
  const file = trustedModelFile(String(model.config), path, trust);
  const origin = statSync(file, { throwIfNoEntry: false });
  if (!origin?.isFile() || !isCode(file)) {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `The model of ${path} is a function in ${file}, which is not there or no ${CODE}. Put the file back, or give another.`,
      { path, file },
    );
  }
  const value = await runModule(file);
  const build = isRecord(value) ? value['model'] : undefined;
  if (typeof build !== 'function') {
    throw new UsageError(
      'INVALID_CONFIG',
      `The model of ${path} is a function in ${file}, but the field model there is none. Restore it, or give another.`,
      { path, file },
    );
  }
  return { ...config, model: { config: file, build: build as ModelFunction } };
}
