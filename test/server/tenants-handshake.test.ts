/** Who gets in: proofs of the nonce, wrong, replayed, forged and reflected; and workers that dial somebody else's server. */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/base/index.ts';
import { RemoteStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { SERVER_PROTOCOL_VERSION } from '../../src/server/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import { encodeHead } from '../../src/server/wire/frame.ts';
import { challenge } from '../../src/sockets/index.ts';
import { Servers } from '../kvstore/servers.ts';
import { openRequest, RawWorker, SETTINGS, until } from './raw-worker.ts';
import type { Heard } from './raw-worker.ts';

describe.skipIf(!hasSharedMemory())('the door of a parameter server', () => {
  let ground: Servers;
  let access: ServiceAccess;
  let other: ServiceAccess;
  const workers: RawWorker[] = [];
  const lines: string[] = [];
  const dial = async (): Promise<RawWorker> => {
    const worker = await RawWorker.dial(ground.servers[0]!);
    workers.push(worker);
    return worker;
  };
  const kindOf = (heard: Heard | 'closed'): unknown => (heard === 'closed' ? heard : heard.header);

  beforeAll(async () => {
    ground = await Servers.start(1, { log: (line) => void lines.push(line) });
    access = ground.createService();
    other = ground.createService();
  });
  afterEach(async () => {
    for (const worker of workers.splice(0)) await worker.close();
    expect(ground.servers[0]!.failure).toBeUndefined();
  });
  afterAll(() => ground.close());

  it('opens for whoever knows the nonce', async () => {
    const worker = await dial();
    expect(kindOf(await worker.introduce(access))).toMatchObject({ kind: 'welcome' });
  });

  it('answers a wrong nonce and a namespace that does not exist alike', async () => {
    const [wrong, nobody] = [await dial(), await dial()];
    const first = await wrong.introduce({ ...access, nonce: challenge() });
    const second = await nobody.introduce({ namespace: 'nobody', nonce: challenge() });
    expect(kindOf(first)).toEqual({ kind: 'refused' });
    expect(kindOf(second)).toEqual(kindOf(first));
    expect(await wrong.hear()).toBe('closed');
    expect(await nobody.hear()).toBe('closed');
    expect(nobody.heardBytes).toBe(wrong.heardBytes);
    // The log, which only the owner of the server reads, tells them apart.
    const { namespace } = access;
    await until(() => lines.some((line) => line.includes("'nobody'")));
    expect(lines).toEqual([
      expect.stringMatching(`it does not know the nonce of namespace '${namespace}'$`),
      expect.stringMatching(
        `it asked for service 'nobody', which is not here; services: ${namespace}, ${other.namespace}$`,
      ),
    ]);
  });

  it('does not take a handshake that was recorded', async () => {
    const honest = await dial();
    await honest.introduce(access);
    const replay = await dial();
    const [hello, proof] = honest.said;
    replay.write(hello!);
    expect(kindOf(await replay.hear())).toMatchObject({ kind: 'challenge' });
    replay.write(proof!);
    expect(kindOf(await replay.hear())).toEqual({ kind: 'refused' });
    expect(await replay.hear()).toBe('closed');
    // Nor in one go, before the challenge was heard.
    const blind = await dial();
    blind.write(Buffer.concat([hello!, proof!]));
    expect(kindOf(await blind.hear())).toMatchObject({ kind: 'challenge' });
    expect(kindOf(await blind.hear())).toEqual({ kind: 'refused' });
  });

  it('does not take a proof for one namespace as one for another', async () => {
    const forged = await dial();
    const theirs = { namespace: other.namespace, nonce: access.nonce };
    expect(kindOf(await forged.introduce(theirs, {}, access.namespace))).toEqual({ kind: 'refused' });
    const plain = await dial();
    expect(kindOf(await plain.introduce(theirs))).toEqual({ kind: 'refused' });
    // Right nonce, but a proof whose text is about another namespace.
    const mixed = await dial();
    expect(kindOf(await mixed.introduce(access, {}, other.namespace))).toEqual({ kind: 'refused' });
  });

  it('answers no request before the proof, nor behind a wrong one', async () => {
    const early = await dial();
    early.say({ id: 1, ...openRequest('w', 16) });
    expect(await early.hear()).toBe('closed');
    const second = await dial();
    second.say({ kind: 'hello', version: SERVER_PROTOCOL_VERSION, ...access, nonce: challenge() });
    second.say({ id: 1, ...openRequest('w', 16) });
    expect(kindOf(await second.hear())).toMatchObject({ kind: 'challenge' });
    expect(await second.hear()).toBe('closed');
    expect(ground.servers[0]!.services.map(({ bytes }) => bytes)).toEqual([0, 0]);
  });

  it.each([
    ['a namespace that is no name', { namespace: '../x' }],
    ['a namespace that is no text', { namespace: ['a'] }],
    ['a short nonce', { nonce: 'ab' }],
    ['another kind', { kind: 'proof' }],
  ])('closes at %s', async (_what, change) => {
    const worker = await dial();
    const { namespace } = access;
    worker.say({
      ...{ kind: 'hello', version: SERVER_PROTOCOL_VERSION, namespace, nonce: challenge() },
      ...change,
    });
    expect(await worker.hear()).toBe('closed');
  });

  it.each([
    ['worker', { worker: 1 }],
    ['incarnation', { incarnation: challenge() }],
    ['settings', { settings: { ...SETTINGS, combine: 'mean' } }],
    ['field more', { more: 1 }],
  ])('does not take a proof if the %s was changed on its way', async (_what, change) => {
    const worker = await dial();
    expect(kindOf(await worker.introduce(access, {}, undefined, change))).toEqual({ kind: 'refused' });
    expect(await worker.hear()).toBe('closed');
  });

  it('names both versions to a worker of another one', async () => {
    const worker = await dial();
    worker.say({ kind: 'hello', version: SERVER_PROTOCOL_VERSION + 1, something: 'else' });
    const refusal = await worker.hear();
    expect(kindOf(refusal)).toMatchObject({ kind: 'refused', error: { code: 'REFUSED' } });
    const text = JSON.stringify(kindOf(refusal));
    expect(text).toContain(`version ${SERVER_PROTOCOL_VERSION + 1} `);
    expect(text).toContain(`version ${SERVER_PROTOCOL_VERSION};`);
    expect(await worker.hear()).toBe('closed');
  });

  it('is left alone by a worker whose welcome was changed on its way', async () => {
    const { port } = ground.servers[0]!;
    const relay = await Relay.listen(port, (bytes) =>
      Buffer.from(bytes.toString('latin1').replace(`"ports":[${port}]`, `"ports":[${port - 1}]`), 'latin1'),
    );
    const own = ground.createService();
    const connecting = RemoteStore.connect({
      ...{ servers: [relay.address], access: own, worker: 0, workers: 1, reconnectTimeoutMs: 300 },
    });
    await expect(connecting).rejects.toMatchObject({ code: 'REFUSED' });
    await relay.close();
  });

  it('names a wrong nonce to the worker that has it', async () => {
    const connecting = RemoteStore.connect({
      servers: ground.addresses,
      access: { ...access, nonce: challenge() },
      ...{ worker: 3, workers: 4, reconnectTimeoutMs: 300 },
    });
    await expect(connecting).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringMatching(
        new RegExp(`namespace '${access.namespace}'.*nonces/${access.namespace}\\.nonce`),
      ) as string,
    });
  });

  it('keeps the nonce and the proof to itself', () => {
    for (const line of lines) expect(line).not.toContain(access.nonce);
  });
});

/** Somebody between a worker and a server, who passes on what they say, that of the server with changes. */
class Relay {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(port: number, change: (bytes: Buffer) => Buffer) {
    this.#server = createServer((worker) => {
      const server = connect(port, '127.0.0.1');
      for (const socket of [worker, server]) {
        this.#sockets.add(socket);
        socket.on('error', () => undefined);
      }
      worker.pipe(server);
      server.on('data', (bytes) => worker.write(change(bytes)));
      server.on('end', () => worker.end());
    });
  }

  static async listen(port: number, change: (bytes: Buffer) => Buffer): Promise<Relay> {
    const relay = new Relay(port, change);
    relay.#server.listen(0, '127.0.0.1');
    await once(relay.#server, 'listening');
    return relay;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

/** Somebody who listens where a server was, and knows no nonce. */
class FakeServer {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** All that workers said. */
  heard = '';
  connections = 0;
  #port: number | undefined;

  private constructor(answers: readonly (() => object)[]) {
    this.#server = createServer((socket) => {
      this.#sockets.add(socket);
      let said = 0;
      socket.on('error', () => undefined);
      if (this.connections++ > 0 && this.#port !== undefined) {
        const server = connect(this.#port, '127.0.0.1');
        this.#sockets.add(server.on('error', () => undefined));
        return void socket.pipe(server).pipe(socket);
      }
      socket.on('data', (bytes) => {
        this.heard += bytes.toString('latin1');
        const next = answers[said++];
        if (next) socket.write(encodeHead(next(), 0));
      });
    });
  }

  /** From the second connection on, the right server answers. */
  passOnTo(port: number): void {
    this.#port = port;
  }

  static async listen(...answers: readonly (() => object)[]): Promise<FakeServer> {
    const fake = new FakeServer(answers);
    fake.#server.listen(0, '127.0.0.1');
    await once(fake.#server, 'listening');
    return fake;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

describe.skipIf(!hasSharedMemory())('a worker that dials a server which does not know the nonce', () => {
  const access = { namespace: 'mine', nonce: challenge() };
  const hex = (): string => challenge();
  const challenged = (): object => ({ kind: 'challenge', version: SERVER_PROTOCOL_VERSION, nonce: hex() });
  const refusal = (message: string): object => ({
    kind: 'refused',
    error: { kind: 'PeerError', code: 'REFUSED', message, facts: {} },
  });
  const welcome = (): object => ({ kind: 'welcome', proof: hex(), run: 'a', ports: [1], beacon: undefined });

  it.each<[string, (() => object)[], string]>([
    ['a made-up welcome', [challenged, welcome], 'REFUSED'],
    ['a welcome without a challenge', [welcome], 'REFUSED'],
    ['a welcome that is no welcome', [challenged, () => ({ kind: 'welcome' })], 'UNREACHABLE'],
    ['nonsense', [() => ({ kind: 5 })], 'UNREACHABLE'],
    ['two challenges', [challenged, challenged], 'UNREACHABLE'],
    ['an answer to nothing', [() => ({ id: 1, results: [] })], 'UNREACHABLE'],
    ['a refusal', [challenged, () => ({ kind: 'refused' })], 'REFUSED'],
  ])('tells it nothing after %s', async (_what, answers, code) => {
    const fake = await FakeServer.listen(...answers);
    try {
      const connecting = RemoteStore.connect({
        ...{ servers: [fake.address], access, worker: 0, workers: 1, reconnectTimeoutMs: 300 },
      });
      await expect(connecting).rejects.toMatchObject({ code });
      expect(fake.heard).toContain('hello');
      expect(fake.heard).not.toContain(access.nonce);
      for (const word of ['open', 'values', 'exchange', 'barrier'])
        expect(fake.heard).not.toContain(`"${word}"`);
    } finally {
      await fake.close();
    }
  });

  it.each<[string, (() => object)[]]>([
    ['refuses it', [challenged, () => ({ kind: 'refused' })]],
    ['refuses it with an error', [() => refusal('go away')]],
    ['makes up a welcome', [challenged, welcome]],
    ['names another version', [() => ({ ...challenged(), version: SERVER_PROTOCOL_VERSION + 1 })]],
  ])('asks again after somebody %s, until the right one answers', async (_what, answers) => {
    const ground = await Servers.start(1);
    const own = ground.createService();
    const fake = await FakeServer.listen(...answers);
    fake.passOnTo(ground.servers[0]!.port);
    try {
      const store = await RemoteStore.connect({
        ...{ servers: [fake.address], access: own, worker: 0, workers: 1, sharedMemory: false },
      });
      expect(fake.connections).toBe(2);
      await store.close();
    } finally {
      await fake.close();
      await ground.close();
    }
  });

  it('names what was said last, and that it is not proved', async () => {
    const fake = await FakeServer.listen(() => refusal('go\u001b[31m away'));
    const connecting = RemoteStore.connect({
      ...{ servers: [fake.address], access, worker: 3, workers: 4, reconnectTimeoutMs: 100 },
    });
    await expect(connecting).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringMatching(
        /^worker 3 .* for 100 ms.* has not proved that it knows the nonce of namespace 'mine'.*"go\\u001b\[31m away"/,
      ) as string,
    });
    await fake.close();
  });

  it('is not ended by what cannot be printed, and prints nothing that steers a terminal', async () => {
    const said = [{ toString: 1 }, '\u009b31m\u2028\u202e'];
    let answers = 0;
    const fake = await FakeServer.listen(() => ({
      kind: 'refused',
      error: { message: said[Math.min(answers++, 1)] },
    }));
    const connecting = RemoteStore.connect({
      ...{ servers: [fake.address], access, worker: 0, workers: 1, reconnectTimeoutMs: 1000 },
    });
    await expect(connecting).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringContaining('"\\u009b31m\\u2028\\u202e"') as string,
    });
    expect(answers).toBeGreaterThan(1);
    await fake.close();
  });

  it('names both versions where a server of another one answers', async () => {
    const version = SERVER_PROTOCOL_VERSION + 1;
    const fake = await FakeServer.listen(() => ({ ...challenged(), version }));
    const connecting = RemoteStore.connect({
      ...{ servers: [fake.address], access, worker: 0, workers: 1, reconnectTimeoutMs: 300 },
    });
    await expect(connecting).rejects.toMatchObject({
      code: 'REFUSED',
      message: expect.stringMatching(`version ${version} .* version ${SERVER_PROTOCOL_VERSION};`) as string,
    });
    await fake.close();
  });

  it('reads no long header before it knows who speaks', async () => {
    const fake = await FakeServer.listen(() => ({ ...challenged(), padding: 'x'.repeat(8 * 1024) }));
    const connecting = RemoteStore.connect({
      ...{ servers: [fake.address], access, worker: 0, workers: 1, reconnectTimeoutMs: 300 },
    });
    await expect(connecting).rejects.toMatchObject({
      code: 'UNREACHABLE',
      message: expect.stringContaining('announced a header of') as string,
    });
    await fake.close();
  });

  it.each([
    ['a number', 17],
    ['null', null],
    ['an object of nothing', {}],
    ['a kind that is none', { kind: 'toString', code: 'REFUSED', message: 'no', facts: {} }],
    ['a code that is none', { kind: 'PeerError', code: 7, message: { a: 1 }, facts: 3, cause: 4 }],
    ['a stack that is no text', { kind: 'PeerError', code: 'REFUSED', message: 'no', facts: {}, stack: {} }],
  ])('survives a refusal with %s for an error', async (_what, error) => {
    const fake = await FakeServer.listen(() => ({ kind: 'refused', error }));
    try {
      const connecting = RemoteStore.connect({
        ...{ servers: [fake.address], access, worker: 0, workers: 1, reconnectTimeoutMs: 300 },
      });
      await expect(connecting).rejects.toBeInstanceOf(TributaryError);
    } finally {
      await fake.close();
    }
  });
});
