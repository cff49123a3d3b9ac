/**
 * Every place that takes connections, against callers that connect and say nothing: as many as one address likes, they
 * keep nobody out, and those of other addresses lose nothing by them.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import type { TLSSocket } from 'node:tls';
import { afterEach, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { libc, TlsTunnel } from '../../src/sockets/index.ts';
import { Status } from '../../src/transport/tcp/handshake.ts';
import { RawClient } from '../cluster/raw-client.ts';
import { Servers } from '../kvstore/servers.ts';
import { RawWorker, until } from '../server/raw-worker.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { SECRET } from '../support/secrets.ts';
import { closeEnds, memberAddress, openEnds, until as untilPolled } from '../transport/tcp-pair.ts';
import { helloTo, introduce, Stranger } from '../transport/tcp-stranger.ts';

/** Connections that have not authenticated, at most. */
const MOST = 4;
/** So long that nobody gets in because the time of others is up. */
const HANDSHAKE_TIMEOUT_MS = 2 ** 30;

interface Caller {
  readonly isClosed: boolean;
  /** Authenticates; fails unless it is let in. */
  enter(): Promise<void>;
  close(): unknown;
}

interface Door {
  /** `from`: an address of this host. */
  dial(from: string): Promise<Caller>;
  /** Waits while the door works. */
  until(condition: () => boolean): Promise<void>;
  close(): Promise<unknown>;
}

async function serverDoor(): Promise<Door> {
  const ground = await Servers.start(1, { maxStrangers: MOST, handshakeTimeoutMs: HANDSHAKE_TIMEOUT_MS });
  const access = ground.createService();
  return {
    async dial(from) {
      const worker = await RawWorker.dial(ground.servers[0]!, from);
      return {
        get isClosed() {
          return worker.isClosed;
        },
        async enter() {
          expect(await worker.introduce(access)).toMatchObject({ header: { kind: 'welcome' } });
        },
        close: () => worker.close(),
      };
    },
    until,
    close: () => ground.close(),
  };
}

async function transportDoor(): Promise<Door> {
  const limits = { maxPendingHandshakes: MOST, handshakeTimeoutMs: HANDSHAKE_TIMEOUT_MS };
  const ends = await openEnds(2, limits);
  const [{ transport }] = ends as [(typeof ends)[number]];
  const polled = (condition: () => boolean) => untilPolled(ends, condition);
  let member = 5;
  return {
    async dial(from) {
      const caller = await Stranger.dial(transport, from);
      return {
        get isClosed() {
          return caller.isClosed;
        },
        async enter() {
          const number = member++;
          const joined = transport.connect(0, [memberAddress(number, ends[1]!.transport)]);
          expect(await introduce(caller, helloTo(transport, number), polled)).toBe(Status.OK);
          await joined;
        },
        close: () => caller.close(),
      };
    },
    until: polled,
    close: () => closeEnds(ends),
  };
}

async function schedulerDoor(): Promise<Door> {
  const limits = { maxPending: MOST, handshakeTimeoutMs: HANDSHAKE_TIMEOUT_MS };
  const scheduler = await Scheduler.start({ size: 1, secret: SECRET, ...limits });
  return {
    async dial(from) {
      const client = await RawClient.connect(scheduler, from);
      return {
        get isClosed() {
          return client.socket.closed;
        },
        async enter() {
          await client.join(SECRET);
          await client.until('welcome');
        },
        close: () => client.destroy(),
      };
    },
    until,
    close: () => scheduler.close(),
  };
}

async function tunnelDoor(): Promise<Door> {
  const folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
  const tls = makeCertificates(folder, 'ours');
  const limits = { handshakeTimeoutMs: 60_000, maxPendingHandshakes: MOST, log: () => undefined };
  const anywhere = { host: '127.0.0.1', ports: [0, 0], socketBufferBytes: 0 } as const;
  const tunnel = await TlsTunnel.open(tls, limits, anywhere);
  const { fd, port } = tunnel.listening!;
  return {
    async dial(from) {
      const socket: Socket = connect({ port, host: '127.0.0.1', localAddress: from });
      socket.on('error', () => undefined);
      // Else nobody would see that it is closed.
      socket.resume();
      await once(socket, 'connect');
      let secured: TLSSocket | undefined;
      return {
        get isClosed() {
          return socket.closed;
        },
        async enter() {
          const { key, cert, ca } = tls;
          secured = connectTls({ ...{ key, cert, ca, socket, checkServerIdentity: () => undefined } });
          await once(secured, 'secureConnect');
        },
        close: () => (secured ?? socket).destroy(),
      };
    },
    until,
    async close() {
      libc().close(fd);
      await tunnel.close();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

const DOORS = [
  ['a core of a server', hasSharedMemory(), serverDoor],
  ['a TCP transport', hasSharedMemory(), transportDoor],
  ['a scheduler', true, schedulerDoor],
  ['a TLS tunnel', hasSharedMemory() && hasOpenssl, tunnelDoor],
] as const;

describe.each(DOORS)('callers of %s that say nothing', (_what, isPossible, open) => {
  const opened: { close(): unknown }[] = [];
  afterEach(async () => {
    for (const one of opened.splice(0).reverse()) await one.close();
  });
  const openDoor = async (): Promise<Door> => {
    const door = await open();
    opened.push(door);
    return door;
  };
  const arrive = async (door: Door, count: number, from: string): Promise<Caller[]> => {
    const callers: Caller[] = [];
    for (let i = 0; i < count; i++) callers.push(await door.dial(from));
    opened.push(...callers);
    return callers;
  };

  it.skipIf(!isPossible).each(['127.0.0.2', '127.0.0.1'])('at %s keep nobody out', async (from) => {
    const door = await openDoor();
    const flood = await arrive(door, 5 * MOST, from);
    await door.until(() => flood.filter(({ isClosed }) => isClosed).length >= flood.length - MOST);
    const [caller] = await arrive(door, 1, '127.0.0.1');
    await caller!.enter();
  });

  it.skipIf(!isPossible)('cost those of other addresses nothing, however many come', async () => {
    const door = await openDoor();
    const [slow] = await arrive(door, 1, '127.0.0.1');
    const flood = await arrive(door, 10 * MOST, '127.0.0.2');
    await door.until(() => flood.filter(({ isClosed }) => isClosed).length > flood.length - MOST);
    await slow!.enter();
  });
});
