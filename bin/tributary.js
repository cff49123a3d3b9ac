#!/usr/bin/env node
/**
 * Starts the program. In a source checkout, where install scripts do not run, it builds first when `dist` is missing or
 * older than the sources; an installed package has no sources and starts at once.
 */
import { spawn } from 'node:child_process';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath, URL } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const program = join(root, 'dist', 'cli', 'main.js');
const isCheckout = existsSync(join(root, 'src')) && existsSync(join(root, 'tsconfig.build.json'));

/** The newest change below a folder or of a file, in milliseconds. */
function newestChange(path) {
  const found = statSync(path, { throwIfNoEntry: false });
  if (!found) return 0;
  if (!found.isDirectory()) return found.mtimeMs;
  return readdirSync(path).reduce((newest, name) => Math.max(newest, newestChange(join(path, name))), 0);
}

function isStale() {
  const outputs = [program, join(root, 'build', 'kernels.wasm')];
  if (!outputs.every((file) => existsSync(file))) return true;
  const sources = ['src', 'tsconfig.json', 'tsconfig.build.json', 'asconfig.json', 'package.json'];
  return Math.max(...sources.map((name) => newestChange(join(root, name)))) > statSync(program).mtimeMs;
}

/** npm as it started us, else the one beside node, else the one of the path. */
function npmCommand() {
  const folder = dirname(process.execPath);
  const scripts = [
    process.env.npm_execpath,
    join(folder, '..', 'lib', 'node_modules', 'npm', 'bin', 'npm-cli.js'),
    join(folder, 'node_modules', 'npm', 'bin', 'npm-cli.js'),
  ];
  const script = scripts.find((file) => file?.endsWith('npm-cli.js') && existsSync(file));
  return script
    ? { file: process.execPath, args: [script], shell: false }
    : { file: 'npm', args: [], shell: process.platform === 'win32' };
}

/** Runs the build to its end. A signal to this process ends npm and all that npm started, then this process. */
async function build() {
  const { file, args, shell } = npmCommand();
  const hasGroups = process.platform !== 'win32';
  const child = spawn(file, [...args, 'run', 'build'], {
    ...{ cwd: root, shell, detached: hasGroups, stdio: ['ignore', 'pipe', 'pipe'] },
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => (output += text));
  }
  let stoppedBy;
  const stop = (signal) => {
    // Whoever asks twice does not want to wait.
    const sent = stoppedBy === undefined ? signal : 'SIGKILL';
    stoppedBy ??= signal;
    if (child.pid === undefined) return;
    try {
      if (hasGroups) process.kill(-child.pid, sent);
      else child.kill(sent);
    } catch (error) {
      if (error.code !== 'ESRCH') throw error;
    }
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'];
  for (const signal of signals) process.on(signal, stop);
  const status = await new Promise((resolve) => {
    child.once('error', (error) => {
      output += `${error.message}\n`;
      resolve(1);
    });
    child.once('close', resolve);
  });
  for (const signal of signals) process.off(signal, stop);
  if (stoppedBy !== undefined) {
    process.kill(process.pid, stoppedBy);
    await pause(1000);
  }
  return { status, output };
}

if (isCheckout && isStale()) {
  console.error('building once, about half a minute…');
  const { status, output } = await build();
  if (status !== 0) {
    console.error(output);
    console.error(
      'error: the build failed. Install the development dependencies with "npm ci", then try again.',
    );
    process.exit(1);
  }
}

await import(new URL('../dist/cli/main.js', import.meta.url).href);
