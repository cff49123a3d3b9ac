/**
 * A table of 1,000,000 rows of 512, which is 2 GB, or 6 GB with Adam, is trained, evaluated, written to a
 * checkpoint and resumed by workers whose own memory stays below 600 MB. Needs 15 GB of shared memory and
 * of disk, and some minutes: it runs where TRIBUTARY_LARGE_TABLES is set, as in
 * `TRIBUTARY_LARGE_TABLES=1 npx vitest run test/runner/large-table.test.ts`; with fewer rows always.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import type { FitEvent, FitOptions, Workers } from '../../src/runner/index.ts';
import { start, type Program } from '../cli/program.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { programOf } from '../support/test-program.ts';

const PROGRAM = fileURLToPath(new URL('./large-table-program.ts', import.meta.url));
const folder = temporaryFolders();
const MB = 1e6;
const MOST_OWN_BYTES = 600 * MB;

/** Resident minus shared, of one process. */
function ownBytes(pid: number): number {
  try {
    const line = /RssAnon:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
    return 1024 * Number(line?.[1] ?? 0);
  } catch {
    return 0;
  }
}

function childrenOf(pid: number): number[] {
  try {
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8');
    return children.trim().split(' ').filter(Boolean).map(Number);
  } catch {
    return [];
  }
}

interface Outcome {
  readonly events: readonly FitEvent[];
  /** Of each worker. */
  readonly peaks: readonly number[];
}

async function train(options: Partial<FitOptions> & { readonly rows: number }): Promise<Outcome> {
  const child = spawn(process.execPath, [...programOf(PROGRAM), JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const peaks = new Map<number, number>();
  const look = (): void => {
    for (const pid of [child.pid!, ...childrenOf(child.pid!)]) {
      peaks.set(pid, Math.max(peaks.get(pid) ?? 0, ownBytes(pid)));
    }
  };
  const looking = setInterval(look, 20);
  let said = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (said += text));
  const [code] = (await once(child, 'close')) as [number];
  clearInterval(looking);
  if (process.env['TRIBUTARY_LARGE_TABLES']) console.log(said);
  expect(code).toBe(0);
  const events = said
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as FitEvent);
  return { events, peaks: [...peaks.values()] };
}

const isLarge = Boolean(process.env['TRIBUTARY_LARGE_TABLES']);

/** Two server processes with all their memory for one service. */
async function serve(cwd: string): Promise<{ programs: Program[]; on: Workers }> {
  const programs: Program[] = [];
  const servers: string[] = [];
  for (let i = 0; i < 2; i++) {
    const program = start(['server', '--json', '--port', '0', '--service', 'large'], cwd);
    const { server } = await program.waitFor('listening');
    programs.push(program);
    servers.push(server as string);
  }
  const access = { namespace: 'large', nonceFile: join(cwd, 'nonces', 'large.nonce') };
  return { programs, on: { workers: 2, strategy: 'parallax', servers, access } };
}

describe.skipIf(!isLarge)('workers of a table of two gigabytes', () => {
  const [sgd, adam] = [
    { optimizer: { name: 'sgd', lr: 0.1 } },
    { optimizer: { name: 'adam', lr: 0.001 }, sparseUpdates: 'lazy' },
  ] as const;
  it.each<[string, Partial<FitOptions>, boolean]>([
    ['SGD', sgd, false],
    ['Adam', adam, false],
    ['SGD on two server processes', sgd, true],
    ['Adam on two server processes', adam, true],
  ])(
    'have less than 600 MB of their own, with %s',
    async (title, options, hasOwnServers) => {
      const checkpointDirectory = folder();
      const servers = hasOwnServers ? await serve(folder()) : undefined;
      const on = servers ? { on: servers.on } : {};
      const given = { ...options, ...on, rows: 1_000_000, checkpointDirectory };
      const first = await train({ ...given, maxSteps: 10 });
      const resumed = await train({ ...given, resume: true, epochs: 2, maxSteps: 12 });
      for (const [what, { peaks }] of Object.entries({ first, resumed })) {
        const shown = peaks.map((bytes) => `${(bytes / MB).toFixed(0)} MB`).join(', ');
        console.log(`${title}, ${what}: at most ${shown} of each worker's own`);
      }
      expect(first.events.map(({ type }) => type)).toEqual(['started', 'epoch', 'checkpoint']);
      expect(resumed.events[0]).toMatchObject({ type: 'resumed', step: 10 });
      for (const { peaks } of [first, resumed]) {
        expect(peaks).toHaveLength(2);
        for (const bytes of peaks) expect(bytes).toBeLessThan(MOST_OWN_BYTES);
      }
      for (const { child, ended } of servers?.programs ?? []) {
        child.kill('SIGTERM');
        expect((await ended).stderr).toBe('');
      }
      for (const entry of readdirSync(checkpointDirectory)) {
        rmSync(`${checkpointDirectory}/${entry}`, { recursive: true });
      }
    },
    1_200_000,
  );
});
