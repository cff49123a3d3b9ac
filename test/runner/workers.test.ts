/** The workers of a script: how they are started and ended, here and elsewhere, and what a script may ask of them. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, expect, it, vi } from 'vitest';
import { removeStaleSegments } from '../../src/memory/index.ts';
import { fit } from '../../src/runner/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { circlesModel, circlesRun } from './circles.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { programOf } from '../support/test-program.ts';
import { segmentFiles } from '../support/segment-files.ts';

const PROGRAM = new URL('./workers-program.ts', import.meta.url);
const folder = temporaryFolders();
const started = new Set<ChildProcess>();

afterEach(() => {
  for (const child of started) child.kill('SIGKILL');
  started.clear();
});

interface Started {
  readonly child: ChildProcess;
  /** The next thing the first process says. */
  readonly said: () => Promise<Record<string, unknown>>;
  readonly ended: Promise<{ readonly code: number | null; readonly errors: string }>;
}

interface StartOptions {
  readonly program?: string;
  readonly path?: string;
  readonly cwd?: string;
}

function start(name: string, given: object = {}, options: StartOptions = {}): Started {
  const { program = fileURLToPath(PROGRAM), path, cwd } = options;
  const child = spawn(process.execPath, [...programOf(program), name, JSON.stringify(given)], {
    stdio: ['ignore', 'pipe', 'pipe'],
    // A group of its own, as a terminal gives to a command.
    detached: true,
    ...(path === undefined ? {} : { env: { ...process.env, PATH: `${path}:${process.env['PATH']}` } }),
    ...(cwd === undefined ? {} : { cwd }),
  });
  started.add(child);
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => (errors += text));
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  return {
    child,
    said: async () => {
      const line = await lines.next();
      if (line.done) throw new Error(`the script has said nothing more; errors: ${errors}`);
      return JSON.parse(line.value) as Record<string, unknown>;
    },
    ended: once(child, 'close').then(([code]) => {
      started.delete(child);
      return { code: code as number | null, errors };
    }),
  };
}

function segmentsOf(pids: readonly number[]): string[] {
  return segmentFiles().filter((name) => pids.some((pid) => name.includes(`-${pid}-`)));
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

interface Refusal {
  readonly code: string;
  readonly message: string;
}

it('go on when another runner is refused, leave nothing behind, and are not started again to come to the first call', async () => {
  const checkpointDirectory = folder();
  const other = await fit(circlesModel(), { ...circlesRun, seed: 6, maxSteps: 1, checkpointDirectory });
  await other.close();
  const { said, ended, child } = start('side by side', { folder: checkpointDirectory });
  const { refused, workers, ...rest } = (await said()) as { refused: Refusal[]; workers: number[] };
  expect(rest).toEqual({ step: 6, replicas: 1 });
  const invalid = 'INVALID_ARGUMENT';
  expect(refused.map(({ code }) => code)).toEqual([invalid, 'CHECKPOINT_MISMATCH', invalid, invalid]);
  expect(refused[0]!.message).toMatch(/lr of optimizer .adam. is/);
  expect(refused[2]!.message).toMatch(/compareEverySteps is 6 on worker 1 and 5 on worker 0/);
  expect(refused[3]!.message).toMatch(/fit ends the further workers, and 1 runner\(s\) are open/);
  const again = (await said()) as unknown as Refusal;
  expect(again.code).toBe(invalid);
  expect(again.message).toMatch(/has ended its workers, and asks for 2 again.*process of its own/);
  expect(await ended).toEqual({ code: 0, errors: '' });
  expect(workers).toHaveLength(1);
  expect(segmentsOf([child.pid!, ...workers])).toEqual([]);
}, 110_000);

it('are started again by a script that has lost one, and end with the first process, though it is killed', async () => {
  const { said, ended, child } = start('again after a loss', { folder: folder() });
  const [before, loss, after] = [await said(), await said(), await said()];
  expect(loss).toMatchObject({ code: 'PEER_LOST' });
  expect(after).not.toEqual(before);
  child.kill('SIGKILL');
  const { workers } = after as { workers: number[] };
  await vi.waitFor(() => expect(workers.filter(isRunning)).toEqual([]), { timeout: 30_000, interval: 50 });
  await ended;
  removeStaleSegments();
}, 110_000);

it('run elsewhere by ssh, whatever is in names and arguments, and stop by agreement when ctrl-C is pressed', async () => {
  // What a server of ssh does: a shell reads all words as one text, in another folder and with little environment.
  const path = folder();
  const ssh = join(path, 'ssh');
  writeFileSync(
    ssh,
    `#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\nshift\ncd / && exec env -i sh -c "$*"\n`,
  );
  chmodSync(ssh, 0o755);
  const cwd = join(folder(), "it's a folder");
  mkdirSync(cwd);
  const program = join(cwd, 'my script.mts');
  writeFileSync(program, `import ${JSON.stringify(PROGRAM.href)};\n`);
  const on = { machines: [{ name: 'here', address: '127.0.0.1' }, { name: 'elsewhere' }] };
  const { said, ended, child } = start('until stopped', { on, cwd }, { program, path, cwd });
  await said();
  process.kill(-child.pid!, 'SIGINT');
  let last = await said();
  while (last['type'] !== 'end') last = await said();
  expect(last).toEqual({ type: 'end', finished: false, workers: 2 });
  expect(await ended).toEqual({ code: 0, errors: '' });
}, 110_000);

it.skipIf(!hasOpenssl)('encrypts all that listens when resources name certificates', async () => {
  const { files } = makeCertificates(folder(), 'ours');
  const { said, ended } = start('with TLS', { on: { workers: 2, transport: 'tcp', tls: files } });
  // The scheduler, the transport, and the server of this machine.
  expect(await said()).toEqual({ step: 1, tls: [true, true, true] });
  expect(await said()).toEqual({ code: 'none', message: '' });
  expect(await ended).toMatchObject({ code: 0 });
});

it('names a file of a certificate that is not there', async () => {
  const tls = { key: 'no-key.pem', cert: 'no-cert.pem', ca: 'no-ca.pem' };
  const { said } = start('with TLS', { on: { workers: 2, tls } });
  expect(await said()).toMatchObject({
    code: 'FILE_NOT_FOUND',
    message: expect.stringMatching(/tls\.key is .*no-key\.pem/) as string,
  });
});
