/** What was reported as safe is there after `kill -9` at random moments, and after writes that fail in the middle. */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { systemFiles } from '../../../src/base/index.ts';
import { listLogs, LogReplay, ServerCheckpoints } from '../../../src/server/durability/index.ts';
import { systemServerHost } from '../../../src/server/server-host.ts';
import { isSame, samplePush, sampleState } from './samples.ts';
import { programOf } from '../../support/test-program.ts';

const PROGRAM = fileURLToPath(new URL('durability-program.ts', import.meta.url));
const KILLS = Number(process.env['TRIBUTARY_KILLS'] ?? 5);
const STATE_ELEMENTS = 2 ** 20;

let folder: string;
let child: ChildProcess | undefined;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-durability-'));
});

afterEach(() => {
  child?.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
});

/** Runs the program until it has reported `reports` lines and `delayMs` more, kills it, and gives the last report. */
function runAndKill(role: string, reports: number, delayMs: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const own = (child = spawn(
      process.execPath,
      [...programOf(PROGRAM), role, folder, String(STATE_ELEMENTS)],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    ));
    let output = '';
    let isDying = false;
    own.stdout.setEncoding('utf8').on('data', (text: string) => {
      output += text;
      if (isDying || output.split('\n').length - 1 < reports) return;
      isDying = true;
      setTimeout(() => own.kill('SIGKILL'), delayMs);
    });
    own.on('error', reject);
    own.on('close', (code, signal) => {
      if (signal !== 'SIGKILL') return reject(new Error(`the program ended by itself: ${code} ${signal}`));
      // The last line may have been cut by the kill, but not the line breaks before it.
      resolve(Number(output.slice(0, output.lastIndexOf('\n')).split('\n').at(-1)));
    });
  });
}

/** Reproducible moments. */
function moments(seed: number): () => number {
  console.log(`seed ${seed}`);
  let word = seed >>> 0;
  return () => (word = (Math.imul(word, 1664525) + 1013904223) >>> 0) / 2 ** 32;
}

describe('after kill -9', () => {
  it(`the last reported checkpoint or a later one is good, ${KILLS} times in the same folder`, async () => {
    const random = moments(Date.now());
    let leftovers = 0;
    for (let kill = 0; kill < KILLS; kill++) {
      const reported = await runAndKill('checkpoints', 1 + Math.floor(4 * random()), 40 * random());
      leftovers += readdirSync(folder).filter((name) => name.startsWith('.writing-')).length;
      const problems: string[] = [];
      const checkpoints = await ServerCheckpoints.open({
        host: systemServerHost,
        folder,
        onProblem: (text) => problems.push(text),
      });
      try {
        expect(readdirSync(folder).filter((name) => name.startsWith('.'))).toEqual([]);
        const steps = await checkpoints.list();
        expect(problems).toEqual([]);
        expect(steps.at(-1)).toBeGreaterThanOrEqual(reported);
        expect(steps.at(-1)).toBeLessThanOrEqual(reported + 1);
        // Killed between the rename and the removal of the oldest, three are left.
        expect(steps.length).toBeLessThanOrEqual(3);
        for (const step of steps) {
          expect(
            isSame(await checkpoints.read(step), sampleState(step, STATE_ELEMENTS)),
            `step ${step}`,
          ).toBe(true);
        }
      } finally {
        await checkpoints.close();
      }
    }
    console.log(`${leftovers} of ${KILLS} kills left a half-written file`);
  }, 180_000);

  it(`every push whose append had returned is replayed, ${KILLS} times in the same folder`, async () => {
    const random = moments(Date.now());
    let torn = 0;
    for (let kill = 0; kill < KILLS; kill++) {
      const reported = await runAndKill('log', 1 + Math.floor(50 * random()), 10 * random());
      let count = 0;
      for (const { path } of listLogs(systemFiles, folder, 'core-0')) {
        const replay = new LogReplay(systemFiles, path);
        for (const record of replay) expect(isSame(record, samplePush(count)), `push ${count++}`).toBe(true);
        expect(replay.stop!.why).not.toBe('damaged');
        if (replay.stop!.why === 'torn') torn++;
      }
      expect(count).toBeGreaterThanOrEqual(reported);
      expect(count).toBeLessThanOrEqual(reported + 1);
    }
    console.log(`${torn} of ${KILLS} kills tore the last record`);
  }, 180_000);
});

describe.runIf(process.platform === 'linux')('when a file cannot grow any more', () => {
  it('what was written before stays whole, and the log goes on', async () => {
    // 2^20 elements are 4 MB; no file of the process may be longer than 2 MB.
    const command = `ulimit -f 4096; exec "$@"`;
    const args = [...programOf(PROGRAM), 'full', folder, String(2 ** 20)];
    const own = (child = spawn('sh', ['-c', command, 'sh', process.execPath, ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
    }));
    let output = '';
    own.stdout.setEncoding('utf8').on('data', (text: string) => (output += text));
    const code = await new Promise((resolve) => own.on('close', resolve));
    expect({ code, output }).toEqual({ code: 0, output: 'FILE_NOT_WRITTEN\nCHECKPOINT_NOT_WRITTEN\n' });
    const replay = new LogReplay(systemFiles, listLogs(systemFiles, folder, 'core-0')[0]!.path);
    expect([...replay]).toEqual([samplePush(0), samplePush(1)]);
    expect(replay.stop!.why).toBe('end');
    expect(readdirSync(folder).filter((name) => name.startsWith('.'))).toEqual([]);
    const checkpoints = await ServerCheckpoints.open({ host: systemServerHost, folder });
    try {
      expect(await checkpoints.list()).toEqual([1]);
    } finally {
      await checkpoints.close();
    }
  });
});
