/**
 * What a server that keeps checkpoints and logs has acknowledged is there after a restart or a power cut, and what it could
 * not keep is refused by name: with disks that are full, flushes that fail, and files that are damaged or missing.
 */
import {
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { SharedSpace } from '../../../src/memory/index.ts';
import { RemoteStore, runSteps } from '../../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../../src/kvstore/index.ts';
import { ParameterServer } from '../../../src/server/index.ts';
import type { ServiceOptions } from '../../../src/server/index.ts';
import { FaultyFiles } from './faulty-files.ts';
import { OneThreadHost } from '../one-thread-host.ts';

const ACCESS = { namespace: 'kept', nonce: 'ab'.repeat(32) };
const ASYNCHRONOUS = { consistency: { kind: 'asynchronous' } } as const;
const LENGTH = 300;

let root: string;
let folder: string;
let files: FaultyFiles;
let server: ParameterServer;
let stores: RemoteStore[] = [];
let log: string[] = [];

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'tributary-promises-'));
  folder = join(root, 'deep', 'kept');
  files = new FaultyFiles();
  log = [];
});

afterEach(async () => {
  await end();
  rmSync(root, { recursive: true, force: true });
});

async function start(
  options: Partial<ServiceOptions> & { cores?: number } = {},
  space?: SharedSpace,
): Promise<void> {
  const { cores = 1, ...service } = options;
  const host = new OneThreadHost({ files });
  server = await ParameterServer.start({ cores, space, log: (line) => log.push(line) }, host);
  server.createService({ ...ACCESS, folder, ...service });
}

async function end(): Promise<void> {
  await Promise.all(stores.map((store) => store.close()));
  stores = [];
  await server.close();
}

/** Started again on what is in the folder. */
async function restart(options: Partial<ServiceOptions> & { cores?: number } = {}): Promise<void> {
  await end();
  await start(options);
}

async function connect(workers: number, options: Partial<RemoteStoreOptions> = {}): Promise<RemoteStore[]> {
  const servers = [`${server.address}:${server.port}`];
  const connecting = Array.from({ length: workers }, (_, worker) =>
    RemoteStore.connect({
      ...{ servers, access: ACCESS, worker, workers, chunkBytes: 256 },
      // Sums show a push that counts twice or not at all.
      updater: 'accumulate',
      ...options,
    }),
  );
  const connected = await Promise.all(connecting);
  stores.push(...connected);
  return connected;
}

function init(all: readonly RemoteStore[], key = 'w'): Promise<unknown> {
  return Promise.all(all.map((store) => store.init({ key, value: new Float32Array(LENGTH) })));
}

const ones = () => new Float32Array(LENGTH).fill(1);

/** Pushes ones so often; every one of them is acknowledged. */
async function push(store: RemoteStore, times: number, key = 'w'): Promise<void> {
  for (let i = 0; i < times; i++) await store.push({ key, gradient: ones() });
}

/** How many pushes of ones a key has seen; it is the same in all its elements. */
async function count(store: RemoteStore, key = 'w'): Promise<number> {
  const into = new Float32Array(LENGTH);
  await store.pull({ key, into });
  expect(new Set(into).size, 'every element has seen the same pushes').toBe(1);
  return into[0]!;
}

const named = (name: string, code: string) => expect.objectContaining({ name, code }) as Error;
const notWritten = named('UsageError', 'CHECKPOINT_NOT_WRITTEN');
const corrupt = named('UsageError', 'CHECKPOINT_CORRUPT');
const logs = () =>
  readdirSync(folder)
    .filter((name) => name.endsWith('.pushes'))
    .sort();
const fullDisk = (pattern: RegExp) => (call: string, path: string) =>
  call === 'write' && pattern.test(path) ? 'ENOSPC' : undefined;

describe('a durable checkpoint', () => {
  it('that failed is tried again when it is asked for again, and says what came of it', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    await push(store!, 1);
    files.fault = fullDisk(/writing-step/);
    await expect(store!.checkpoint(1, { isDurable: true })).rejects.toEqual(notWritten);
    await expect(store!.checkpoint(1, { isDurable: true })).rejects.toEqual(notWritten);
    files.fault = () => undefined;
    await store!.checkpoint(1, { isDurable: true });
    expect(readdirSync(folder)).toContain('step-000000000001.checkpoint');
  });

  it.each(['synchronous', 'asynchronous'] as const)(
    'that cannot be taken on one core fails for all workers, and so does the next attempt: %s',
    async (kind) => {
      await start({ cores: 2 });
      const both = await connect(2, { consistency: { kind } });
      await init(both);
      let steps = 0;
      for (let attempt = 0; attempt < 2; attempt++) {
        steps++;
        files.fault = (call, path) =>
          call === 'open' && /core-1\.0+[2-9]\.pushes|writing-step/.test(path) ? 'ENOSPC' : undefined;
        const asked = both.map((store) => store.checkpoint(steps, { isDurable: true }));
        for (const one of await Promise.allSettled(asked)) {
          expect(one).toEqual({ status: 'rejected', reason: notWritten });
        }
      }
      files.fault = () => undefined;
      await Promise.all(both.map((store) => store.checkpoint(steps, { isDurable: true })));
    },
  );

  it('for which there is no memory fails for all workers, and so does the next attempt', async () => {
    const maxBytes = 16 * 2 ** 20;
    await start({ maxBytes }, SharedSpace.create({ maxBytes }));
    const both = await connect(2, { chunkBytes: 2 ** 20 });
    const value = new Float32Array(2.5 * 2 ** 20);
    await Promise.all(both.map((store) => store.init({ key: 'large', value })));
    for (const step of [1, 1, 2]) {
      const asked = both.map((store) => store.checkpoint(step, { isDurable: true }));
      for (const one of await Promise.allSettled(asked)) {
        expect(one).toEqual({ status: 'rejected', reason: notWritten });
      }
    }
  });

  it('of a folder that could not be used at first is written as soon as it can be', async () => {
    writeFileSync(join(root, 'deep'), 'in the way');
    await start();
    const [store] = await connect(1);
    await init([store!]);
    await expect(store!.checkpoint(1, { isDurable: true })).rejects.toEqual(notWritten);
    rmSync(join(root, 'deep'));
    await store!.checkpoint(1, { isDurable: true });
    expect(readdirSync(folder)).toEqual(['server.lock', 'step-000000000001.checkpoint']);
  });

  it('does not fail because nothing older than it can be removed', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    files.fault = (call, path) => (call === 'remove' && path.endsWith('.checkpoint') ? 'EIO' : undefined);
    for (const step of [1, 2, 3]) await store!.checkpoint(step, { isDurable: true });
    expect(log.filter((line) => /0001\.checkpoint is not needed .* EIO/.test(line))).toHaveLength(1);
    files.fault = (call, path) => (call === 'list' && path === folder && hasPut(4) ? 'EACCES' : undefined);
    await store!.checkpoint(4, { isDurable: true });
    expect(readdirSync(folder).filter((name) => name.endsWith('.checkpoint'))).toHaveLength(4);
    files.fault = () => undefined;
    await store!.checkpoint(5, { isDurable: true });
    expect(readdirSync(folder).filter((name) => name.endsWith('.checkpoint'))).toHaveLength(2);
  });

  it('is not gone back to while the folder cannot be read, and the error names the folder', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    await store!.checkpoint(1, { isDurable: true });
    files.fault = (call, path) => (call === 'list' && path === folder ? 'EACCES' : undefined);
    const refused = store!.resume();
    await expect(refused).rejects.toEqual(notWritten);
    await expect(refused).rejects.toThrow(`The checkpoint folder ${folder} cannot be used: EACCES`);
    files.fault = () => undefined;
    expect(await store!.resume()).toBe(1);
  });
});

/** The checkpoint of that step has got its name. */
function hasPut(step: number): boolean {
  return files.calls.some((call) => call.startsWith('rename ') && call.endsWith(`${step}.checkpoint`));
}

describe('a folder with the checkpoints of another run', () => {
  /** Lock step from a first value, with a checkpoint at its beginning and one after a step. */
  async function run(first: number): Promise<void> {
    const both = await connect(2);
    const value = new Float32Array(LENGTH).fill(first);
    await Promise.all(both.map((store) => store.init({ key: 'w', value })));
    const checkpoint = (step: number) =>
      Promise.all(both.map((store) => store.checkpoint(step, { isDurable: true })));
    await checkpoint(0);
    await Promise.all(both.map((store) => push(store, 1)));
    await checkpoint(1);
  }

  it('is refused by a run that does not go back to them', async () => {
    await start({ cores: 2 });
    await run(0.25);
    await restart({ cores: 2 });
    await expect(run(0.75)).rejects.toThrow(/Checkpoint 0 in .* is of another run/);
  });

  it('serves the same run from its beginning', async () => {
    await start({ cores: 2 });
    await run(0.25);
    await restart({ cores: 2 });
    await run(0.25);
  });
});

describe('runSteps', () => {
  const train = (store: RemoteStore, more: object = {}) =>
    runSteps(store, {
      ...{ steps: 6, checkpointEvery: 2, ...more },
      step: async () => void (await store.push({ key: 'w', gradient: ones() })),
    });

  it('does not train without checkpoints because the disk is full at the first', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    files.fault = fullDisk(/writing-step/);
    await expect(train(store!)).rejects.toEqual(notWritten);
    expect(await count(store!)).toBe(0);
  });

  it('trains without checkpoints where the service keeps none', async () => {
    await start({ folder: undefined });
    const [store] = await connect(1);
    await init([store!]);
    await train(store!);
    expect(await count(store!)).toBe(6);
    await expect(store!.checkpoint(7)).rejects.toEqual(named('UsageError', 'NO_CHECKPOINTS'));
  });

  it('hears of a checkpoint in the background that failed', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    files.fault = fullDisk(/writing-step-0+2-/);
    await expect(train(store!)).rejects.toEqual(notWritten);
    // The one that reported it was taken all the same.
    await store!.checkpointsWritten();
  });

  it('hears at its end of the last one that failed', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    files.fault = fullDisk(/writing-step-0+6-/);
    await expect(train(store!)).rejects.toEqual(notWritten);
    expect(await count(store!)).toBe(6);
  });

  it('goes on if somebody takes the problem', async () => {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    files.fault = fullDisk(/writing-step-0+[26]-/);
    const problems: unknown[] = [];
    await train(store!, { onProblem: (error: unknown) => problems.push(error) });
    expect(problems).toEqual([notWritten, notWritten]);
    expect(await count(store!)).toBe(6);
  });
});

describe.each(['process', 'disk'] as const)('asynchronous pushes, durability %s', (durability) => {
  it('are there after a restart, with first values and optimizers, without any checkpoint', async () => {
    await start({ cores: 2, durability });
    const both = await connect(2, ASYNCHRONOUS);
    await init(both);
    await Promise.all(both.map((store) => push(store, 5)));
    await Promise.all(both.map((store) => store.setOptimizer({ name: 'sgd', lr: 0.5 })));
    await push(both[0]!, 2);
    await init(both, 'later');
    await push(both[1]!, 3, 'later');
    for (let again = 0; again < 2; again++) {
      await restart({ cores: 2, durability });
      const [store, other] = await connect(2, ASYNCHRONOUS);
      await Promise.all([init([store!, other!]), init([store!, other!], 'later')]);
      expect(await count(store!)).toBe(9 - again * 0.5);
      expect(await count(store!, 'later')).toBe(-1.5);
      // By the optimizer that was set.
      await push(store!, 1);
      expect(await count(store!)).toBe(8.5 - again * 0.5);
    }
  });

  it('whose values were skipped are counted after a restart', async () => {
    await start({ durability });
    const [store] = await connect(1, { ...ASYNCHRONOUS, nonFinite: 'skip' });
    await init([store!]);
    await push(store!, 1);
    await store!.push({ key: 'w', gradient: new Float32Array(LENGTH).fill(NaN) });
    await push(store!, 1);
    await restart({ durability });
    const [again] = await connect(1, ASYNCHRONOUS);
    await init([again!]);
    expect(await count(again!)).toBe(2);
    await push(again!, 1);
    expect(await count(again!)).toBe(3);
  });

  it('that were refused do not come back, and those after them do', async () => {
    await start({ durability });
    const [store] = await connect(1, ASYNCHRONOUS);
    const table = { key: 't', value: new Float32Array(12), rowLength: 3 };
    await store!.init([table]);
    await store!.pushRows('t', Int32Array.of(1), new Float32Array(3).fill(1));
    const outside = store!.pushRows('t', Int32Array.of(4), new Float32Array(3).fill(1));
    await expect(outside).rejects.toMatchObject({ code: 'OUT_OF_BOUNDS' });
    await restart({ durability });
    const [again] = await connect(1, ASYNCHRONOUS);
    await again!.init([table]);
    const into = new Float32Array(12);
    await again!.pull({ key: 't', into });
    expect([...into]).toEqual([0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
  });

  it('are refused while the log cannot be written, and change nothing', async () => {
    await start({ durability });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 1);
    files.fault = fullDisk(/\.pushes$/);
    await expect(push(store!, 1)).rejects.toMatchObject({ code: 'FILE_NOT_WRITTEN' });
    files.fault = () => undefined;
    expect(await count(store!)).toBe(1);
    await restart({ durability });
    const [again] = await connect(1, ASYNCHRONOUS);
    await init([again!]);
    expect(await count(again!)).toBe(1);
  });

  it('fail an init whose first values cannot be kept, on all workers', async () => {
    await start({ durability });
    const both = await connect(2, ASYNCHRONOUS);
    files.fault = (call, path) =>
      call === 'write' && path.endsWith('.pushes') ? fullAfterOrigin(path) : undefined;
    for (const one of await Promise.allSettled(both.map((store) => init([store])))) {
      expect(one).toMatchObject({ status: 'rejected', reason: { code: 'FILE_NOT_WRITTEN' } });
    }
  });

  it('are kept over two restarts, checkpoints, and the loss of the newest checkpoint', async () => {
    await start({ durability });
    let pushed = 0;
    const train = async () => {
      const [store] = await connect(1, ASYNCHRONOUS);
      await init([store!]);
      expect(await count(store!)).toBe(pushed);
      await push(store!, 3);
      await store!.checkpoint(pushed + 3, { isDurable: true });
      await push(store!, 2);
      pushed += 5;
    };
    for (let run = 0; run < 4; run++) {
      await train();
      await restart({ durability });
    }
    const newest = readdirSync(folder)
      .filter((name) => name.endsWith('.checkpoint'))
      .sort()
      .at(-1)!;
    writeFileSync(join(folder, newest), 'damaged');
    await restart({ durability });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    expect(await count(store!)).toBe(pushed);
  });

  it('are all kept when the only checkpoint is damaged', async () => {
    await start({ durability });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 3);
    await store!.checkpoint(3, { isDurable: true });
    await push(store!, 2);
    await end();
    writeFileSync(join(folder, 'step-000000000003.checkpoint'), 'damaged');
    await start({ durability });
    const [again] = await connect(1, ASYNCHRONOUS);
    await init([again!]);
    expect(await count(again!)).toBe(5);
  });
});

/** The beginning of a log is written, its records are not. */
function fullAfterOrigin(path: string): string | undefined {
  return statSync(path).size > 0 ? 'ENOSPC' : undefined;
}

describe('a push log', () => {
  /** Ten pushes, five before a checkpoint and five after it. */
  async function tenPushes(): Promise<void> {
    await start();
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 5);
    await store!.checkpoint(5, { isDurable: true });
    await push(store!, 5);
    await end();
  }

  async function recovered(): Promise<number> {
    await start();
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    return count(store!);
  }

  const last = () => join(folder, logs().at(-1)!);

  it('with one flipped byte is refused by name and offset, on all workers', async () => {
    await tenPushes();
    const path = last();
    const bytes = readFileSync(path);
    bytes[bytes.length - 2000]! ^= 4;
    writeFileSync(path, bytes);
    await start();
    const both = await connect(2, ASYNCHRONOUS);
    const asked = await Promise.allSettled(both.map((store) => init([store])));
    for (const one of asked) {
      expect(one).toEqual({ status: 'rejected', reason: corrupt });
      const { message } = (one as PromiseRejectedResult).reason as Error;
      expect(message).toContain(path);
      expect(message).toMatch(/at byte \d+/);
    }
  });

  it('with a zeroed tail is read up to there', async () => {
    await tenPushes();
    const bytes = readFileSync(last());
    writeFileSync(last(), Buffer.concat([bytes, Buffer.alloc(5000)]));
    expect(await recovered()).toBe(10);
    await end();
    expect(await recovered()).toBe(10);
  });

  it('with a gap in an older one is refused by name', async () => {
    await tenPushes();
    writeFileSync(join(folder, 'step-000000000005.checkpoint'), 'damaged');
    const older = join(folder, logs()[0]!);
    truncateSync(older, readFileSync(older).length - 3000);
    await expect(recovered()).rejects.toEqual(corrupt);
    await expect(connect(1, ASYNCHRONOUS).then(init)).rejects.toThrow(older);
  });

  it('that is missing is named', async () => {
    await tenPushes();
    rmSync(last());
    await expect(recovered()).rejects.toEqual(corrupt);
  });

  it('is kept after a restart as long as the checkpoint before the last needs it', async () => {
    await tenPushes();
    await start();
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await store!.checkpoint(10, { isDurable: true });
    await end();
    writeFileSync(join(folder, 'step-000000000010.checkpoint'), 'damaged');
    expect(await recovered()).toBe(10);
  });

  it('of another number of cores is refused by name', async () => {
    await tenPushes();
    await start({ cores: 2 });
    const [store] = await connect(1, ASYNCHRONOUS);
    await expect(init([store!])).rejects.toEqual(named('UsageError', 'CHECKPOINT_MISMATCH'));
  });

  it('of keys that are cut otherwise is refused by name', async () => {
    await tenPushes();
    await start();
    const [store] = await connect(1, { ...ASYNCHRONOUS, chunkBytes: 512 });
    await expect(init([store!])).rejects.toEqual(named('UsageError', 'CHECKPOINT_MISMATCH'));
  });

  it('of another kind of training is refused by name', async () => {
    await tenPushes();
    await start();
    const [store] = await connect(1);
    await init([store!]);
    await expect(store!.resume()).rejects.toEqual(named('UsageError', 'CHECKPOINT_MISMATCH'));
  });
});

describe('a recovery that a full or faulty disk stopped', () => {
  it.each<[string, (call: string, path: string) => string | undefined]>([
    ['while its last log was written anew', fullDisk(/\.pushes\.copy$/)],
    [
      'while that was flushed',
      (call, path) => (call === 'flush' && path.endsWith('.copy') ? 'EIO' : undefined),
    ],
    [
      'while its folder was flushed',
      (call, path) => (call === 'flush' && path === folder && hasReplaced() ? 'EIO' : undefined),
    ],
    ['before its next log was begun', fullDisk(/0002\.pushes$/)],
  ])('%s is tried again by the next init', async (_, fault) => {
    await start();
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 3);
    await end();
    files.calls.length = 0;
    files.fault = fault;
    await start();
    const both = await connect(2, ASYNCHRONOUS);
    for (let attempt = 0; attempt < 2; attempt++) {
      for (const one of await Promise.allSettled(both.map((each) => init([each])))) {
        expect(one).toMatchObject({ status: 'rejected', reason: { code: 'FILE_NOT_WRITTEN' } });
      }
    }
    files.fault = () => undefined;
    await init(both);
    expect(await count(both[0]!)).toBe(3);
    await push(both[1]!, 2);
    await restart();
    const [again] = await connect(1, ASYNCHRONOUS);
    await init([again!]);
    expect(await count(again!)).toBe(5);
  });

  /** The copy of the last log has taken its place. */
  const hasReplaced = () => files.calls.some((call) => /^rename .*\.pushes$/.test(call));
});

describe('a power cut', () => {
  it.each(['zeros', 'nothing'] as const)(
    'loses nothing that was acknowledged, leaving %s',
    async (leaves) => {
      await start({ durability: 'disk', cores: 2 });
      const both = await connect(2, ASYNCHRONOUS);
      await init(both);
      await Promise.all(both.map((store) => push(store, 5)));
      await both[0]!.checkpoint(5, { isDurable: true });
      await Promise.all(both.map((store) => push(store, 5)));
      await end();
      files.cutPower(leaves);
      await start({ durability: 'disk', cores: 2 });
      const again = await connect(2, ASYNCHRONOUS);
      await init(again);
      expect(await count(again[0]!)).toBe(20);
    },
  );

  it('loses neither first values nor the optimizer, whatever was asked for', async () => {
    const firstValues = async (value: number): Promise<RemoteStore> => {
      const [store] = await connect(1, ASYNCHRONOUS);
      await store!.init({ key: 'w', value: new Float32Array(LENGTH).fill(value) });
      return store!;
    };
    await start({ durability: 'process' });
    await (await firstValues(3)).setOptimizer({ name: 'sgd', lr: 1 });
    await end();
    files.cutPower('nothing');
    await start({ durability: 'process' });
    // What the server has counts, not what it is told again.
    const store = await firstValues(7);
    await push(store, 1);
    expect(await count(store)).toBe(2);
  });

  it('leaves what came before the bytes that it took, where nobody asked that pushes survive it', async () => {
    await start({ durability: 'process' });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 8);
    await end();
    const path = join(folder, logs()[0]!);
    const bytes = readFileSync(path);
    const middle = 512 * Math.floor((bytes.length - 4 * LENGTH * 4) / 512);
    writeFileSync(path, bytes.fill(0, middle, middle + 1024));
    for (let again = 0; again < 2; again++) {
      // What is written to a log, not who reads it, decides what may be missing from it.
      await start({ durability: 'disk' });
      const [other] = await connect(1, ASYNCHRONOUS);
      await init([other!]);
      expect(await count(other!)).toBe(4 + again);
      await push(other!, 1);
      await end();
    }
    expect(log.filter((line) => line.includes(path) && line.includes('not kept'))).toHaveLength(1);
    expect(log.filter((line) => line.includes('never acknowledged'))).toEqual([]);
    await start();
  });

  it('while a checkpoint is written leaves a log that can be read, whatever was asked for', async () => {
    await start({ durability: 'process' });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 8);
    // The next log begins; the checkpoint itself is never written.
    files.fault = fullDisk(/writing-step/);
    await expect(store!.checkpoint(1, { isDurable: true })).rejects.toThrow();
    files.fault = () => undefined;
    await end();
    files.cutPower('nothing');
    await start({ durability: 'process' });
    const [other] = await connect(1, ASYNCHRONOUS);
    await init([other!]);
    expect(await count(other!)).toBe(8);
  });

  it('loses nothing of a folder that was new', async () => {
    await start({ durability: 'disk' });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    const flushed = files.calls.filter((call) => call.startsWith('flush '));
    for (const above of [root, join(root, 'deep'), folder]) expect(flushed).toContain(`flush ${above}`);
  });

  it('shares a flush between pushes that come together', async () => {
    await start({ durability: 'disk' });
    const all = await connect(6, ASYNCHRONOUS);
    await init(all);
    await Promise.all(all.map((store) => push(store, 1)));
    const flushes = () => files.calls.filter((call) => call.startsWith('flush ')).length;
    const before = flushes();
    await Promise.all(all.map((store) => push(store, 5)));
    expect(flushes() - before).toBeLessThan(30);
    expect(flushes() - before).toBeGreaterThanOrEqual(5);
  });
});

describe('a flush that failed', () => {
  it('never becomes a success: pushes are refused until a checkpoint with all of it is on the disk', async () => {
    await start({ durability: 'disk' });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 3);
    files.fault = (call, path) => (call === 'flush' && path.endsWith('.pushes') ? 'EIO' : undefined);
    const refused = { code: 'FILE_NOT_WRITTEN' };
    await expect(push(store!, 1)).rejects.toMatchObject(refused);
    files.fault = () => undefined;
    // The next flush would succeed, without the bytes.
    await expect(push(store!, 1)).rejects.toMatchObject(refused);
    await store!.checkpoint(3, { isDurable: true });
    const [other] = await connect(1, ASYNCHRONOUS);
    await init([other!]);
    const kept = await count(other!);
    await push(other!, 2);
    await end();
    files.cutPower('zeros');
    await start({ durability: 'disk' });
    const [again] = await connect(1, ASYNCHRONOUS);
    await init([again!]);
    expect(await count(again!)).toBe(kept + 2);
    expect([3, 4]).toContain(kept);
  });

  it('and a power cut before the next checkpoint leave what was acknowledged before', async () => {
    await start({ durability: 'disk' });
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 3);
    files.fault = (call, path) =>
      (call === 'flush' && path.endsWith('.pushes')) || /writing-step/.test(path) ? 'EIO' : undefined;
    await expect(push(store!, 1)).rejects.toMatchObject({ code: 'FILE_NOT_WRITTEN' });
    await expect(store!.checkpoint(3, { isDurable: true })).rejects.toEqual(notWritten);
    await expect(push(store!, 1)).rejects.toMatchObject({ code: 'FILE_NOT_WRITTEN' });
    await end();
    files.fault = () => undefined;
    files.cutPower('zeros');
    await start({ durability: 'disk' });
    const [again] = await connect(1, ASYNCHRONOUS);
    await init([again!]);
    expect(await count(again!)).toBe(3);
    await push(again!, 1);
    expect(await count(again!)).toBe(4);
  });
});

describe('a flush that failed behind the name of a checkpoint', () => {
  /** Checkpoint 0 has its name, and its folder was not flushed. */
  async function unflushed(): Promise<RemoteStore> {
    await start();
    const [store] = await connect(1);
    await init([store!]);
    files.fault = (call, path) => (call === 'flush' && path === folder && hasPut(0) ? 'EIO' : undefined);
    await expect(store!.checkpoint(0, { isDurable: true })).rejects.toEqual(notWritten);
    expect(readdirSync(folder)).toContain('step-000000000000.checkpoint');
    return store!;
  }

  it('is made good before training goes back to it and calls it written', async () => {
    const store = await unflushed();
    files.fault = () => undefined;
    expect(await store.resume()).toBe(0);
    await store.checkpoint(0, { isDurable: true });
    await end();
    files.cutPower('nothing');
    await start();
    expect(readdirSync(folder)).toContain('step-000000000000.checkpoint');
  });

  it('keeps training from going back to it while it fails again', async () => {
    const store = await unflushed();
    await expect(store.resume()).rejects.toEqual(notWritten);
    await expect(store.checkpoint(0, { isDurable: true })).rejects.toThrow();
  });
});

describe('a folder that another server uses', () => {
  const inUse = named('UsageError', 'FOLDER_IN_USE');

  it('is refused by name, with the process that has it, and is free when that one has closed', async () => {
    await start();
    const first = server;
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 2);
    await start();
    const [other] = await connect(1, ASYNCHRONOUS);
    const asked = init([other!]);
    await expect(asked).rejects.toEqual(inUse);
    await expect(asked).rejects.toThrow(`${folder} is used by a server in process ${process.pid}`);
    await push(store!, 1);
    await store!.checkpoint(3, { isDurable: true });
    await push(store!, 1);
    await store!.close();
    await first.close();
    await init([other!]);
    expect(await count(other!)).toBe(4);
    await end();
    expect(readdirSync(folder).filter((name) => name.endsWith('.lock'))).toEqual([]);
    await start();
  });

  it('gets no checkpoint of synchronous training either', async () => {
    await start();
    const first = server;
    const [store] = await connect(1);
    await init([store!]);
    await store!.checkpoint(1, { isDurable: true });
    await start();
    const [other] = await connect(1);
    await init([other!]);
    const refused = other!.checkpoint(2, { isDurable: true });
    await expect(refused).rejects.toEqual(notWritten);
    await expect(refused).rejects.toMatchObject({ cause: inUse });
    await store!.close();
    await first.close();
    await other!.checkpoint(2, { isDurable: true });
  });
});

describe('files and folders', () => {
  it('are for their owner only', async () => {
    await start();
    const [store] = await connect(1, ASYNCHRONOUS);
    await init([store!]);
    await push(store!, 1);
    await store!.checkpoint(1, { isDurable: true });
    expect(statSync(folder).mode & 0o777).toBe(0o700);
    expect(statSync(join(root, 'deep')).mode & 0o777).toBe(0o700);
    const found = readdirSync(folder);
    expect(found.length).toBeGreaterThan(1);
    for (const name of found) expect(statSync(join(folder, name)).mode & 0o777, name).toBe(0o600);
  });
});
