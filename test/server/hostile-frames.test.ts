/**
 * Mutated frames against a server on which others train: from strangers, who never get past the door, and from members of
 * tenants, who know the nonce, over services that push asynchronously, hold updates, and end. Nothing of another tenant, or
 * of the same owner's other namespace, may change by a bit, none of its calls may fail, and the server must be as it was
 * before. TRIBUTARY_FUZZ_FRAMES says how many frames of members are read; 100,000 with TRIBUTARY_ACCEPTANCE.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { segmentPrefix, SERVER_PROTOCOL_VERSION } from '../../src/server/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { Servers } from '../kvstore/servers.ts';
import { Mutations, setup } from './frame-mutations.ts';
import { RawWorker, SETTINGS, until } from './raw-worker.ts';
import { nonce, segments, Victim } from './tenant-victim.ts';

const MEMBER_FRAMES = Number(
  process.env['TRIBUTARY_FUZZ_FRAMES'] ?? (process.env['TRIBUTARY_ACCEPTANCE'] ? 100_000 : 10_000),
);
const STRANGER_FRAMES = 10_000;
const FRAMES_PER_CONNECTION = 40;
const FRAMES_PER_MEMBER = 100;
const STRANGERS_AT_ONCE = 40;
const MEMBERS_AT_ONCE = 8;
/** Of the event loop, between two steps of those who train meanwhile. */
const TURNS_PER_STEP = 20;
/** A service is ended after so many rounds of members, in the middle of what they do, and made anew. */
const ROUNDS_PER_SERVICE = 10;
/** The id of the request that ends a connection's frames. */
const LAST = 1_000_000;
const MAX_BYTES = 8 * 2 ** 20;
const HELD = { ...SETTINGS, workers: MEMBERS_AT_ONCE, consistency: { kind: 'synchronous' }, isHeld: true };

describe.skipIf(!hasSharedMemory())('mutated frames', () => {
  const seed = Math.floor(Math.random() * 2 ** 31);
  const random = new Random(seed);
  const mutations = new Mutations(random);
  let ground: Servers;
  let access: ServiceAccess;
  let others: Victim[];
  let folder: string;
  let residentBefore = 0;

  beforeAll(async () => {
    console.log(`fuzz seed ${seed}`);
    folder = mkdtempSync(join(tmpdir(), 'tributary-fuzz-'));
    ground = await Servers.start(1, { cores: 1 });
    access = hostile();
    others = [await Victim.open(ground), await Victim.open(ground, 3000, `${access.namespace}-other`)];
    residentBefore = process.memoryUsage().rss;
  });
  afterAll(async () => {
    for (const other of others) await other.close();
    await ground.close();
    rmSync(folder, { recursive: true, force: true });
  });

  /** A service of those who mean badly; its checkpoints are kept. */
  function hostile(): ServiceAccess {
    const own = join(folder, String(random.below(2 ** 31)));
    return ground.createService({ maxBytes: MAX_BYTES, maxChunks: 1000, graceMs: 100, folder: own });
  }

  async function othersAreUnchanged(): Promise<void> {
    expect(ground.servers[0]!.failure, `seed ${seed}`).toBeUndefined();
    for (const other of others) {
      expect(await other.damage(), `seed ${seed}`).toEqual([]);
      await other.train(1);
    }
  }

  it('of strangers end at the door', async () => {
    const { namespace } = access;
    const hello = { kind: 'hello', version: SERVER_PROTOCOL_VERSION, namespace, nonce: nonce() };
    let sent = 0;
    let answered = 0;
    while (sent < STRANGER_FRAMES) {
      const strangers = await Promise.all(
        Array.from({ length: STRANGERS_AT_ONCE }, () => RawWorker.dial(ground.servers[0]!)),
      );
      for (const [i, stranger] of strangers.entries()) {
        const first = Buffer.from(encodeHead(hello, 0));
        if (i % 3 > 0) first[random.below(first.length)]! ^= 1 << random.below(8);
        const frames = Array.from({ length: FRAMES_PER_CONNECTION }, (_, id) =>
          random.below(4) === 0 ? mutations.broken(id) : mutations.framed(id),
        );
        sent += frames.length;
        stranger.socket.end(Buffer.concat([i % 3 === 2 ? Buffer.alloc(0) : first, ...frames]));
      }
      await until(() => strangers.every(({ isClosed }) => isClosed));
      for (const stranger of strangers) {
        for (let heard = stranger.take(); heard; heard = stranger.take()) {
          answered++;
          // Whoever speaks another version is told so.
          expect(['challenge', 'refused'], `seed ${seed}`).toContain(heard.header.kind);
        }
      }
    }
    expect(answered).toBeGreaterThan(0);
    await othersAreUnchanged();
  });

  /** One connection: opens the keys, sends mutated frames until it is closed or through, and breaks off. */
  async function misbehave(worker: number, settings: unknown): Promise<{ read: number; refused: number }> {
    const member = await RawWorker.admitted(ground.servers[0]!, access, { worker, settings });
    for (const { header, body } of setup()) await member.ask(header, body);
    const frames = Array.from({ length: FRAMES_PER_MEMBER }, (_, i) => mutations.framed(100 + i));
    const last = { id: LAST, op: 'values', batch: 0 };
    const { body } = setup()[1]!;
    member.write(Buffer.concat([...frames, encodeHead(last, body.length), body]));
    const ids = new Set<unknown>();
    let refused = 0;
    await until(() => {
      for (let heard = member.take(); heard; heard = member.take()) {
        ids.add(heard.header.id);
        if (heard.header.error !== undefined) refused++;
      }
      return member.isClosed || ids.has(LAST);
    });
    // All were read before the last; else at least those that were answered, and the one that it was closed for.
    const read = ids.has(LAST) ? FRAMES_PER_MEMBER : ids.size + 1;
    member.socket.end(mutations.broken(1));
    await until(() => member.isClosed);
    return { read, refused };
  }

  it(
    'of members change nothing of others, who go on meanwhile, and do not end the server',
    async () => {
      let [read, refused, connections, steps, isOver] = [0, 0, 0, 0, false];
      const training = (async () => {
        for (; !isOver; steps++) {
          for (const other of others) await other.train(1);
          // Stores block the thread while they wait; the others here have theirs to do.
          for (let i = 0; i < TURNS_PER_STEP && !isOver; i++) await new Promise(setImmediate);
        }
      })();
      for (let round = 0; read < MEMBER_FRAMES; round++) {
        const settings = Math.floor(round / ROUNDS_PER_SERVICE) % 2 === 0 ? SETTINGS : HELD;
        const members = Array.from({ length: MEMBERS_AT_ONCE }, (_, worker) => misbehave(worker, settings));
        const all = await Promise.all(members);
        connections += all.length;
        for (const one of all) {
          read += one.read;
          refused += one.refused;
        }
        if (round % ROUNDS_PER_SERVICE !== ROUNDS_PER_SERVICE - 1) continue;
        // In the middle of what one of them does.
        const late = misbehave(0, settings).catch(() => undefined);
        ground.servers[0]!.endService(access.namespace);
        access = hostile();
        await late;
        await othersAreUnchanged();
      }
      isOver = true;
      await training;
      console.log(
        `${read} mutated frames were read, ${refused} answered by a refusal, on ${connections} connections, in ${steps} steps of others`,
      );
      expect(refused).toBeGreaterThan(MEMBER_FRAMES / 100);
      expect(steps).toBeGreaterThan(0);
      await othersAreUnchanged();
    },
    60_000 + 20 * MEMBER_FRAMES,
  );

  it('leave the server as large as it was', () => {
    const { bytes } = ground.servers[0]!.services.find(({ namespace }) => namespace === access.namespace)!;
    expect(bytes).toBeLessThanOrEqual(MAX_BYTES);
    const prefix = `tributary-${segmentPrefix(access.namespace, access.nonce)}`;
    expect(segments().filter((name) => name.startsWith(prefix)).length).toBeLessThan(1000);
    const grownBytes = process.memoryUsage().rss - residentBefore;
    expect(grownBytes, `seed ${seed}`).toBeLessThan(512 * 2 ** 20);
  });

  it('keep nobody from training afterwards', async () => {
    await others[0]!.train(10);
    const next = await Victim.open(ground, 1000);
    await next.train(10);
    expect(await next.damage()).toEqual([]);
    expect(await others[0]!.damage()).toEqual([]);
    await next.close();
  });
});
