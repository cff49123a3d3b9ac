/**
 * Finds and opens the ONNX Runtime library that the npm package `onnxruntime-node` ships. Its JavaScript wrapper is
 * never loaded: it copies every output and refuses shared memory, which is why the C API is called instead.
 * Invariant: what comes back is an open library, or a MISSING_COMPONENT error that says what to install.
 */
import { existsSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import koffi from 'koffi';
import { UsageError } from '../../base/index.ts';

const fileNames: Partial<Record<NodeJS.Platform, string>> = {
  linux: 'libonnxruntime.so.1',
  darwin: 'libonnxruntime.1.dylib',
  win32: 'onnxruntime.dll',
};

/** The path of the shared library for this platform and processor. */
export function findLibrary(): string {
  const fileName = fileNames[process.platform];
  const target = `${process.platform}/${process.arch}`;
  let root: string;
  try {
    root = path.dirname(createRequire(import.meta.url).resolve('onnxruntime-node/package.json'));
  } catch (cause) {
    throw missing('The package onnxruntime-node is not installed', target, cause);
  }
  const bin = path.join(root, 'bin');
  const versions = existsSync(bin) ? readdirSync(bin).filter((name) => name.startsWith('napi-v')) : [];
  for (const version of versions) {
    const file = path.join(bin, version, process.platform, process.arch, fileName ?? '');
    if (fileName !== undefined && existsSync(file)) return file;
  }
  throw missing(`The package onnxruntime-node has no library for ${target}`, target);
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
    `${problem}. Run "npm install onnxruntime-node" on a platform it supports (Linux, macOS or Windows; x64 or arm64).`,
    { component: 'onnxruntime-node', target },
    cause,
  );
}
