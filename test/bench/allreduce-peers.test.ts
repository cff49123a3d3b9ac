/** The sides of `bench allreduce` as real processes: the peers sum rightly, and what goes wrong is named and leaves nothing. */
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  benchAllReduce,
  compileOpenMpiPeer,
  glooGroup,
  openMpiGroup,
  parseAssignment,
  PeerGroup,
} from '../../src/bench/allreduce/index.ts';
import type { GroupCommand } from '../../src/bench/allreduce/index.ts';
import { component } from '../support/components.ts';
import { moduleOf } from '../support/test-program.ts';

const RANK_PROGRAM = fileURLToPath(moduleOf(new URL('./allreduce-rank.ts', import.meta.url).href));
const env = process.env;
let folder = '';
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'allreduce-peers-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const openMpi = component('openmpi-bin');
const compiler = component('libopenmpi-dev');
const torch = component('python3-torch');
const mpi = openMpi.present && compiler.present;

async function expectTurns(command: GroupCommand, variants: readonly string[]): Promise<void> {
  const group = await PeerGroup.start(command);
  try {
    for (const bytes of [1024, 65536]) {
      for (const algorithm of variants) {
        const result = await group.turn({ bytes, iterations: 7, burst: 3, algorithm });
        expect(result.ok, `${algorithm} of ${bytes} bytes`).toBe(true);
        expect(result.micros).toBeGreaterThan(0);
      }
    }
  } finally {
    await group.close();
  }
}

describe.skipIf(!mpi)(`Open MPI as a peer (${openMpi.needs} and libopenmpi-dev)`, () => {
  it.each([
    [2, 'vader'],
    [3, 'tcp'],
  ] as const)('sums by %i ranks over %s, in place and not', async (ranks, mpiClass) => {
    const program = await compileOpenMpiPeer(folder, env);
    const raisedMalloc = ranks === 2;
    await expectTurns(openMpiGroup({ program, ranks, mpiClass, raisedMalloc, env }), [
      'in-place',
      'separate',
    ]);
  });

  it('is measured against ours in one run', async () => {
    const progress: string[] = [];
    const bench = await benchAllReduce({
      transport: 'mpi',
      sizes: [1024, 65536],
      rounds: 5,
      turnMs: 1,
      env,
      rankProgram: RANK_PROGRAM,
      onProgress: (message) => progress.push(message),
    });
    expect(bench.cases.map(({ bytes }) => bytes)).toEqual([1024, 65536]);
    for (const entry of bench.cases) {
      expect(entry).toMatchObject({ transport: 'mpi', ranks: 2, algorithm: 'native' });
      expect(entry.openmpiVariant).toMatch(/Open MPI \((plain|malloc-raised)\), (in-place|separate)/);
      expect(entry.ratioOpenmpi).toBeCloseTo(entry.openmpiUs! / entry.oursUs);
      expect(entry.busbwGBs).toBeCloseTo(entry.algbwGBs);
      if (torch.present) expect(entry.glooUs).toBeGreaterThan(0);
      else expect(entry.glooUs).toBeNull();
    }
    expect(JSON.stringify(bench.configuration)).toContain('--mca btl vader,self');
    expect(JSON.stringify(bench.configuration)).toContain('MALLOC_TOP_PAD_');
    expect(progress).toContain('64 KB, 2 ranks, auto');
  });
});

describe.skipIf(!torch.present)(`gloo as a peer (${torch.needs})`, () => {
  it('sums by 2 ranks', async () => {
    await expectTurns(glooGroup({ ranks: 2, folder, env }), ['in-place']);
  });
});

describe('a group', () => {
  /** Ranks that run a small program with the coordinator's address as arguments. */
  function nodeGroup(program: string, ranks = 1): GroupCommand {
    return {
      name: 'the stand-in',
      ranks,
      processes: ({ host, port, token }) =>
        Array.from({ length: ranks }, (_, rank) => ({
          file: process.execPath,
          args: ['-e', program, host, `${port}`, token, `${rank}`],
        })),
      env,
      settings: {},
      install: 'nothing',
    };
  }
  const HELLO = `
    const [host, port, token, rank] = process.argv.slice(1);
    const socket = require('node:net').connect(Number(port), host);
    socket.write('hello ' + token + ' ' + rank + ' ' + process.pid + '\\n');
    socket.on('close', () => process.exit(0));`;

  it('says what to install where the program is missing', async () => {
    const command = { ...nodeGroup(''), processes: () => [{ file: join(folder, 'no-such'), args: [] }] };
    await expect(PeerGroup.start(command)).rejects.toMatchObject({
      code: 'MISSING_COMPONENT',
      message: expect.stringContaining('To compare with it: nothing') as string,
    });
  });

  it('says what a library is missing', async () => {
    await expect(
      PeerGroup.start(nodeGroup(`process.stderr.write('missing: No module named torch'); process.exit(1)`)),
    ).rejects.toMatchObject({
      code: 'MISSING_COMPONENT',
      message: expect.stringContaining('No module named torch') as string,
    });
  });

  it('repeats the last words of a rank that ends before it has come', async () => {
    await expect(
      PeerGroup.start(nodeGroup(`process.stderr.write('out of luck'); process.exit(3)`)),
    ).rejects.toMatchObject({
      code: 'PEER_EXITED',
      message: expect.stringMatching(/exit code 3.*out of luck/) as string,
    });
  });

  it('names the rank that dies in its turn', async () => {
    const group = await PeerGroup.start(
      nodeGroup(`${HELLO} socket.on('data', () => { if (rank === '1') process.exit(9); });`, 2),
    );
    const turn = group.turn({ bytes: 4, iterations: 1, burst: 1, algorithm: 'any' });
    await expect(turn).rejects.toMatchObject({ code: 'PEER_EXITED' });
    await group.close();
  });

  it('ends ranks that miss a deadline', async () => {
    const pidFile = join(folder, 'pid');
    const program = `${HELLO} require('node:fs').writeFileSync(${JSON.stringify(pidFile)}, String(process.pid));
      socket.on('data', () => { for (;;); });`;
    const group = await PeerGroup.start(nodeGroup(program), { turnTimeoutMs: 100 });
    const turn = group.turn({ bytes: 4, iterations: 1, burst: 1, algorithm: 'any' });
    await expect(turn).rejects.toMatchObject({ code: 'TIMEOUT', facts: { timeoutMs: 100 } });
    await group.close();
    const pid = await readFile(pidFile, 'utf8');
    expect(existsSync(`/proc/${pid}`)).toBe(false);
  });

  it('ends at its signal', async () => {
    const abort = new AbortController();
    const group = await PeerGroup.start(nodeGroup(HELLO), { signal: abort.signal });
    const turn = group.turn({ bytes: 4, iterations: 1, burst: 1, algorithm: 'any' });
    abort.abort();
    await expect(turn).rejects.toMatchObject({ code: 'CANCELLED' });
    await group.close();
  });
});

it('refuses sizes that hold no vector, and no ranks', async () => {
  await expect(benchAllReduce({ transport: 'mpi', sizes: [6], env })).rejects.toThrow(/6 bytes/);
  await expect(benchAllReduce({ transport: 'mpi', ranks: 0, env })).rejects.toThrow(/ranks is 0/);
});

it('refuses an assignment of another form', () => {
  expect(() => parseAssignment(undefined)).toThrow(/tributary bench allreduce/);
  expect(() => parseAssignment('{"rank": -1}')).toThrow(
    expect.objectContaining({ code: 'INVALID_ARGUMENT' }) as Error,
  );
});
