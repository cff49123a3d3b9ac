/**
 * Lock step by a plan on `tributary server` processes, two of them: tables that live on servers only
 * have the bits of servers in the processes of workers; a service that has values of an earlier run
 * is refused, replaced or gone on from.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setImmediate as yieldToEvents } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { FitEvent, FitOptions, Workers } from '../../src/runner/index.ts';
import { start, type Program } from '../cli/program.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { programOf } from '../support/test-program.ts';
import type { WordsOptions } from './words.ts';

const PROGRAM = fileURLToPath(new URL('./server-tables-program.ts', import.meta.url));
const folder = temporaryFolders();
const FILES = ['model.safetensors', 'optimizer.safetensors'];
const operations = { limits: true, clips: true, decays: true, averages: true };
const SERVICES = ['first', 'second'];
const DEADLINE_MS = 600_000;

type Options = Omit<Partial<FitOptions>, 'on'> & { readonly on?: Workers; readonly model?: WordsOptions };

interface Outcome {
  readonly checkpointPath: string;
  readonly events: readonly FitEvent[];
}

async function run(options: Options): Promise<{ code: number; stderr: string; outcome: Outcome }> {
  const given = { model: operations, epochs: 2, serverTables: ['words'], ...options };
  const child = spawn(process.execPath, [...programOf(PROGRAM), JSON.stringify(given)]);
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (text: Buffer) => (stdout += text.toString()));
  child.stderr.on('data', (text: Buffer) => (stderr += text.toString()));
  const [code] = (await once(child, 'close')) as [number];
  return { code, stderr, outcome: (code === 0 ? JSON.parse(stdout) : {}) as Outcome };
}

async function trained(options: Options): Promise<Outcome> {
  const { code, stderr, outcome } = await run(options);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return outcome;
}

function expectSameFiles(actual: string, expected: string): void {
  expect(basename(actual)).toBe(basename(expected));
  for (const file of FILES) {
    expect(readFileSync(join(actual, file)).equals(readFileSync(join(expected, file))), file).toBe(true);
  }
}

/** Two servers with the same services, and how to train on one of these. */
async function serve(cwd: string): Promise<{ programs: Program[]; on: (service: string) => Workers }> {
  const services = SERVICES.flatMap((name) => ['--service', name]);
  const programs: Program[] = [];
  const servers: string[] = [];
  // The second one finds the nonces.
  for (let i = 0; i < 2; i++) {
    const program = start(['server', '--json', '--port', '0', ...services], cwd);
    const { server } = await program.waitFor('listening');
    programs.push(program);
    servers.push(server as string);
  }
  const on = (namespace: string): Workers => ({
    ...{ workers: 2, strategy: 'parallax', merging: 'single', servers },
    access: { namespace, nonceFile: join(cwd, 'nonces', `${namespace}.nonce`) },
  });
  return { programs, on };
}

describe.skipIf(!hasSharedMemory())('lock step on servers of their own', { timeout: DEADLINE_MS }, () => {
  it('has the bits of servers in workers, and a service is gone on from, replaced or refused', async () => {
    const { on } = await serve(folder());
    const inWorkers = { workers: 2, servers: 2, strategy: 'parallax', merging: 'single' } as const;
    const expected = await trained({ on: inWorkers, checkpointDirectory: folder() });

    const stopped = folder();
    await trained({ on: on('first'), checkpointDirectory: stopped, maxSteps: 13 });
    const refused = await run({ on: on('first'), checkpointDirectory: folder() });
    expect(refused.code).not.toBe(0);
    expect(refused.stderr).toMatch(/service 'first' on .* has the values of an earlier training/);
    const resumed = await trained({ on: on('first'), checkpointDirectory: stopped, resume: true });
    expect(resumed.events[0]).toMatchObject({ type: 'resumed', step: 13 });
    expectSameFiles(resumed.checkpointPath, expected.checkpointPath);

    const again = await trained({ on: on('first'), checkpointDirectory: folder(), overwrite: true });
    expectSameFiles(again.checkpointPath, expected.checkpointPath);
    const other = await trained({ on: on('second'), checkpointDirectory: folder() });
    expectSameFiles(other.checkpointPath, expected.checkpointPath);
  });

  it('ends with the address of a server that was killed', async () => {
    const { programs, on } = await serve(folder());
    const checkpointDirectory = folder();
    const running = run({ on: on('first'), checkpointDirectory, epochs: 1_000_000 });
    const hasTrained = () => readdirSync(checkpointDirectory).some((name) => name.startsWith('step-'));
    while (!hasTrained()) await yieldToEvents();
    const { port } = await programs[1]!.waitFor('listening');
    programs[1]!.child.kill('SIGKILL');
    const { code, stderr } = await running;
    expect(code).not.toBe(0);
    expect(stderr).toContain(`127.0.0.1:${String(port)}`);
  });
});
