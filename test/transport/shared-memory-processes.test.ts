import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, removeStaleSegments } from '../../src/memory/index.ts';
import { addressOf, closeSides, envelope, makeSide, runAsRank } from './shared-memory-pair.ts';
import type { Side } from './shared-memory-pair.ts';
import { programOf } from '../support/test-program.ts';

const PEER = fileURLToPath(new URL('./shared-memory-peer.ts', import.meta.url));
const DEADLINE_MS = 20_000;

describe.skipIf(!hasSharedMemory())('shared memory between processes', () => {
  let directory = '';
  let side: Side;
  let child: ChildProcess | undefined;

  beforeEach(() => {
    directory = mkdtempSync('/dev/shm/test-tributary-');
    side = makeSide(0, directory, { closeTimeoutMs: 20, forgetTimeoutMs: DEADLINE_MS }, 256 * 2 ** 20);
  });
  afterEach(async () => {
    await closeSides([side]);
    if (child?.exitCode === null && child.signalCode === null) {
      child.kill('SIGKILL');
      await once(child, 'exit');
    }
    removeStaleSegments(directory);
    const left = readdirSync(directory);
    rmSync(directory, { recursive: true, force: true });
    expect(left).toEqual([]);
  });

  async function start(role: string, seed = 0): Promise<ChildProcess> {
    const args = [...programOf(PEER), role, directory, String(seed)];
    const started = spawn(process.execPath, args, { stdio: ['inherit', 'inherit', 'inherit', 'ipc'] });
    child = started;
    const [address] = (await once(started, 'message')) as [Record<string, unknown>];
    started.send(addressOf(side));
    const title = `process ${started.pid}`;
    await side.transport.connect(0, [{ member: 1, title, host: 'here', address }]);
    return started;
  }

  function waitFor(condition: () => boolean): void {
    const deadline = performance.now() + DEADLINE_MS;
    while (!condition()) {
      if (performance.now() > deadline) throw new Error(`waited ${DEADLINE_MS} ms in vain`);
      if (!side.transport.poll()) side.transport.block(1000);
    }
  }

  it('does in two processes what it does in one', async () => {
    const seed = Math.floor(Math.random() * 2 ** 31);
    const started = await start('scenarios', seed);
    const exit = once(started, 'exit');
    await runAsRank(0, seed, directory, side);
    expect(await exit).toEqual([0, null]);
  });

  it('carries messages both ways between sleeping processes', async () => {
    const started = await start('echo');
    const exit = once(started, 'exit');
    const segment = side.space.createSegment(`big-${process.pid}`, 8 * 2 ** 20, { directory });
    for (const [step, length] of [1, 1000, 1_000_000].entries()) {
      const region = segment.region('float32', 0, length);
      for (let i = 0; i < length; i++) region.view[i] = i % 1000;
      const sending = side.transport.send(1, envelope({ step }), region);
      const into = segment.region('float32', 4 * 2 ** 20, length);
      const receiving = side.transport.receive(1, envelope({ step }), into);
      waitFor(() => receiving.done && sending.done);
      expect(receiving.region.view.every((value, i) => value === (i % 1000) + 1)).toBe(true);
      receiving.release();
    }
    waitFor(() => side.transport.hasLeft(1));
    side.transport.notify(1, 'too late');
    waitFor(() => side.told.lost.length > 0);
    expect(side.told.lost[0]!.error.message).toContain('has closed its transport');
    expect(await exit).toEqual([0, null]);
    segment.close();
  });

  it('names a process that was killed, and nothing of it is left afterwards', async () => {
    const started = await start('talk');
    waitFor(() => side.told.notices.length > 0);
    started.kill('SIGKILL');
    await once(started, 'exit');
    waitFor(() => side.told.lost.length > 0);
    expect(side.told.lost.map(({ peer, error }) => [peer, error.code])).toEqual([[1, 'PEER_LOST']]);
    const { message, facts } = side.told.lost[0]!.error;
    expect(message).toContain(`member 1 (process ${started.pid}`);
    expect(facts).toMatchObject({ member: 1, pid: started.pid });
    side.transport.block(1);
    expect(side.told.lost).toHaveLength(1);
    side.transport.disconnect(1);
    // Whoever makes the next segment removes those of the dead.
    side.space.createSegment(`next-${process.pid}`, 64, { directory }).close();
    expect(readdirSync(directory).filter((name) => name.includes('child'))).toEqual([]);
  });

  it('does not let an operation be forgotten while a peer writes for it', async () => {
    await start('writer');
    const region = side.segment.allocate('int32', 2);
    side.transport.inPlace.lend(1, envelope(), region);
    waitFor(() => side.told.notices.length > 0);
    side.transport.notify(1, 'cancel');
    side.transport.forget(envelope());
    expect(region.view[1]).toBe(1);
    expect(side.told.lost).toEqual([]);
  });
});
