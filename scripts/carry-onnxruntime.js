// Part of `npm pack`: puts the library of ONNX Runtime into build/onnxruntime, which is part of the package. Users then need neither the
// package onnxruntime-node nor its install script, which downloads; see docs/decisions/019-onnx-runtime-in-the-package.md.
// The folder has the version in its name: src/compute/onnxruntime/library.ts compares it with one that is installed.
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath, URL } from 'node:url';

/** Platforms that the tests run on. */
const CARRIED = [{ target: 'linux-x64', file: join('linux', 'x64', 'libonnxruntime.so.1') }];

const root = fileURLToPath(new URL('..', import.meta.url));
const manifest = createRequire(import.meta.url).resolve('onnxruntime-node/package.json');
const { version } = JSON.parse(readFileSync(manifest, 'utf8'));
const carried = join(root, 'build', 'onnxruntime');

rmSync(carried, { recursive: true, force: true });
for (const { target, file } of CARRIED) {
  const library = join(dirname(manifest), 'bin', 'napi-v6', file);
  if (!existsSync(library)) {
    console.error(
      `error: ${library} is not there. Install the development dependencies with "npm ci", then try again.`,
    );
    process.exit(1);
  }
  const folder = join(carried, version, target);
  mkdirSync(folder, { recursive: true });
  copyFileSync(library, join(folder, 'libonnxruntime.so.1'));
  copyFileSync(join(root, 'licenses', 'onnxruntime.txt'), join(folder, 'LICENSE'));
}
