/**
 * The parts of a checkpoint that the cores of a server give: what becomes of them after a restart.
 */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { pack, UsageError } from '../../src/base/index.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { TenantCheckpoints } from '../../src/server/tenant-checkpoints.ts';
import { ACCOUNT_BYTES, TenantSpace } from '../../src/server/tenant-space.ts';
import { OneThreadHost } from './one-thread-host.ts';

const noMemory = new UsageError('OUT_OF_SHARED_MEMORY', 'there is no memory for a copy');

describe.skipIf(!hasSharedMemory())('a checkpoint that is there since before a restart', () => {
  let folder: string;
  let space: TenantSpace;
  let checkpoints: TenantCheckpoints;

  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'tributary-parts-'));
    start();
    await Promise.all([give(0, 5), give(1, 5)]);
    await Promise.all([give(0, 10), give(1, 10)]);
    await checkpoints.close();
    start();
  });

  afterEach(async () => {
    await checkpoints.close();
    rmSync(folder, { recursive: true, force: true });
  });

  function start(): void {
    const whole = SharedSpace.create({ maxBytes: 2 ** 22 });
    const account = whole.allocate(ACCOUNT_BYTES);
    space = new TenantSpace(whole, { namespace: 'a', maxBytes: 2 ** 21, account });
    checkpoints = new TenantCheckpoints(new OneThreadHost(), space, {
      ...{ namespace: 'a', folder, cores: 2, log: () => undefined, onBegun: () => undefined },
    });
  }

  function give(core: number, step: number): Promise<unknown> {
    const { byteOffset, byteLength } = space.allocate(64);
    const snapshot = { pieces: [], memory: { byteOffset, byteLength } };
    const part = { snapshot, optimizer: null, log: null, batches: [] };
    return checkpoints.add({ kind: 'checkpoint', namespace: 'a', core, step, part, common: undefined });
  }

  function fail(core: number, step: number): Promise<unknown> {
    const part = { failure: pack(noMemory) };
    return checkpoints.add({ kind: 'checkpoint', namespace: 'a', core, step, part, common: undefined });
  }

  it('is answered by each core for itself', async () => {
    await give(0, 5);
    await give(1, 5);
  });

  it('is refused to the core that cannot copy its part, whichever comes first', async () => {
    await give(0, 5);
    await expect(fail(1, 5)).rejects.toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    const failing = expect(fail(1, 10)).rejects.toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
    await give(0, 10);
    await failing;
  });

  it('stays until all cores have found that their keys fit an earlier one', async () => {
    const newer = 'step-000000000010.checkpoint';
    for (const core of [0, 1]) await checkpoints.restore(core, 5);
    expect(readdirSync(folder)).toContain(newer);
    await checkpoints.goneBack(0, 5);
    expect(readdirSync(folder)).toContain(newer);
    // The other's do not, and all begin anew.
    for (const core of [0, 1]) await checkpoints.restore(core, 5);
    await checkpoints.goneBack(1, 5);
    expect(readdirSync(folder)).toContain(newer);
    await checkpoints.goneBack(0, 5);
    expect(readdirSync(folder)).not.toContain(newer);
  });

  it('is written anew if training went back to an earlier one', async () => {
    await checkpoints.restore(0, 5);
    let isWritten = false;
    const writing = give(0, 10).then(() => (isWritten = true));
    await give(0, 5);
    expect(isWritten).toBe(false);
    await give(1, 10);
    await writing;
    expect(readdirSync(folder)).toContain('step-000000000010.checkpoint');
  });
});
