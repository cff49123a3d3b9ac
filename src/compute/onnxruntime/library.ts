/**
 * Finds and opens the library of ONNX Runtime. A published package carries it (`build/onnxruntime`, put there by
 * `scripts/carry-onnxruntime.js`) for the platforms it is tested on. The npm package `onnxruntime-node` has it for more, and for CUDA:
 * where that is installed and is not older, its library is taken. Its JavaScript wrapper is never loaded: it copies every output and refuses
 * shared memory, which is why the C API is called instead.
 * Invariant: what comes back is an open library, or a MISSING_COMPONENT error that says what to install.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import koffi from 'koffi';
import { UsageError } from '../../base/index.ts';

const fileNames: Partial<Record<NodeJS.Platform, string>> = {
  linux: 'libonnxruntime.so.1',
  darwin: 'libonnxruntime.1.dylib',
  win32: 'onnxruntime.dll',
};

export interface LibraryPlace {
  /** Address of a module three folders below the root of the package that is asked. Default: this one. */
  readonly from?: string;
  /** Default: that of the process. */
  readonly platform?: NodeJS.Platform;
  /** Default: that of the process. */
  readonly arch?: string;
}

interface Library {
  readonly file: string;
  readonly version: string;
}

/** The path of the shared library for this platform and processor. */
export function findLibrary(place: LibraryPlace = {}): string {
  const { from = import.meta.url, platform = process.platform, arch = process.arch } = place;
  const where = { from, platform, arch };
  const [carried, installed] = [carriedLibrary(where), installedLibrary(where)];
  // An older one may be there for another package, and has not been tested with this one.
  const isNewer = installed && (!carried || compareVersions(installed.version, carried.version) >= 0);
  const chosen = isNewer ? installed : carried;
  if (chosen) return chosen.file;
  throw missing(`There is no library of ONNX Runtime for ${platform}/${arch}`, `${platform}/${arch}`);
}

type Where = Required<LibraryPlace>;

/** That of this package; a clone has none until it was packed. */
function carriedLibrary({ from, platform, arch }: Where): Library | undefined {
  const root = fileURLToPath(new URL('../../../build/onnxruntime', from));
  const found = foldersOf(root).map((version) => ({
    version,
    file: path.join(root, version, `${platform}-${arch}`, fileNames[platform] ?? ''),
  }));
  return found.find(({ file }) => isLibrary(file, platform));
}

/** That of onnxruntime-node, as seen from here. */
function installedLibrary({ from, platform, arch }: Where): Library | undefined {
  let manifest: string;
  let version: string;
  try {
    manifest = createRequire(from).resolve('onnxruntime-node/package.json');
    ({ version } = JSON.parse(readFileSync(manifest, 'utf8')) as { version: string });
  } catch {
    return undefined;
  }
  const bin = path.join(path.dirname(manifest), 'bin');
  const found = foldersOf(bin)
    .filter((name) => name.startsWith('napi-v'))
    .map((name) => ({ version, file: path.join(bin, name, platform, arch, fileNames[platform] ?? '') }));
  return found.find(({ file }) => isLibrary(file, platform));
}

function foldersOf(folder: string): string[] {
  return existsSync(folder) ? readdirSync(folder) : [];
}

function isLibrary(file: string, platform: NodeJS.Platform): boolean {
  return fileNames[platform] !== undefined && existsSync(file);
}

/** Below 0 if the first is older; what follows the numbers does not count. */
function compareVersions(a: string, b: string): number {
  const numbers = (version: string) => version.split(/[.-]/, 3).map((part) => Number.parseInt(part, 10) || 0);
  const [mine, theirs] = [numbers(a), numbers(b)];
  return mine.map((part, i) => part - (theirs[i] ?? 0)).find((difference) => difference !== 0) ?? 0;
}

export function openLibrary(): ReturnType<typeof koffi.load> {
  const file = findLibrary();
  switchTelemetryOff();
  try {
    return koffi.load(file);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw missing(`The library ${file} cannot be opened (${reason})`, file, cause);
  }
}

/**
 * Since 1.29 ONNX Runtime reports to its makers from its first moment on, before its own call to stop that can be made, keeps a
 * database in the home folder that processes wait for each other at, and may never end at the end of the process. It looks for this
 * variable when it starts; set in native code, as threads of Node have a copy of the environment. A user's own setting stays.
 */
function switchTelemetryOff(): void {
  if (process.platform === 'win32') return;
  const setenv = koffi.load(null).func('int setenv(const char *name, const char *value, int overwrite)');
  setenv('ORT_DISABLE_TELEMETRY', '1', 0);
}

function missing(problem: string, target: string, cause?: unknown): UsageError {
  return new UsageError(
    'MISSING_COMPONENT',
    `${problem}. Run "npm install onnxruntime-node"; it has one for Linux and Windows (x64, arm64) and macOS (arm64).`,
    { component: 'onnxruntime-node', target },
    cause,
  );
}
