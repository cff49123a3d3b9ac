/** The script `bin/tributary.js`, copied into a checkout of its own whose build is a few lines. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { temporaryFolders } from '../data/temporary-folder.ts';

const folder = temporaryFolders();
const script = fileURLToPath(new URL('../../bin/tributary.js', import.meta.url));

function checkout(build: string): string {
  const root = folder();
  mkdirSync(join(root, 'src', 'deep'), { recursive: true });
  mkdirSync(join(root, 'bin'));
  cpSync(script, join(root, 'bin', 'tributary.js'));
  writeFileSync(join(root, 'src', 'deep', 'a.ts'), '');
  writeFileSync(join(root, 'tsconfig.build.json'), '{}');
  writeFileSync(join(root, 'build.js'), build);
  writeFileSync(
    join(root, 'package.json'),
    JSON.stringify({ type: 'module', scripts: { build: 'node build.js' } }),
  );
  return root;
}

const good = `import { mkdirSync, writeFileSync } from 'node:fs';
console.log('noise of the build');
mkdirSync('dist/cli', { recursive: true });
mkdirSync('build', { recursive: true });
writeFileSync('build/kernels.wasm', '');
writeFileSync('dist/cli/main.js', 'console.log(JSON.stringify(process.argv.slice(2))); process.exitCode = 3;');`;

function start(root: string) {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [join(root, 'bin', 'tributary.js'), 'train', 'x y'],
    {
      cwd: root,
      encoding: 'utf8',
    },
  );
  return { status, stdout, stderr };
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

const started = { status: 3, stdout: '["train","x y"]\n' };

describe('bin/tributary.js', () => {
  test('builds a checkout once, without its noise, and again when a source is newer', () => {
    const root = checkout(good);
    expect(start(root)).toEqual({ ...started, stderr: 'building once, about half a minute…\n' });
    expect(start(root)).toEqual({ ...started, stderr: '' });
    const later = new Date(Date.now() + 10_000);
    utimesSync(join(root, 'src', 'deep', 'a.ts'), later, later);
    expect(start(root)).toEqual({ ...started, stderr: 'building once, about half a minute…\n' });
  });

  test('builds again when the kernels are missing', () => {
    const root = checkout(good);
    start(root);
    rmSync(join(root, 'build'), { recursive: true });
    expect(start(root).stderr).toBe('building once, about half a minute…\n');
    expect(existsSync(join(root, 'build', 'kernels.wasm'))).toBe(true);
  });

  test('shows what a failed build said and what to do', () => {
    const { status, stderr, stdout } = start(checkout('console.log("the reason"); process.exit(1);'));
    expect(status).toBe(1);
    expect(stdout).toBe('');
    expect(stderr).toContain('the reason');
    expect(stderr).toContain('npm ci');
  });

  test.each(['SIGINT', 'SIGTERM'] as const)('ends the build with itself on %s', async (signal) => {
    const root = checkout(
      `import { renameSync, writeFileSync } from 'node:fs';
      writeFileSync('pid.new', String(process.pid));
      renameSync('pid.new', 'pid');
      setInterval(() => undefined, 1000);`,
    );
    const child = spawn(process.execPath, [join(root, 'bin', 'tributary.js'), 'train'], { stdio: 'ignore' });
    const ended = once(child, 'exit');
    await expect.poll(() => existsSync(join(root, 'pid')), { timeout: 60_000 }).toBe(true);
    const builder = Number(readFileSync(join(root, 'pid'), 'utf8'));
    try {
      child.kill(signal);
      expect(await ended).toEqual([null, signal]);
      await expect.poll(() => isRunning(builder), { timeout: 20_000 }).toBe(false);
    } finally {
      if (isRunning(builder)) process.kill(builder, 'SIGKILL');
    }
  });

  test('starts an installed package, which has no sources, at once', () => {
    const root = checkout(good);
    start(root);
    rmSync(join(root, 'src'), { recursive: true });
    rmSync(join(root, 'build'), { recursive: true });
    expect(start(root)).toEqual({ ...started, stderr: '' });
  });
});
