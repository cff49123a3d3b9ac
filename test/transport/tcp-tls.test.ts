/** TCP over TLS: members whose certificates one authority signed, and strangers with others or none. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { TlsOptions } from '../../src/sockets/index.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import { hasOpenssl, makeCertificates } from '../support/certificates.ts';
import { TlsRelay } from '../support/tls-relay.ts';
import { closeEnds, envelope, memberAddress, openEnd, openEnds, until } from './tcp-pair.ts';
import type { End } from './tcp-pair.ts';
import { Stranger } from './tcp-stranger.ts';
import { SECRET } from '../support/secrets.ts';

describe.skipIf(!hasSharedMemory() || !hasOpenssl)('the TCP transport with TLS', () => {
  const temporary = process.env.TMPDIR;
  let folder = '';
  let ours: TlsOptions;
  let theirs: TlsOptions;
  const ends: End[] = [];

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'test-tributary-'));
    // What the transport leaves in the temporary folder is seen in a folder of our own.
    process.env.TMPDIR = folder;
    ours = makeCertificates(folder, 'ours');
    theirs = makeCertificates(folder, 'theirs');
  });
  afterEach(async () => {
    await closeEnds(ends.splice(0));
    expect(readdirSync(folder).filter((name) => name.startsWith('tributary-tls-'))).toEqual([]);
  });
  afterAll(() => {
    if (temporary === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = temporary;
    rmSync(folder, { recursive: true, force: true });
  });

  async function exchange([a, b]: readonly [End, End], length: number): Promise<void> {
    const from = a.space.allocate(length).allocate('uint8', length);
    const into = b.space.allocate(length).allocate('uint8', length);
    for (let i = 0; i < length; i++) from.view[i] = i * 7;
    const receiving = b.transport.receive(0, envelope({ step: length }), into);
    const sending = a.transport.send(1, envelope({ step: length }), from);
    await until([a, b], () => receiving.done && sending.done);
    expect(Buffer.compare(Buffer.from(into.view), Buffer.from(from.view))).toBe(0);
  }

  it.each([1, 2])('moves messages both ways, %i connections', async (connectionsPerPeer) => {
    ends.push(...(await openEnds(2, { tls: ours, connectionsPerPeer })));
    const [a, b] = ends as [End, End];
    for (const length of [1, 1000, 3_000_000]) {
      await exchange([a, b], length);
    }
    b.transport.notify(0, 'over TLS');
    await until(ends, () => a.told.notices.length === 1);
    expect(a.told.lost).toEqual([]);
  });

  it('delivers everything before a goodbye', async () => {
    ends.push(...(await openEnds(2, { tls: ours })));
    const [a, b] = ends as [End, End];
    const region = a.space.allocate(2 ** 20).allocate('uint8', 2 ** 20);
    a.transport.send(1, envelope(), region);
    const closing = a.transport.close();
    const receiving = b.transport.receive(
      0,
      envelope(),
      b.space.allocate(2 ** 20).allocate('uint8', 2 ** 20),
    );
    await until([b], () => receiving.done);
    await closing;
    for (let i = 0; i < 300; i++) b.transport.poll();
    expect(b.told.lost).toEqual([]);
  });

  it('is not fooled by somebody in between with a certificate that both trust', async () => {
    const [a, b] = [await openEnd({ tls: ours }), await openEnd({ tls: ours })];
    ends.push(a, b);
    const between = await TlsRelay.listen(ours, a.transport.address.port);
    const moved = {
      ...memberAddress(0, a.transport),
      address: { ...a.transport.address, port: between.port },
    };
    const accepting = a.transport.connect(0, [memberAddress(1, b.transport)], { connectTimeoutMs: 3000 });
    const results = Promise.allSettled([accepting, b.transport.connect(1, [moved])]);
    const [, dialled] = await results;
    expect(dialled).toMatchObject({
      status: 'rejected',
      reason: { code: 'REFUSED', message: expect.stringContaining('the secrets differ') as string },
    });
    expect(between.connections).toBeGreaterThan(0);
    await between.close();
  });

  it('checks the name of certificates where one is asked for', async () => {
    ends.push(...(await openEnds(2, { tls: { ...ours, serverName: 'ours.tributary' } })));
    await exchange(ends as [End, End] & End[], 10);
    const a = await openEnd({ tls: ours });
    const b = await openEnd({ tls: { ...ours, serverName: 'another.tributary' } });
    ends.push(a, b);
    const dialling = b.transport.connect(1, [memberAddress(0, a.transport)], { connectTimeoutMs: 3000 });
    // What the dialer hears first, the alert or the end of the connection, is a matter of chance.
    await expect(dialling).rejects.toMatchObject({ code: 'UNREACHABLE' });
  });

  it('refuses a stranger without a certificate, and one with a certificate of others', async () => {
    const a = await openEnd({ tls: ours, handshakeTimeoutMs: 500 });
    const b = await openEnd({ tls: { ...theirs, ca: ours.ca } });
    ends.push(a, b);
    const stranger = await Stranger.dial(a.transport);
    stranger.say(Buffer.from('GET / HTTP/1.1\r\n\r\n'));
    await until([], () => stranger.isClosed);
    expect(a.transport.refused.tls).toBe(1);
    const dialling = b.transport.connect(1, [memberAddress(0, a.transport)], { connectTimeoutMs: 3000 });
    await expect(dialling).rejects.toMatchObject({ code: 'UNREACHABLE' });
    expect(a.transport.refused.tls).toBeGreaterThan(1);
    await until([], () => a.lines.length > 1);
    expect(a.lines[0]).toMatch(/^refused 127\.0\.0\.1:\d+: TLS: /);
  });

  it('says when key and certificate are no such', async () => {
    const { space } = await openEndFor(ends);
    const tls = { key: 'no key', cert: 'no cert', ca: 'no ca' };
    await expect(createTcpTransport({ space, secret: SECRET, tls })).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringContaining('key, cert and ca') as string,
    });
  });
});

async function openEndFor(ends: End[]): Promise<End> {
  const end = await openEnd();
  ends.push(end);
  return end;
}
