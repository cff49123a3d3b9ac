/**
 * What a tenant makes a core keep by messages that it does not finish and by answers that it does not read: limited over all
 * its connections, and for a time only. By a clock of the test and by bytes, never by how long something takes.
 */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { ParameterServer } from '../../src/server/index.ts';
import { encodeHead, MEMBER_LIMITS, PREFIX_BYTES } from '../../src/server/wire/frame.ts';
import { OneThreadHost } from './one-thread-host.ts';
import { pushRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';

const CONNECTIONS = 16;
const LONGEST_BYTES = MEMBER_LIMITS.headerBytes;
const STALL_TIMEOUT_MS = 1000;

describe.skipIf(!hasSharedMemory())('a tenant with many connections', () => {
  const closing: { close(): unknown }[] = [];
  const lines: string[] = [];
  const watched = { nowMs: 0, receivedBytes: 0 };
  let server: ParameterServer;
  let other: RawWorker;

  beforeEach(async () => {
    lines.length = 0;
    const options = { stallTimeoutMs: STALL_TIMEOUT_MS, log: (line: string) => void lines.push(line) };
    server = await ParameterServer.start(options, new OneThreadHost({ watched }));
    closing.push(server);
    other = await worker('b', 0);
    await other.openKey(new Float32Array(16));
  });
  afterEach(async () => {
    for (const one of closing.splice(0).reverse()) await one.close();
  });

  async function worker(namespace: string, number: number): Promise<RawWorker> {
    const access = { namespace, nonce: namespace.padEnd(64, '0') };
    if (!server.services.some((one) => one.namespace === namespace)) server.createService(access);
    const settings = { ...SETTINGS, workers: CONNECTIONS };
    const raw = await RawWorker.admitted(server, access, { worker: number, settings });
    closing.push(raw);
    return raw;
  }

  const workers = (count: number) => Promise.all(Array.from({ length: count }, (_, i) => worker('a', i)));
  /** Does it, and waits until the server has received all that was said. */
  const heard = async (raw: readonly RawWorker[], say: () => void) => {
    const said = () =>
      raw.reduce((sum, one) => sum + one.said.reduce((all, { length }) => all + length, 0), 0);
    const [before, from] = [said(), watched.receivedBytes];
    say();
    await until(() => watched.receivedBytes - from >= said() - before);
  };
  /** The other tenant is served, again and again: whatever the core would do for the first one it has done. */
  const turns = async (count: number) => {
    for (let i = 0; i < count; i++) await other.pull();
  };

  it('is not read from beyond four of the longest headers, and not for longer than they go on', async () => {
    const all = await workers(8);
    const unfinished = Buffer.alloc(PREFIX_BYTES + LONGEST_BYTES - 1, ' ');
    encodeHead({}, 0).copy(unfinished, 0, 0, PREFIX_BYTES);
    unfinished.writeUInt32LE(LONGEST_BYTES, 4);
    const from = watched.receivedBytes;
    for (const raw of all) raw.write(unfinished);
    const read = () => (watched.receivedBytes - from) / LONGEST_BYTES;
    await until(() => read() >= 4);
    await turns(100);
    // Of the others the first bytes only.
    expect(read()).toBeLessThan(5);
    // Those that send nothing more make room for the others, until nobody is left.
    await until(() => {
      watched.nowMs += STALL_TIMEOUT_MS / 10;
      return all.every(({ isClosed }) => isClosed);
    });
    expect(lines.filter((line) => line.includes('in the middle of a message'))).toHaveLength(all.length);
    const again = await worker('a', 0);
    await again.openKey(new Float32Array(16));
  });

  it('may take as long as it likes for a message of which more comes', async () => {
    const [slow] = await workers(1);
    const text = JSON.stringify({ id: 1, op: 'beat', padding: ' '.repeat(64 * 1024) });
    const frame = Buffer.concat([encodeHead({}, 0).subarray(0, PREFIX_BYTES), Buffer.from(text)]);
    frame.writeUInt32LE(text.length, 4);
    for (let at = 0; at < frame.length; at += 16 * 1024) {
      await heard([slow!], () => slow!.write(frame.subarray(at, at + 16 * 1024)));
      await turns(2);
      watched.nowMs += STALL_TIMEOUT_MS / 2;
      await turns(2);
    }
    expect(await slow!.hear()).toMatchObject({ header: { id: 1 } });
    // Nor is anybody in a hurry between messages.
    watched.nowMs += 10 * STALL_TIMEOUT_MS;
    await turns(5);
    expect(await slow!.ask({ op: 'beat' })).not.toBe('closed');
  });

  it('that does not read answers is not read from on any of them, until those that never read are gone', async () => {
    const [first] = await workers(1);
    await first!.openKey(new Float32Array(4096));
    // By the last of them it is too much. What is kept for an answer is a range for every chunk that it carries; the kernel takes little of 288 MB.
    const count = 17_000;
    const entries = Array.from({ length: count }, () => ({ piece: 0, isInPlace: false }));
    const pull = pushRequest(1, { push: false, pull: true, steps: [], list: 1, count });
    const deaf: RawWorker[] = [];
    for (let i = 1; i < CONNECTIONS; i++) {
      const raw = await worker('a', i);
      await raw.done({ op: 'list', list: 1, entries });
      raw.socket.pause();
      deaf.push(raw);
    }
    await heard(deaf, () => {
      for (const raw of deaf) raw.say({ id: 900, ...pull });
    });
    const before = first!.heardBytes;
    first!.say({ id: 901, op: 'beat' });
    await turns(100);
    expect(first!.heardBytes).toBe(before);
    await until(() => {
      watched.nowMs += STALL_TIMEOUT_MS / 100;
      return first!.heardBytes > before;
    });
    expect(first!.take()).toMatchObject({ header: { id: 901 } });
    expect(lines.filter((line) => line.includes('did not read'))).not.toEqual([]);
  });
});
