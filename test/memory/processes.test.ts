import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import {
  futexWait,
  futexWake,
  hasSharedMemory,
  removeStaleSegments,
  SharedSpace,
} from '../../src/memory/index.ts';
import { ifLockIsFree } from '../../src/memory/segment-folder.ts';
import { programOf } from '../support/test-program.ts';

const PEER = fileURLToPath(new URL('./peer.ts', import.meta.url));

describe.skipIf(!hasSharedMemory())('segments between processes', () => {
  let directory = '';
  let space: SharedSpace;
  const children: ChildProcess[] = [];

  beforeAll(() => {
    directory = mkdtempSync('/dev/shm/test-tributary-');
    space = SharedSpace.create({ maxBytes: 64 * 2 ** 20 });
  });
  afterEach(() => {
    for (const child of children.splice(0)) child.kill('SIGKILL');
  });
  afterAll(() => {
    rmSync(directory, { recursive: true, force: true });
  });

  function start(role: string, name: string): ChildProcess {
    const child = spawn(process.execPath, [...programOf(PEER), role, name, directory], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    children.push(child);
    return child;
  }

  async function finished(child: ChildProcess): Promise<unknown> {
    const [code] = (await once(child, 'exit')) as [number | null];
    return code;
  }

  it('see each other’s writes', async () => {
    const segment = space.createSegment('writes', 4096, { directory });
    const words = segment.allocate('int32', 16);
    const values = segment.allocate('float32', 8);
    values.view.fill(1.5);
    expect(await finished(start('double', 'writes'))).toBe(0);
    expect(Atomics.load(words.view, 0)).toBe(1);
    expect(Array.from(values.view)).toEqual(new Array(8).fill(3));
    segment.close();
    expect(readdirSync(directory)).toEqual([]);
  });

  it('count together with Atomics and lose nothing', async () => {
    const segment = space.createSegment('atomics', 4096, { directory });
    const words = segment.allocate('int32', 16);
    const child = start('count', 'atomics');
    // Wait for the peer's first additions, so that both really run at once.
    while (Atomics.load(words.view, 1) === 0 && child.exitCode === null) {
      futexWait(words, 5, 0, 1);
      await new Promise(setImmediate);
    }
    for (let i = 0; i < 20_000; i++) Atomics.add(words.view, 1, 1);
    if (child.exitCode === null) await finished(child);
    expect(words.view[1]).toBe(40_000);
    segment.close();
  });

  it('wake a sleeper of the other process by futex, both ways', async () => {
    const segment = space.createSegment('futex', 4096, { directory });
    const words = segment.allocate('int32', 16);
    const child = start('sleep', 'futex');
    await once(child.stdout!, 'data');
    const deadline = performance.now() + 20_000;
    while (futexWake(words, 2, 1) === 0 && performance.now() < deadline) await new Promise(setImmediate);
    expect(futexWait(words, 3, 0, 20_000)).toBe('woken');
    if (child.exitCode === null) await finished(child);
    segment.close();
  });

  it('keep a name while the owner lives and free it when it was killed', async () => {
    const child = start('own', 'orphan');
    await once(child.stdout!, 'data');
    expect(() => space.createSegment('orphan', 4096, { directory })).toThrow(
      expect.objectContaining({ code: 'SEGMENT_EXISTS' }),
    );
    expect(removeStaleSegments(directory)).toEqual([]);
    const attached = space.attachSegment('orphan', { directory });
    expect(attached.allocate('int32', 1).view[0]).toBe(42);
    attached.close();
    expect(existsSync(join(directory, 'tributary-orphan'))).toBe(true);

    child.kill('SIGKILL');
    await finished(child);
    expect(existsSync(join(directory, 'tributary-orphan'))).toBe(true);
    const replaced = space.createSegment('orphan', 4096, { directory });
    expect(replaced.allocate('int32', 1).view[0]).toBe(0);
    replaced.close();
    expect(readdirSync(directory)).toEqual([]);
  });

  it('are made beside a large one whose memory is being reserved', async () => {
    const child = start('make large ones', 'large');
    const deadlineMs = performance.now() + 60_000;
    const beingMade = () => readdirSync(directory).find((entry) => entry.startsWith('.tributary-new-'));
    let isFree = false;
    while (!isFree && performance.now() < deadlineMs) {
      const before = beingMade();
      if (before === undefined) continue;
      let wasFree = false;
      ifLockIsFree(directory, () => (wasFree = true));
      // As long as the same one was there.
      isFree = wasFree && beingMade() === before;
    }
    child.kill('SIGKILL');
    await finished(child);
    removeStaleSegments(directory);
    expect(isFree).toBe(true);
  }, 90_000);

  it('names the segments it removed after a kill', async () => {
    const child = start('own', 'left-over');
    await once(child.stdout!, 'data');
    child.kill('SIGKILL');
    await finished(child);
    expect(removeStaleSegments(directory)).toEqual(['left-over']);
    expect(readdirSync(directory)).toEqual([]);
  });

  it('serve all threads of a process through the same memory', async () => {
    const segment = space.createSegment('threads', 4096, { directory });
    const words = segment.allocate('int32', 4);
    const source = `
      const { workerData, parentPort } = require('node:worker_threads');
      const words = new Int32Array(workerData.memory.buffer, workerData.byteOffset, 4);
      Atomics.store(words, 0, 11);
      parentPort.postMessage('done');`;
    const workerData = { memory: space.memory, byteOffset: words.byteOffset };
    const worker = new Worker(source, { eval: true, workerData });
    await once(worker, 'message');
    await worker.terminate();
    expect(words.view[0]).toBe(11);
    segment.close();
  });
});
