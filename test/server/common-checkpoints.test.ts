/**
 * Several servers of a training in lock step always have a checkpoint in common, however slow their
 * disks are and whatever cannot be written; and what they keep for it is bounded. The workers'
 * knowledge and the folders are the real ones; the disks of the servers write when the test says
 * so.
 */
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { asTributaryError } from '../../src/base/index.ts';
import { StoreCheckpoints } from '../../src/kvstore/remote/store-checkpoints.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { CoreCheckpoints } from '../../src/server/cores/core-checkpoints.ts';
import type { Common, Header } from '../../src/server/index.ts';
import { TenantCheckpoints } from '../../src/server/tenant-checkpoints.ts';
import { ACCOUNT_BYTES, TenantSpace } from '../../src/server/tenant-space.ts';
import { FaultyFiles } from './durability/faulty-files.ts';
import { OneThreadHost } from './one-thread-host.ts';

const onMet = (): void => undefined;
let root: string;
const open: Disk[] = [];
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'tributary-common-'));
});
afterEach(async () => {
  for (const disk of open.splice(0)) await disk.checkpoints.close();
  rmSync(root, { recursive: true, force: true });
});

/** One server with one core, and the disk that its checkpoints are on. */
class Disk {
  readonly files = new FaultyFiles();
  readonly folder: string;
  checkpoints!: TenantCheckpoints;
  /** Copies that wait for the disk. */
  readonly waiting: (() => Promise<void>)[] = [];
  readonly core: CoreCheckpoints;
  /** What the worker has named last. */
  named: Common = null;
  #space!: TenantSpace;

  constructor(name: string) {
    this.folder = join(root, name);
    mkdirSync(this.folder);
    this.start();
    this.core = new CoreCheckpoints('a', {
      needsAnother: false,
      checkpoint: (step, common, written, fail) =>
        void this.waiting.push(() =>
          this.give(step, common).then(
            ({ kept }) => written(kept),
            (error: unknown) => fail(asTributaryError(error)),
          ),
        ),
      refuse: () => undefined,
      announce: () => undefined,
    });
    open.push(this);
  }

  /** Another process begins. */
  start(): void {
    const whole = SharedSpace.create({ maxBytes: 2 ** 20 });
    const account = whole.allocate(ACCOUNT_BYTES);
    this.#space = new TenantSpace(whole, { namespace: 'a', maxBytes: 2 ** 19, account });
    this.checkpoints = new TenantCheckpoints(new OneThreadHost({ files: this.files }), this.#space, {
      ...{ namespace: 'a', folder: this.folder, cores: 1, log: () => undefined },
      onBegun: () => undefined,
    });
  }

  give(step: number, common?: Common): Promise<{ readonly kept: readonly number[] }> {
    const { byteOffset, byteLength } = this.#space.allocate(64);
    const snapshot = { pieces: [], memory: { byteOffset, byteLength } };
    const part = { snapshot, optimizer: null, log: null, batches: [] };
    return this.checkpoints.add({ kind: 'checkpoint', namespace: 'a', core: 0, step, part, common });
  }

  async restore(step: number): Promise<void> {
    const { snapshot } = await this.checkpoints.restore(0, step);
    this.#space.releaseRange(snapshot.memory);
    await this.checkpoints.goneBack(0, step);
  }

  /** Steps that have a file. */
  get steps(): number[] {
    return readdirSync(this.folder)
      .flatMap((name) => /^step-(\d+)\.checkpoint$/.exec(name)?.slice(1) ?? [])
      .map(Number);
  }

  /** What a worker asks, and is answered. */
  request(header: object): Promise<Header> {
    const { step, common } = header as { readonly step: number; readonly common: Common };
    this.named = common;
    this.core.named(common);
    return new Promise((resolve, reject) =>
      this.core.take(
        { worker: 0, step, isDurable: false, meeting: {} },
        () => resolve({ kept: this.core.kept }),
        reject,
      ),
    );
  }

  /** The next copy that waits; `isFull`: it cannot be written. */
  async write(isFull = false): Promise<void> {
    this.files.fault = (call) => (isFull && call === 'rename' ? 'ENOSPC' : undefined);
    await this.waiting.shift()?.();
    this.files.fault = () => undefined;
  }
}

/** One that failed earlier is reported, and this one is taken all the same. */
async function ask(worker: StoreCheckpoints, step: number): Promise<void> {
  await worker.ask(step, false).catch((error: unknown) => {
    expect(error).toMatchObject({ code: 'CHECKPOINT_NOT_WRITTEN' });
  });
}

function inCommon(disks: readonly Disk[]): number[] {
  const [first, ...others] = disks;
  return first!.steps.filter((step) => others.every((disk) => disk.steps.includes(step)));
}

describe.skipIf(!hasSharedMemory())('the checkpoints of several servers', () => {
  it.each([2, 3])(
    'have one in common on %i servers, however fast each of them writes and whatever fails',
    async (servers) => {
      let run = 0;
      const event = fc.record({
        disk: fc.nat(servers - 1),
        copies: fc.integer({ min: 1, max: 3 }),
        fails: fc.boolean(),
      });
      await fc.assert(
        fc.asyncProperty(fc.array(event, { minLength: 1, maxLength: 60 }), async (events) => {
          const disks = Array.from({ length: servers }, (_, i) => new Disk(`${run}-${i}`));
          run++;
          const worker = new StoreCheckpoints({ lines: disks, namespace: 'a', isShared: true, onMet });
          const isKnown = () => disks[0]!.named !== null;
          let step = 0;
          let isAnswered = true;
          for (const { disk: i, copies, fails } of events) {
            if (isAnswered) {
              isAnswered = false;
              void ask(worker, ++step).then(() => (isAnswered = true));
            }
            for (let n = 0; n < copies; n++) {
              // Until there is one to go back to, training does not begin.
              await disks[i]!.write(fails && isKnown());
              if (isKnown()) expect(inCommon(disks)).not.toEqual([]);
            }
            for (const one of disks) expect(one.steps.length).toBeLessThanOrEqual(5);
            await new Promise(setImmediate);
          }
          for (const disk of disks) while (disk.waiting.length > 0) await disk.write();
          expect(inCommon(disks)).not.toEqual([]);
          for (const disk of open.splice(0)) await disk.checkpoints.close();
        }),
        { numRuns: 40 },
      );
    },
    60_000,
  );

  it('have one in common also if what workers know is as old as it can be', async () => {
    const [one, other] = [new Disk('one'), new Disk('other')];
    const worker = new StoreCheckpoints({ lines: [one, other], namespace: 'a', isShared: true, onMet });
    let step = -1;
    /** By server: what becomes of copies before the next call; false: it is not written. */
    const round = async (ones: readonly boolean[], others: readonly boolean[]) => {
      await ask(worker, ++step);
      for (const isWritten of ones) await one.write(!isWritten);
      for (const isWritten of others) await other.write(!isWritten);
    };
    await round([true], [true]);
    await round([true], [false]);
    await round([true], [false]);
    // From here on the first one is slow, and answers each call that a copy was not written.
    await round([], [true]);
    await round([false, true], [true]);
    await round([false], [true]);
    await round([false], [true]);
    await round([], [true]);
    await round([], [true]);
    const asked = ask(worker, ++step);
    for (const isWritten of [false, false, true]) {
      await one.write(!isWritten);
      await new Promise(setImmediate);
    }
    await other.write(true);
    await asked;
    const last = ask(worker, ++step);
    await other.write();
    expect(inCommon([one, other])).not.toEqual([]);
    await one.write();
    await last;
  });

  it('were asked for by all workers once one core has answered, though another never does', async () => {
    let met = 0;
    const never = new Promise<Header>(() => undefined);
    const lines = [{ request: () => never }, { request: () => Promise.resolve({ kept: [0] }) }];
    const worker = new StoreCheckpoints({ lines, namespace: 'a', isShared: true, onMet: () => met++ });
    void worker.ask(0, true);
    expect(met).toBe(0);
    await new Promise(setImmediate);
    expect(met).toBe(1);
  });

  it('stay until one is known that all have: the last four, and then that one however old it is', async () => {
    const disk = new Disk('one');
    for (let step = 1; step <= 6; step++) await disk.give(step, null);
    expect(disk.steps).toEqual([3, 4, 5, 6]);
    for (let step = 7; step <= 12; step++) await disk.give(step, 4);
    expect(disk.steps).toEqual([4, 9, 10, 11, 12]);
    await disk.give(13, 11);
    expect(disk.steps).toEqual([10, 11, 12, 13]);
    // Another worker knows less.
    await disk.give(14, null);
    await disk.give(15, 4);
    expect(disk.steps).toEqual([11, 12, 13, 14, 15]);
  });

  it('of one server are the last two', async () => {
    const disk = new Disk('one');
    for (let step = 1; step <= 4; step++) await disk.give(step);
    expect(disk.steps).toEqual([3, 4]);
  });

  it.each([
    ['never was written', 5],
    ['nobody will ever write', 2 ** 40],
  ])('are no more where workers name one that %s', async (_what, common) => {
    const disk = new Disk('one');
    for (let step = 10; step < 30; step++) await disk.give(step, common);
    expect(disk.steps).toEqual([26, 27, 28, 29]);
  });

  it('are counted anew after going back', async () => {
    const disk = new Disk('one');
    for (let step = 1; step <= 6; step++) await disk.give(step, 2);
    await disk.restore(3);
    expect(disk.steps).toEqual([2, 3]);
    for (let step = 4; step <= 7; step++) await disk.give(step, 3);
    expect(disk.steps).toEqual([3, 4, 5, 6, 7]);
  });
});

describe.skipIf(!hasSharedMemory())('going back to a checkpoint', () => {
  let disk: Disk;
  beforeEach(async () => {
    disk = new Disk('one');
    for (let step = 1; step <= 4; step++) await disk.give(step, 1);
    await disk.checkpoints.close();
    disk.start();
  });

  it('leaves nothing that a later restart would take, wherever the power is cut', async () => {
    for (let removals = 0; removals < 2; removals++) {
      let left = removals;
      disk.files.fault = (call) => (call === 'remove' && left-- <= 0 ? 'EIO' : undefined);
      await expect(disk.restore(1)).rejects.toMatchObject({
        code: 'CHECKPOINT_NOT_WRITTEN',
        message: expect.stringMatching(/cannot go back to step 1 .*step-0+\d\.checkpoint/) as string,
      });
      disk.files.fault = () => undefined;
      await disk.checkpoints.close();
      disk.start();
      // Without a gap, so that what all servers have is among it.
      const { steps } = disk;
      expect(steps).toEqual([1, 2, 3, 4].slice(0, steps.length));
      expect(steps.length).toBeGreaterThan(1);
    }
    await disk.restore(1);
    expect(disk.steps).toEqual([1]);
    await disk.give(2, 1);
    expect(disk.steps).toEqual([1, 2]);
  });

  it.each([
    ['is not there', 9, 'FILE_NOT_FOUND'],
    ['was never written', 2 ** 40, 'FILE_NOT_FOUND'],
  ])('that %s changes nothing', async (_what, step, code) => {
    await expect(disk.restore(step)).rejects.toMatchObject({ code });
    expect(disk.steps).toEqual([1, 2, 3, 4]);
  });
});
