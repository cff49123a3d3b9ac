/**
 * The body of the thread that holds a process's connection to the scheduler, because the main thread may block in a
 * collective while heartbeats must go out and news must come in. It dials, cuts frames, beats and writes the liveness
 * view; what messages mean otherwise is the main thread's business. Plain JavaScript in a string, started with `eval`,
 * because a thread cannot load TypeScript; it must stay self-contained. The words are those of liveness-view.ts.
 */
import { MAX_HANDSHAKE_BYTES, MAX_SCHEDULER_BYTES } from './frames.ts';
import { LEAVE_REASONS, LivenessWord } from './liveness-view.ts';

/** How long the other side may take to close a connection that was ended. */
const END_TIMEOUT_MS = 1000;

/** What a process needs to trust a scheduler with TLS; plain data, because it goes to a thread. */
export interface LineTls {
  /** Certificates of the authorities to trust, in PEM. Default those of Node. */
  readonly ca?: string;
  /** The name that the scheduler's certificate must have. Default the host that is dialled. */
  readonly servername?: string;
}

/** From the main thread. */
export type LineCommand =
  | { readonly dial: { readonly host: string; readonly port: number; readonly tls: LineTls | undefined } }
  | { readonly send: object }
  /** The scheduler has proved itself: its news count from now on, and it gets heartbeats. */
  | { readonly beat: { readonly heartbeatMs: number; readonly lostAfterMs: number } }
  /** Drops the connection at once. */
  | { readonly drop: true }
  /** Sends what was given before, ends the connection and the thread. */
  | { readonly end: true };

/** To the main thread; `dial` counts the dials, so that news of an earlier connection can be told apart. */
export type LineReport =
  | { readonly dial: number; readonly connected: string }
  | { readonly dial: number; readonly frame: string }
  | { readonly dial: number; readonly closed: string };

export interface LineThreadData {
  readonly liveness: SharedArrayBuffer;
}

export const LINE_THREAD = `'use strict';
const { parentPort, workerData } = require('node:worker_threads');
const net = require('node:net');
const tls = require('node:tls');
const words = new Int32Array(workerData.liveness);
const REASONS = ${JSON.stringify(LEAVE_REASONS.map((reason) => reason ?? ''))};
const BEAT = JSON.stringify({ kind: 'beat' });

let dials = 0;
let socket;
let timer;
let welcome = false;

function change(word, value) {
  Atomics.store(words, word, value);
  Atomics.add(words, ${LivenessWord.EPOCH}, 1);
  Atomics.notify(words, ${LivenessWord.EPOCH});
}

function write(text) {
  if (!socket || socket.destroyed) return;
  const body = Buffer.from(text);
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  socket.cork();
  socket.write(head);
  socket.write(body);
  socket.uncork();
}

function take(dial, text) {
  const message = JSON.parse(text);
  if (message.kind === 'beat') return;
  if (socket.trusted) note(message);
  parentPort.postMessage({ dial, frame: text });
}

function note(message) {
  if (message.kind === 'welcome') welcome = true;
  if (message.kind === 'left') change(${LivenessWord.MEMBERS} + message.member, REASONS.indexOf(message.reason));
  if (message.kind === 'newcomers') change(${LivenessWord.NEWCOMERS}, message.waiting);
  if (message.kind === 'world') change(${LivenessWord.NEWCOMERS}, 0);
}

function dial(target) {
  const number = ++dials;
  clearInterval(timer);
  const secure = target.tls !== undefined;
  const address = { host: target.host, port: target.port };
  const line = secure ? tls.connect({ ...address, ...target.tls }) : net.connect(address);
  let reason = 'the connection was closed';
  let buffered = [];
  let bytes = 0;
  let needed = 4;
  socket = line;
  line.heard = performance.now();
  line.setNoDelay(true);
  line.on(secure ? 'secureConnect' : 'connect', () =>
    parentPort.postMessage({ dial: number, connected: line.localAddress }));
  line.on('data', (chunk) => {
    line.heard = performance.now();
    buffered.push(chunk);
    bytes += chunk.length;
    while (bytes >= needed && !line.destroyed) {
      const all = buffered.length === 1 ? buffered[0] : Buffer.concat(buffered);
      needed = 4 + all.readUInt32BE();
      const most = line.trusted ? ${MAX_SCHEDULER_BYTES} : ${MAX_HANDSHAKE_BYTES};
      if (needed > 4 + most) return line.destroy(new Error('a frame that is too long came'));
      buffered = [all];
      if (bytes < needed) return;
      const text = all.toString('utf8', 4, needed);
      buffered = [all.subarray(needed)];
      bytes -= needed;
      needed = 4;
      try {
        take(number, text);
      } catch {
        line.destroy(new Error('a frame that is not JSON came'));
      }
    }
  });
  line.on('error', (error) => { reason = error.message || error.code || String(error); });
  line.on('close', () => {
    if (socket === line) {
      clearInterval(timer);
      if (welcome) change(${LivenessWord.SCHEDULER_LOST}, 1);
    }
    parentPort.postMessage({ dial: number, closed: line.silent ? 'it fell silent' : reason });
  });
}

function beat({ heartbeatMs, lostAfterMs }) {
  clearInterval(timer);
  const line = socket;
  line.trusted = true;
  let last = performance.now();
  timer = setInterval(() => {
    const now = performance.now();
    // Whoever was suspended itself must not blame the other side for it.
    if (now - last > lostAfterMs / 2) line.heard = now;
    last = now;
    if (now - line.heard > lostAfterMs) {
      line.silent = true;
      line.destroy();
    } else {
      write(BEAT);
    }
  }, heartbeatMs);
}

function end() {
  parentPort.close();
  clearInterval(timer);
  welcome = false;
  if (!socket || socket.destroyed) return;
  if (socket.connecting) return socket.destroy();
  socket.end();
  // The socket keeps the thread alive until the other side has closed as well; the timer does not.
  setTimeout(() => socket.destroy(), ${END_TIMEOUT_MS}).unref();
}

parentPort.on('message', (command) => {
  if (command.dial) dial(command.dial);
  else if (command.send) write(JSON.stringify(command.send));
  else if (command.beat) beat(command.beat);
  else if (command.drop) socket?.destroy();
  else if (command.end) end();
});
`;
