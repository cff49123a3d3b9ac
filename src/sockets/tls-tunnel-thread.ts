/**
 * The body of the tunnel's thread and what it shares with `TlsTunnel`. The engine talks to local sockets, the thread
 * carries their bytes over TLS. It is plain JavaScript in a string, started with `eval`, because a thread cannot load
 * TypeScript: so it runs the same from the compiled package and from the sources. It must stay self-contained.
 * Invariant: nothing of a connection reaches the engine before both certificates were checked.
 */
import type { TlsOptions } from './tls-options.ts';

/** A tunnelled connection starts with a record of text: whom to reach, who has come, or what went wrong. */
export const TUNNEL_RECORD_BYTES = 128;

export interface TunnelData {
  readonly tls: TlsOptions;
  readonly host: string;
  readonly ports: readonly [number, number];
  /** The local socket at which the engine listens. */
  readonly enginePath: string;
  /** The local socket at which the thread takes the engine's calls. */
  readonly dialPath: string;
  readonly handshakeTimeoutMs: number;
  readonly maxPendingHandshakes: number;
  /** One word: strangers that TLS refused. */
  readonly refused: Int32Array;
}

export type TunnelMessage =
  | { readonly kind: 'listening'; readonly port: number }
  | { readonly kind: 'failed'; readonly reason: string }
  | { readonly kind: 'refused'; readonly line: string };

export function writeTunnelRecord(text: string): Uint8Array {
  const record = new Uint8Array(TUNNEL_RECORD_BYTES);
  new TextEncoder().encodeInto(text, record);
  return record;
}

export function readTunnelRecord(record: Uint8Array): string {
  const end = record.indexOf(0);
  return new TextDecoder().decode(record.subarray(0, end < 0 ? TUNNEL_RECORD_BYTES : end));
}

export const TUNNEL_THREAD = `'use strict';
const net = require('node:net');
const tls = require('node:tls');
const { parentPort, workerData } = require('node:worker_threads');
const { host, ports, enginePath, dialPath, refused, handshakeTimeoutMs, maxPendingHandshakes } = workerData;
const { key, cert, ca, serverName } = workerData.tls;
const RECORD_BYTES = ${TUNNEL_RECORD_BYTES};
const trust = { key, cert, ca, minVersion: 'TLSv1.3', allowHalfOpen: true };
const live = new Set();
let closing = false;

function record(text) {
  const bytes = Buffer.alloc(RECORD_BYTES);
  bytes.write(text.slice(0, RECORD_BYTES / 4));
  return bytes;
}

function splice(a, b) {
  for (const [one, other] of [[a, b], [b, a]]) {
    live.add(one);
    one.setNoDelay?.(true);
    one.on('error', () => other.destroy());
    one.on('close', () => {
      live.delete(one);
      if (!one.readableEnded) other.destroy();
      if (closing && live.size === 0) process.exit();
    });
    one.pipe(other);
  }
}

function refuse(socket, reason) {
  Atomics.add(refused, 0, 1);
  const { remoteAddress = 'somebody', remotePort = 0 } = socket;
  parentPort.postMessage({ kind: 'refused', line: 'refused ' + remoteAddress + ':' + remotePort + ': TLS: ' + reason });
}

const outside = tls.createServer({ ...trust, requestCert: true, rejectUnauthorized: true, handshakeTimeout: handshakeTimeoutMs });
let pending = 0;
outside.on('connection', (socket) => {
  if (pending >= maxPendingHandshakes) {
    Atomics.add(refused, 0, 1);
    socket.destroy();
    return;
  }
  pending++;
  let counted = true;
  socket.settled = () => {
    if (counted) pending--;
    counted = false;
  };
  socket.on('close', socket.settled);
});
outside.on('tlsClientError', (error, socket) => {
  refuse(socket, error.code || error.message);
  socket.destroy();
});
outside.on('secureConnection', (socket) => {
  socket._parent?.settled?.();
  const engine = net.connect({ path: enginePath, allowHalfOpen: true });
  engine.write(record(socket.remoteAddress + ':' + socket.remotePort));
  splice(socket, engine);
});

const inside = net.createServer({ allowHalfOpen: true }, (engine) => {
  const onError = () => engine.destroy();
  engine.on('error', onError);
  engine.on('readable', function onReadable() {
    const bytes = engine.read(RECORD_BYTES);
    if (bytes === null) return;
    engine.off('readable', onReadable);
    engine.off('error', onError);
    const target = bytes.toString('utf8', 0, bytes.indexOf(0)).split(' ');
    const identity = serverName === undefined ? { checkServerIdentity: () => undefined } : { servername: serverName };
    const socket = tls.connect({ ...trust, ...identity, host: target[0], port: Number(target[1]) });
    const onFailure = (error) => engine.end(record(error.code || error.message));
    const onEnd = () => socket.destroy();
    socket.once('error', onFailure);
    engine.once('close', onEnd);
    socket.once('secureConnect', () => {
      socket.off('error', onFailure);
      engine.off('close', onEnd);
      engine.write(record(''));
      splice(engine, socket);
    });
  });
});

parentPort.on('message', () => {
  closing = true;
  outside.close();
  inside.close();
  if (live.size === 0) process.exit();
  setTimeout(() => process.exit(), 2000);
});

function listen(port) {
  outside.once('error', (error) => {
    if (error.code === 'EADDRINUSE' && port < ports[1]) listen(port + 1);
    else parentPort.postMessage({ kind: 'failed', reason: error.code || error.message });
  });
  outside.listen(port, host, () => {
    outside.removeAllListeners('error');
    inside.listen(dialPath, () => parentPort.postMessage({ kind: 'listening', port: outside.address().port }));
  });
}
listen(ports[0]);
`;
