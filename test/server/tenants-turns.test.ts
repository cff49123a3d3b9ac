/**
 * How tenants share a core: its time, the connections that it reads from, and what it remembers for them. By a clock of the
 * test and by counts, never by how long something takes.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import type { LockableFiles } from '../../src/memory/index.ts';
import { Clocks } from '../../src/server/consistency.ts';
import { FairTurns, LARGE_DEBT_MS, TURN_MS } from '../../src/server/cores/fair-turns.ts';
import { ParameterServer } from '../../src/server/index.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import type { ServerHost } from '../../src/server/server-host.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { bytesOf, openRequest, pushRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';
import type { Identity } from './raw-worker.ts';

const STAGED = { piece: 0, isInPlace: false };
const pull = (count = 1) => pushRequest(1, { push: false, pull: true, steps: [], count });

describe('fair turns', () => {
  function run(costMs: Readonly<Record<string, number>>, rounds: number): Record<string, number> {
    let nowMs = 0;
    const turns = new FairTurns({
      ...systemServerHost.clock,
      nowMs: () => nowMs,
    });
    const groups: Record<string, object> = { a: {}, b: {} };
    const served: Record<string, number> = { a: 0, b: 0 };
    // Of one group there are ten who are always ready, of the other one.
    const ready = [...Array.from({ length: 10 }, () => ({ group: 'a' })), { group: 'b' }];
    for (let i = 0; i < rounds; i++) {
      turns.serve(
        ready,
        ({ group }) => groups[group]!,
        ({ group }) => {
          served[group]! += costMs[group]!;
          nowMs += costMs[group]!;
        },
      );
    }
    return served;
  }

  it('give a tenant with many connections no more time than one with a single one', () => {
    const { a, b } = run({ a: TURN_MS / 5, b: TURN_MS }, 1000);
    expect(a! / b!).toBeGreaterThan(0.9);
    expect(a! / b!).toBeLessThan(1.1);
  });

  it('let a tenant whose work cannot be cut wait until the others have had as much', () => {
    const { a, b } = run({ a: 100 * TURN_MS, b: TURN_MS }, 10_000);
    expect(a! / b!).toBeGreaterThan(0.9);
    expect(a! / b!).toBeLessThan(1.1);
  });
});

describe('a tenant that took much more than its turn', () => {
  const LONG_MS = 20 * LARGE_DEBT_MS;
  const [long, other] = [{ name: 'long' }, { name: 'other' }];

  /** Both ask once; then only the first one does, in rounds of so many milliseconds. Returns how long it waits. */
  function waited(roundMs: number, isOtherHere: boolean, asksAgainMs = Infinity): number {
    let nowMs = 0;
    const turns = new FairTurns({ ...systemServerHost.clock, nowMs: () => nowMs });
    const itself = (one: object): object => one;
    turns.serve(isOtherHere ? [other, long] : [long], itself, (one) => (nowMs += one === long ? LONG_MS : 0));
    const endedMs = nowMs;
    for (let isServed = false; !isServed; nowMs += roundMs) {
      const isAsked = isOtherHere && (nowMs - endedMs) % asksAgainMs === 0;
      turns.serve(isAsked ? [long, other] : [long], itself, (one) => (isServed ||= one === long));
      expect(nowMs - endedMs).toBeLessThan(10 * LONG_MS);
      if (!isServed) expect(turns.waitMs(long)).toBeGreaterThan(0);
    }
    return nowMs - endedMs - roundMs;
  }

  it('waits as long as it took where another one asks now and then', () => {
    expect(waited(1, true, 2)).toBeGreaterThanOrEqual(LONG_MS - 2 * LARGE_DEBT_MS);
    expect(waited(1, true, 2)).toBeLessThanOrEqual(LONG_MS);
  });

  it('does not wait for one that asks no more', () => {
    expect(waited(1, true)).toBeLessThan(LONG_MS / 2);
  });

  it('does not wait if it is alone', () => {
    expect(waited(1, false)).toBe(0);
  });
});

describe('clocks of many workers', () => {
  it('let everybody go on that is not too far ahead, as the slowest advances or leaves', () => {
    const clocks = new Clocks(1, { count: 0 });
    const gone: string[] = [];
    const advance = (worker: number, step: number) =>
      clocks.done(worker, step, () => gone.push(`${worker}:${step}`));
    for (const worker of [0, 1, 2]) clocks.admit(worker);
    for (const [worker, step] of [[0, 1], [0, 2], [1, 1], [2, 1], [1, 2], [1, 3], [2, 2]] as const) advance(worker, step); // prettier-ignore
    expect(gone).toEqual(['0:1', '1:1', '0:2', '2:1', '1:2', '1:3', '2:2']);
    advance(1, 4);
    expect(gone).toHaveLength(7);
    clocks.release(0);
    clocks.release(2);
    expect(gone.at(-1)).toBe('1:4');
  });

  it('start a worker that comes back where it was, so that it holds nobody back when it has nothing left to do', () => {
    const clocks = new Clocks(3, { count: 0 });
    let isGone = false;
    for (const worker of [0, 1]) clocks.admit(worker);
    clocks.done(0, 15, () => undefined);
    clocks.done(1, 20, () => undefined);
    clocks.release(1);
    clocks.admit(1, 20);
    clocks.done(0, 19, () => (isGone = true));
    expect(isGone).toBe(true);
  });

  it('keep one answer for each step of a worker, however often it asks', () => {
    const answers = { count: 0 };
    const clocks = new Clocks(0, answers);
    for (const worker of [0, 1]) clocks.admit(worker);
    const gone: string[] = [];
    for (let i = 0; i < 100; i++) clocks.done(0, 1, () => gone.push(`asked ${i}`));
    expect([answers.count, gone.length]).toEqual([1, 99]);
    clocks.done(0, 2, () => gone.push('step 2'));
    expect(answers.count).toBe(2);
    clocks.done(1, 1, () => undefined);
    expect([answers.count, gone.at(-1)]).toEqual([1, 'asked 99']);
    clocks.release(0);
    expect(answers.count).toBe(0);
  });

  it('take no time that grows with the square of their number', () => {
    const clocks = new Clocks(10, { count: 0 });
    // With a look at all others for each of them this would take minutes.
    for (let worker = 0; worker < 60_000; worker++) clocks.admit(worker);
    for (let worker = 0; worker < 60_000; worker++) clocks.done(worker, 1, () => undefined);
  });
});

describe.skipIf(!hasSharedMemory())('tenants on one core', () => {
  const closing: { close(): unknown }[] = [];
  let server: ParameterServer;

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function start(host: ServerHost): Promise<void> {
    server = await ParameterServer.start({}, host);
    closing.push(server);
  }

  it.each<[string, 'flush' | 'open', (raw: RawWorker, id: number) => void]>([
    ['the disk', 'flush', (raw, id) => raw.say({ id, op: 'learning-rate', number: 0, lr: 0.1 })],
    ['new logs', 'open', (raw, id) => raw.say({ id, op: 'checkpoint', step: id, isDurable: false })],
  ])('pay for the time of %s', async (_what, call, ask) => {
    const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
    const watched = { nowMs: 0, receivedBytes: 0 };
    let calls = 0;
    // As long as a thousand turns of others.
    const files = slowFiles(call, () => {
      calls++;
      watched.nowMs += 1000 * TURN_MS;
    });
    await start(new OneThreadHost({ lookMs: TURN_MS / 100, watched, files }));
    server.createService({ namespace: 'a', nonce: 'a'.padEnd(64, '0'), folder });
    const [busy, other] = [await worker('a'), await worker('b')];
    await busy.openKey(new Float32Array(16));
    await busy.done({ op: 'optimizer', number: 0, spec: { name: 'sgd', lr: 0.1 } });
    await other.openKey(new Float32Array(16));
    let answers = 0;
    let id = 1000;
    for (; id < 1010; id++) ask(busy, id);
    const before = calls;
    for (let i = 0; i < 40; i++) {
      await other.pull();
      for (let heard = busy.take(); heard; heard = busy.take()) {
        expect(heard.header.error).toBeUndefined();
        answers++;
        ask(busy, id++);
      }
    }
    // Without turns there would be one for nearly every pull.
    expect(calls - before).toBeLessThan(10);
    await until(() => {
      for (let heard = busy.take(); heard; heard = busy.take()) answers++;
      return answers >= id - 1000;
    });
  });

  it('pay for taking over the answers of the office', async () => {
    const watched = { nowMs: 0, receivedBytes: 0 };
    let taken = 0;
    const onTake = (message: object) => {
      if (!('answer' in message)) return;
      taken++;
      watched.nowMs += 1000 * TURN_MS;
    };
    await start(new OneThreadHost({ lookMs: TURN_MS / 100, watched, onTake }));
    const [busy, other] = [await worker('a'), await worker('b')];
    await other.openKey(new Float32Array(16));
    let batch = 0;
    const open = () => {
      const keys = [{ key: batch, length: 0 }];
      busy.say({ id: batch, op: 'open', batch, keys, pieces: [], firstPiece: 0, awaitsValues: false });
      batch++;
    };
    open();
    const before = taken;
    for (let i = 0; i < 40; i++) {
      await other.pull();
      for (let heard = busy.take(); heard; heard = busy.take()) open();
    }
    expect(taken - before).toBeGreaterThan(0);
    // Without turns there would be one for nearly every pull.
    expect(taken - before).toBeLessThan(10);
  });

  async function worker(namespace: string, identity?: Identity): Promise<RawWorker> {
    const access = { namespace, nonce: namespace.padEnd(64, '0') };
    if (!server.services.some((one) => one.namespace === namespace)) server.createService(access);
    const raw = await RawWorker.admitted(server, access, identity);
    closing.push(raw);
    return raw;
  }

  it('get turns in the middle of what another one asked for', async () => {
    await start(new OneThreadHost({ lookMs: TURN_MS / 10 }));
    const [long, short] = [await worker('a'), await worker('b')];
    await long.openKey(new Float32Array(1));
    await short.openKey(new Float32Array(1));
    const count = 15_000;
    await long.done({ op: 'list', list: 1, entries: Array.from({ length: count }, () => STAGED) });
    const before = long.heardBytes;
    // 134 bytes, which kept a core for 21 ms.
    long.say({ id: 900, ...pull(count), list: 1 });
    for (let i = 0; i < 20; i++) await short.pull();
    expect(long.heardBytes).toBe(before);
    const heard = await long.hear();
    expect(heard === 'closed' ? heard : heard.header.results).toHaveLength(count);
    expect(await long.pull()).toEqual([0]);
  });

  it('get turns while another one announces a long list', async () => {
    await start(new OneThreadHost({ lookMs: TURN_MS / 10 }));
    const [long, short] = [await worker('a'), await worker('b')];
    await long.openKey(new Float32Array(1));
    await short.openKey(new Float32Array(1));
    const entries = Array.from({ length: 15_000 }, () => ({ piece: 0, isInPlace: true }));
    long.say({ id: 900, op: 'list', list: 1, entries });
    const before = long.heardBytes;
    for (let i = 0; i < 20; i++) await short.pull();
    expect(long.heardBytes).toBe(before);
    expect(await long.hear()).toMatchObject({ header: { id: 900 } });
    // A list that nobody waits for any more is nobody's.
    long.say({ id: 901, op: 'list', list: 2, entries });
    await short.pull();
    await long.close();
    expect(await short.pull()).toEqual([0]);
  });

  describe('whose neighbour has its logs read after a restart', () => {
    const PUSHES = 200;
    let reads = 0;
    const { files } = systemServerHost;
    const counted = {
      ...files,
      read: (...args: Parameters<typeof files.read>) => (reads++, files.read(...args)),
    };

    /** A tenant that has pushed so often, before its server was started again. */
    async function restarted(): Promise<[RawWorker, RawWorker]> {
      const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
      closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
      const service = { namespace: 'a', nonce: 'a'.padEnd(64, '0'), folder };
      await start(new OneThreadHost());
      server.createService(service);
      const before = await worker('a');
      await before.openKey(new Float32Array(16));
      const ones = bytesOf(new Float32Array(16).fill(1));
      for (let step = 1; step <= PUSHES; step++) await before.done(pushRequest(step), ones);
      await before.close();
      await server.close();
      await start(new OneThreadHost({ lookMs: TURN_MS, files: counted }));
      server.createService(service);
      const both = [await worker('a'), await worker('b')] as const;
      await both[1].openKey(new Float32Array(16));
      return [...both];
    }

    /** How often the other one is answered until this one is. */
    async function answersMeanwhile(raw: RawWorker, other: RawWorker): Promise<number> {
      let answers = 0;
      for (let heard = raw.take(); heard === undefined; heard = raw.take(), answers++) await other.pull();
      return answers;
    }

    it('are answered after every few records', async () => {
      const [long, short] = await restarted();
      long.say({ id: 900, ...openRequest('w', 16) });
      expect(await answersMeanwhile(long, short)).toBeGreaterThan(PUSHES / 10);
      await long.done({ op: 'list', list: 0, entries: [STAGED] });
      expect(await long.pull()).toEqual(new Array(16).fill(PUSHES));
    });

    it('lose nothing of their own by a worker that leaves meanwhile', async () => {
      const [long, short] = await restarted();
      long.say({ id: 900, ...openRequest('w', 16) });
      await short.pull();
      await long.done({ op: 'bye' });
      const again = await worker('a');
      await again.done(openRequest('w', 16));
      await again.done({ op: 'list', list: 0, entries: [STAGED] });
      expect(await again.pull()).toEqual(new Array(16).fill(PUSHES));
    });

    it('are not kept waiting by the end of its service', async () => {
      const [long, short] = await restarted();
      reads = 0;
      long.say({ id: 900, ...openRequest('w', 16) });
      while (reads < 20) await short.pull();
      server.endService('a');
      await until(() => long.isClosed && server.services.length === 1);
      expect(await short.pull()).toEqual(new Array(16).fill(0));
      // There are two or three for each.
      expect(reads).toBeLessThan(PUSHES);
    });
  });

  it('cost nothing in the turns of others while they only keep connections open', async () => {
    const host = new OneThreadHost();
    const libc = { ...host.libc };
    const counts = { turns: 0, touched: 0 };
    let view: DataView | undefined;
    let base = 0;
    const startCore = host.startCore.bind(host);
    host.startCore = (memory, options) => {
      const space = SharedSpace.fromMemory(memory);
      [view, base] = [new DataView(space.buffer), Number(space.baseAddress)];
      return startCore(memory, options);
    };
    // The kernel takes both for the same; an entry that was written again has lost the mark.
    const [POLLIN, MARKED] = [0x1, 0x41];
    Object.assign(host.libc, {
      poll(address: number, count: number, timeoutMs: number): number {
        const at = (i: number) => address - base + 8 * i + 4;
        counts.turns++;
        for (let i = 2; i < count; i++) if (view!.getInt16(at(i), true) !== MARKED) counts.touched++;
        const found = libc.poll(address, count, timeoutMs);
        for (let i = 2; i < count; i++) {
          if (view!.getInt16(at(i), true) === POLLIN) view!.setInt16(at(i), MARKED, true);
        }
        return found;
      },
    });
    await start(host);
    const other = await worker('b');
    await other.openKey(new Float32Array(1));
    for (let i = 0; i < 40; i++) await worker('a', { worker: i, settings: { ...SETTINGS, workers: 40 } });
    Object.assign(counts, { turns: 0, touched: 0 });
    for (let i = 0; i < 20; i++) await other.pull();
    expect(counts.touched / counts.turns).toBeLessThan(4);
  });

  it('have as many connections as their service may', async () => {
    await start(new OneThreadHost());
    const access = server.createService({ namespace: 'a', maxConnections: 2 });
    const settings = { ...SETTINGS, workers: 3 };
    for (let i = 0; i < 2; i++)
      closing.push(await RawWorker.admitted(server, access, { worker: i, settings }));
    await expect(RawWorker.admitted(server, access, { worker: 2, settings })).rejects.toThrow(
      '2 connections',
    );
  });

  it('that do not read answers are not read from either', async () => {
    await start(systemServerHost);
    const [deaf, other] = [await worker('a'), await worker('b')];
    await deaf.openKey(new Float32Array(4096));
    await other.openKey(new Float32Array(16));
    deaf.socket.pause();
    const one = encodeHead({ id: 1, ...pull() }, 0);
    const many = Buffer.concat(Array.from({ length: 10_000 }, () => one));
    for (let i = 0; i < 30; i++) deaf.write(many);
    for (let i = 0; i < 300 && deaf.socket.writableLength > 0; i++) await other.pull();
    expect(deaf.socket.writableLength).toBeGreaterThan(0);
    // As soon as it reads, it is answered again, to the last.
    let answered = 0;
    deaf.socket.resume();
    await until(() => {
      for (let heard = deaf.take(); heard; heard = deaf.take()) answered++;
      return answered > 5000;
    });
  });

  it('have only so many requests under way', async () => {
    await start(systemServerHost);
    const settings = { ...SETTINGS, workers: 2, consistency: { kind: 'synchronous' } };
    const raw = await worker('a', { settings });
    await raw.done(openRequest('w', 1));
    const open = encodeHead({ id: 5, ...openRequest('w', 1), awaitsValues: true }, 0);
    const many = Buffer.concat(Array.from({ length: 10_000 }, () => open));
    for (let i = 0; i < 7; i++) raw.write(many);
    // The values never come, so nobody is answered but those who are too many.
    const heard = await raw.hear();
    expect(heard === 'closed' ? heard : heard.header.error).toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('await answers') as string,
    });
    const other = await worker('b');
    await other.openKey(new Float32Array(1));
    expect(await other.pull()).toEqual([0]);
  });

  it('have only so many lists and calls of init', async () => {
    await start(systemServerHost);
    server.createService({ namespace: 'a', nonce: 'a'.padEnd(64, '0'), maxChunks: 1000 });
    const raw = await worker('a');
    await raw.openKey(new Float32Array(1));
    const entries = Array.from({ length: 4800 }, () => STAGED);
    await raw.done({ op: 'list', list: 1, entries });
    await raw.done({ op: 'list', list: 1, entries });
    const second = await raw.ask({ op: 'list', list: 2, entries });
    expect(second === 'closed' ? second : second.header.error).toMatchObject({ code: 'INVALID_ARGUMENT' });
    const empty = { op: 'open', keys: [], pieces: [], firstPiece: 1, awaitsValues: false };
    let refused: unknown;
    for (let batch = 1; batch < 1100 && refused === undefined; batch++) {
      const heard = await raw.ask({ ...empty, batch });
      refused = heard === 'closed' ? heard : heard.header.error;
    }
    expect(refused).toMatchObject({ message: expect.stringContaining('chunks') as string });
    // What a connection announced goes with it.
    await raw.close();
    const again = await worker('a');
    await again.done({ op: 'list', list: 2, entries });
  });
});

/** What touches all pieces of a tenant is done in parts, in its turns. */
describe.skipIf(!hasSharedMemory())('a request for all pieces of a tenant', () => {
  const closing: { close(): unknown }[] = [];
  let server: ParameterServer;

  beforeEach(async () => {
    const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    closing.push({ close: () => rmSync(folder, { recursive: true, force: true }) });
    server = await ParameterServer.start({}, new OneThreadHost({ lookMs: TURN_MS / 10 }));
    closing.push(server);
    server.createService({ namespace: 'a', nonce: 'a'.padEnd(64, '0'), folder });
    server.createService({ namespace: 'b', nonce: 'b'.padEnd(64, '0') });
  });

  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function worker(namespace: string, identity?: Identity): Promise<RawWorker> {
    const raw = await RawWorker.admitted(server, { namespace, nonce: namespace.padEnd(64, '0') }, identity);
    closing.push(raw);
    return raw;
  }

  const COUNT = 2000;
  const opened = {
    ...{ op: 'open', batch: 0, keys: [{ key: 'w', length: COUNT }], firstPiece: 0, awaitsValues: false },
    pieces: Array.from({ length: COUNT }, (_, i) => ({ key: 0, start: i, length: 1, ranges: [[0, 1]] })),
  };
  const values = { op: 'values', batch: 0 };
  const optimizer = { op: 'optimizer', number: 0, spec: { name: 'adam' } };
  const checkpoint = { op: 'checkpoint', step: 1, isDurable: true };

  /** The last of the requests is still under way when another tenant has been served often. */
  async function begin(...requests: readonly object[]): Promise<{ long: RawWorker; short: RawWorker }> {
    const [long, short] = [await worker('a'), await worker('b')];
    await short.openKey(new Float32Array(1));
    const bodyOf = (request: object) => (request === values ? new Uint8Array(4 * COUNT) : undefined);
    for (const request of requests.slice(0, -1)) await long.done(request, bodyOf(request));
    const before = long.heardBytes;
    const last = requests.at(-1)!;
    long.say({ id: 900, ...last }, bodyOf(last));
    for (let i = 0; i < 10; i++) await short.pull();
    expect(long.heardBytes).toBe(before);
    return { long, short };
  }

  async function answered(long: RawWorker): Promise<void> {
    const heard = await long.hear();
    expect(heard === 'closed' ? heard : heard.header).toMatchObject({ id: 900 });
    expect(heard === 'closed' ? heard : heard.header.error).toBeUndefined();
  }

  it.each<[string, readonly object[]]>([
    ['opening them', [opened]],
    ['their first values', [opened, values]],
    ['another optimizer', [opened, values, optimizer]],
    ['a checkpoint', [opened, values, optimizer, checkpoint]],
  ])('lets others have their turns in the middle: %s', async (_what, requests) => {
    const { long } = await begin(...requests);
    await answered(long);
  });

  it('lets nobody of the tenant see or change half of it', async () => {
    const { long, short } = await begin(opened, values, checkpoint);
    // A push that came into the copy would not be in the log that begins with it.
    const joining = worker('a', { worker: 1 });
    for (let i = 0; i < 10; i++) await short.pull();
    let isWelcome = false;
    void joining.then(() => (isWelcome = true));
    expect(isWelcome).toBe(false);
    await answered(long);
    const late = await joining;
    await late.done(opened);
    await late.done({ op: 'list', list: 0, entries: [{ piece: COUNT - 1, isInPlace: false }] });
    await late.done({ ...pushRequest(1), list: 0 }, bytesOf(Float32Array.of(3)));
    expect(await late.pull()).toEqual([3]);
  });
});

/** Files whose caller waits for one kind of call to logs. */
function slowFiles(call: 'flush' | 'open', wait: () => void): LockableFiles {
  const { files } = systemServerHost;
  const logs = new Set<number>();
  return {
    ...files,
    open(path, ...rest) {
      const file = files.open(path, ...rest);
      if (!path.endsWith('.pushes')) return file;
      logs.add(file);
      if (call === 'open') wait();
      return file;
    },
    flush(file) {
      if (call === 'flush' && logs.has(file)) wait();
      files.flush(file);
    },
    close(file) {
      logs.delete(file);
      files.close(file);
    },
  };
}

describe.skipIf(!hasSharedMemory())('a flood of connections', () => {
  it('is let in by a few in each turn, between which those that are there are heard', async () => {
    const host = new OneThreadHost();
    /** Connections that were let in since the kernel was asked last what has come. */
    let accepted = 0;
    const most: number[] = [];
    Object.assign(host.libc, {
      accept: (fd: number) => {
        const result = systemServerHost.libc.accept(fd);
        if (result >= 0) most[most.length - 1] = ++accepted;
        return result;
      },
      poll: (address: number, count: number) => {
        accepted = 0;
        most.push(0);
        return systemServerHost.libc.poll(address, count, 0);
      },
    });
    const server = await ParameterServer.start({ log: () => undefined }, host);
    const access = server.createService({ namespace: 'there' });
    const there = await RawWorker.admitted(server, access);
    const strangers: Socket[] = [];
    try {
      await there.openKey(new Float32Array(16));
      most.splice(0);
      // All of them are in the kernel before the server has its first turn.
      for (let i = 0; i < 100; i++) strangers.push(connect(server.port, '127.0.0.1'));
      await until(() => most.reduce((sum, count) => sum + count, 0) === strangers.length);
      expect(Math.max(...most)).toBe(4);
      await there.pull();
    } finally {
      for (const one of strangers) one.destroy();
      await there.close();
      await server.close();
    }
  });
});
