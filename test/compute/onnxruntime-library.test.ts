import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { OrtApi } from '../../src/compute/onnxruntime/api.ts';
import { findLibrary } from '../../src/compute/onnxruntime/library.ts';

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
