/**
 * The entry of a tunnel's thread: the engine talks to local sockets, this carries their bytes over TLS. Started by
 * `tls-tunnel.ts`, never imported. Invariants: nothing of a connection reaches the engine before both certificates were
 * checked; every socket has a listener for errors for as long as it lives, so that no connection ends the thread.
 */
import { connect, createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';
import { connect as connectTls, createServer as createTlsServer } from 'node:tls';
import type { TLSSocket } from 'node:tls';
import { parentPort, workerData } from 'node:worker_threads';
import { AcceptPause, probeDescriptors } from './accept-pause.ts';
import { channelOf } from './tls-channel.ts';
import { FaultLog } from './fault-log.ts';
import { connectionToEvict } from './pending-connections.ts';
import { addressText, hostOf } from './socket-address.ts';
import { readTunnelRecord, TUNNEL_RECORD_BYTES, TunnelWord, writeTunnelRecord } from './tunnel-messages.ts';
import type { DialRecord, TunnelData, TunnelMessage } from './tunnel-messages.ts';

const { tls, listening, dialPath, words, handshakeTimeoutMs, maxPendingHandshakes } =
  workerData as TunnelData;
const { key, cert, ca, serverName } = tls;
const trust = { key, cert, ca, minVersion: 'TLSv1.3', allowHalfOpen: true } as const;
/** How long a connection may take to send what it has once the engine, or the tunnel, has closed it. */
const CLOSE_TIMEOUT_MS = 2000;
const PROBE_INTERVAL_MS = 1000;
const live = new Set<Socket>();
/** Raw connections in TLS's handshake, by where they come from, oldest first. */
const pending = new Map<string, Socket>();
let closing = false;

const tell = (message: TunnelMessage): void => parentPort!.postMessage(message);
const faults = new FaultLog((line) => tell({ kind: 'log', line }));
// The caller may be blocked: it must see the end without being told.
process.on('exit', () => void Atomics.store(words, TunnelWord.ENDED, 1));

function reasonOf(error: Error & { readonly code?: string }): string {
  return error.code ?? error.message;
}

/** Whatever becomes of a socket, 'close' follows; without a listener its error would end the thread. */
function guarded<S extends Socket>(socket: S): S {
  socket.on('error', () => undefined);
  return socket;
}

/**
 * Carries bytes both ways until both have ended. The engine closes a connection as a whole and counts it no longer, so
 * that the other side, which may never close, keeps it for `CLOSE_TIMEOUT_MS` at most.
 */
function splice(engine: Socket, socket: TLSSocket): void {
  for (const [one, other] of [
    [engine, socket],
    [socket, engine],
  ] as const) {
    live.add(one);
    one.setNoDelay(true);
    one.on('error', () => other.destroy());
    one.on('close', () => {
      live.delete(one);
      if (!one.readableEnded) other.destroy();
      if (closing && live.size === 0) process.exit();
    });
    one.pipe(other);
  }
  engine.on('end', () => {
    socket.unpipe(engine);
    engine.destroy();
    // Bytes that nobody reads would make the kernel reset the connection, and lose what is on its way.
    socket.resume();
    const timer = setTimeout(() => socket.destroy(), CLOSE_TIMEOUT_MS);
    socket.on('close', () => clearTimeout(timer));
  });
}

function remoteOf({ remoteAddress = 'somebody', remotePort = 0 }: Socket): string {
  return addressText(remoteAddress, remotePort);
}

function refuse(socket: Socket, reason: string): void {
  Atomics.add(words, TunnelWord.REFUSED, 1);
  const remote = remoteOf(socket);
  faults.say(hostOf(remote), `refused ${remote}: TLS: ${reason}`, performance.now());
}

/** Callers from outside. */
function createOutside(enginePath: string): Server {
  const outside = createTlsServer({
    ...{ ...trust, requestCert: true, rejectUnauthorized: true, handshakeTimeout: handshakeTimeoutMs },
  });
  outside.on('connection', (socket: Socket) => {
    guarded(socket);
    const remote = remoteOf(socket);
    pending.set(remote, socket);
    socket.on('close', () => pending.delete(remote));
    if (pending.size <= maxPendingHandshakes) return;
    const evicted = connectionToEvict(pending.keys(), hostOf);
    Atomics.add(words, TunnelWord.REFUSED, 1);
    pending.get(evicted)!.destroy();
    pending.delete(evicted);
  });
  outside.on('tlsClientError', (error, socket) => {
    refuse(socket, reasonOf(error));
    socket.destroy();
  });
  outside.on('secureConnection', (socket) => {
    guarded(socket);
    const remote = remoteOf(socket);
    pending.delete(remote);
    const engine = guarded(connect({ path: enginePath, allowHalfOpen: true }));
    engine.write(writeTunnelRecord({ remote, channel: channelOf(socket) }));
    splice(engine, socket);
  });
  return outside;
}

/** The engine calls, and says first whom it wants to reach. */
function createInside(): Server {
  return createServer({ allowHalfOpen: true }, (engine) => {
    guarded(engine);
    engine.on('readable', function onReadable() {
      const bytes = engine.read(TUNNEL_RECORD_BYTES) as Buffer | null;
      if (bytes === null) return;
      engine.off('readable', onReadable);
      dial(engine, readTunnelRecord(bytes));
    });
  });
}

function dial(engine: Socket, { host, port }: DialRecord): void {
  const named = serverName === undefined ? {} : { servername: serverName };
  const socket: TLSSocket = guarded(connectTls({ ...trust, ...named, host, port }));
  const timer = setTimeout(() => socket.destroy(new Error('ETIMEDOUT')), handshakeTimeoutMs);
  const onFailure = (error: Error): void => {
    clearTimeout(timer);
    engine.end(writeTunnelRecord({ problem: reasonOf(error) }));
  };
  // A caller that gave up: what it wanted is given up, too.
  const onGone = (): void => void socket.destroy();
  socket.once('error', onFailure);
  engine.once('close', onGone);
  socket.once('close', () => clearTimeout(timer));
  socket.once('secureConnect', () => {
    clearTimeout(timer);
    socket.off('error', onFailure);
    engine.off('close', onGone);
    engine.write(writeTunnelRecord({ channel: channelOf(socket) }));
    splice(engine, socket);
  });
}

/** Listens at the first free port from `port` on; resolves to it. */
function listenOutside(server: Server, host: string, port: number, last: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const onError = (error: NodeJS.ErrnoException): void => {
      if (error.code === 'EADDRINUSE' && port < last) {
        resolve(listenOutside(server, host, port + 1, last));
      } else {
        reject(error);
      }
    };
    server.once('error', onError);
    server.listen(port, host, () => {
      server.off('error', onError);
      resolve((server.address() as AddressInfo).port);
    });
  });
}

/** Calls of the engine, which are few and of this process: one that cannot be taken is tried again by it. */
const inside = createInside();
inside.on('error', () => undefined);
const outside = listening && createOutside(listening.enginePath);

parentPort!.on('message', () => {
  closing = true;
  outside?.close();
  inside.close();
  if (live.size === 0) process.exit();
  setTimeout(() => process.exit(), CLOSE_TIMEOUT_MS);
});

async function start(): Promise<void> {
  const port = outside ? await listenOutside(outside, listening.host, ...listening.ports) : 0;
  if (outside) {
    // Node drops connections without a word when there are no descriptors.
    const pause = new AcceptPause((line) => tell({ kind: 'log', line }));
    outside.on('error', (error: NodeJS.ErrnoException) => pause.failed(error.errno ?? 0, performance.now()));
    const probe = (): void => {
      pause.failed(probeDescriptors(), performance.now());
      faults.look(performance.now());
    };
    setInterval(probe, PROBE_INTERVAL_MS).unref();
  }
  await new Promise<void>((resolve, reject) => {
    inside.once('error', reject);
    inside.listen(dialPath, resolve);
  });
  tell({ kind: 'listening', port });
}

start().catch((error: Error) => tell({ kind: 'failed', reason: reasonOf(error) }));
