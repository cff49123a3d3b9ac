import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, test } from 'vitest';
import { OrtApi } from '../../src/compute/onnxruntime/api.ts';
import { findLibrary } from '../../src/compute/onnxruntime/library.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';

test('the library shipped with onnxruntime-node is found for this platform', () => {
  expect(existsSync(findLibrary())).toBe(true);
});

test('a failed call becomes an error with the words of the runtime, and a passed one does not', () => {
  const api = new OrtApi();
  const options = api.pointer((out) => api.call.createSessionOptions(out), 'create session options');
  // An empty configuration key is what ONNX Runtime itself refuses.
  expect(() => api.check(api.call.addSessionConfigEntry(options, '', 'x'), 'set an option')).toThrow(
    /failed to set an option: .*key/i,
  );
  api.check(api.call.addSessionConfigEntry(options, 'session.intra_op.allow_spinning', '0'), 'set an option');
  api.call.releaseSessionOptions(options);
});

test('a process that computes reports to nobody: it leaves no database, identifier or log', () => {
  const folder = mkdtempSync(join(tmpdir(), 'telemetry-'));
  try {
    const module = new URL('../../src/compute/index.ts', import.meta.url).href;
    const program = `const { OnnxRuntime } = await import(${JSON.stringify(module)}); OnnxRuntime.load();`;
    const env: NodeJS.ProcessEnv = { ...process.env, HOME: folder, XDG_CACHE_HOME: folder, TMPDIR: folder };
    // It is silent by itself in continuous integration.
    for (const name of ['ORT_DISABLE_TELEMETRY', 'CI', 'GITHUB_ACTIONS']) delete env[name];
    const { status, stderr } = spawnSync(
      process.execPath,
      ['--import', import.meta.resolve('tsx'), '--input-type=module', '--eval', program],
      { env, encoding: 'utf8' },
    );
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    const left = readdirSync(folder, { recursive: true }).map(String);
    expect(left.filter((name) => /onnxruntime|mat-debug|deviceid/i.test(name))).toEqual([]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

describe('of a library that is carried and one that is installed', () => {
  const folder = temporaryFolders();
  const at = { platform: 'linux', arch: 'x64' } as const;

  /** An installed package tributary, with a carried library of a version, and with onnxruntime-node of a version beside it. */
  function installation({ carried, installed }: { carried?: string; installed?: string }) {
    const modules = join(folder(), 'node_modules');
    const place = (file: string, content = '') => {
      mkdirSync(dirname(join(modules, file)), { recursive: true });
      writeFileSync(join(modules, file), content);
      return join(modules, file);
    };
    const files = {
      carried: carried && place(`tributary/build/onnxruntime/${carried}/linux-x64/libonnxruntime.so.1`),
      installed: installed && place('onnxruntime-node/bin/napi-v6/linux/x64/libonnxruntime.so.1'),
    };
    if (installed) place('onnxruntime-node/package.json', JSON.stringify({ version: installed }));
    const module = place('tributary/dist/compute/onnxruntime/library.js');
    return { files, from: pathToFileURL(module).href };
  }

  test.each([
    [{ carried: '1.30.0' }, 'carried'],
    [{ installed: '1.22.0' }, 'installed'],
    [{ carried: '1.30.0', installed: '1.30.0' }, 'installed'],
    [{ carried: '1.30.0', installed: '1.31.2' }, 'installed'],
    [{ carried: '1.30.0', installed: '2.0.0-dev.1' }, 'installed'],
    [{ carried: '1.30.0', installed: '1.9.3' }, 'carried'],
    [{ carried: '1.30.1', installed: '1.30.0' }, 'carried'],
  ] as const)('%j takes the one that is %s', (versions, which) => {
    const { files, from } = installation(versions);
    expect(findLibrary({ from, ...at })).toBe(files[which]);
  });

  test.each([
    ['linux', 'arm64'],
    ['darwin', 'arm64'],
    ['win32', 'x64'],
    ['freebsd', 'x64'],
  ] as const)('neither serves %s/%s, and what to install is named', (platform, arch) => {
    const { from } = installation({ carried: '1.30.0' });
    expect(() => findLibrary({ from, platform, arch })).toThrow(
      expect.objectContaining({
        code: 'MISSING_COMPONENT',
        message: expect.stringMatching(
          new RegExp(`for ${platform}/${arch}\\. Run "npm install onnxruntime-node"`),
        ) as string,
      }),
    );
  });
});
