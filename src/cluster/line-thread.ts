/**
 * The entry of the thread that holds a process's connection to the scheduler, because the main thread may block in a
 * collective while heartbeats must go out and news must come in. It dials, cuts frames, beats and writes the liveness
 * view; what messages mean otherwise is the main thread's business. Started by `line.ts`, never imported. Invariant: until
 * the main thread trusts the scheduler, its frames are short and its news are not believed.
 */
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { connect as connectTls, TLSSocket } from 'node:tls';
import { parentPort, workerData } from 'node:worker_threads';
import { channelOf } from '../sockets/index.ts';
import { encodeFrame, FrameReader, MAX_HANDSHAKE_BYTES, MAX_SCHEDULER_BYTES } from './frames.ts';
import type { LineCommand, LineReport, LineTarget, LineThreadData } from './line-messages.ts';
import { LEAVE_REASONS, LivenessWord } from './liveness-view.ts';
import type { SchedulerMessage } from './messages.ts';

/** How long the other side may take to close a connection that was ended. */
const END_TIMEOUT_MS = 1000;
const BEAT = encodeFrame({ kind: 'beat' });

/** One connection to the scheduler. */
interface Line {
  readonly socket: Socket;
  readonly reader: FrameReader;
  heardAt: number;
  isTrusted: boolean;
  isSilent: boolean;
}

const words = new Int32Array((workerData as LineThreadData).liveness);
const port = parentPort!;
let dials = 0;
let current: Line | undefined;
let timer: NodeJS.Timeout | undefined;
let isWelcome = false;

const report = (what: LineReport): void => port.postMessage(what);

function change(word: number, value: number): void {
  Atomics.store(words, word, value);
  Atomics.add(words, LivenessWord.EPOCH, 1);
  Atomics.notify(words, LivenessWord.EPOCH);
}

function write(frame: Buffer): void {
  if (current && !current.socket.destroyed) current.socket.write(frame);
}

/** What the shared view is to show. */
function note(message: SchedulerMessage): void {
  if (message.kind === 'welcome') isWelcome = true;
  else if (message.kind === 'left')
    change(LivenessWord.MEMBERS + message.member, LEAVE_REASONS.indexOf(message.reason));
  else if (message.kind === 'newcomers') change(LivenessWord.NEWCOMERS, message.waiting);
  else if (message.kind === 'world') change(LivenessWord.NEWCOMERS, 0);
}

function receive(dial: number, line: Line, chunk: Buffer): void {
  line.heardAt = performance.now();
  line.reader.push(chunk);
  for (let frame = line.reader.next(); frame !== undefined; frame = line.reader.next()) {
    const message = frame as SchedulerMessage | null;
    if (message?.kind === 'beat') continue;
    if (line.isTrusted && message) note(message);
    report({ dial, frame });
  }
}

function dial({ host, port: at, tls }: LineTarget): void {
  const number = ++dials;
  clearInterval(timer);
  const address = { host, port: at };
  const socket = tls ? connectTls({ ...address, ...tls }) : connect(address);
  const line: Line = {
    ...{ socket, reader: new FrameReader(MAX_HANDSHAKE_BYTES) },
    ...{ heardAt: performance.now(), isTrusted: false, isSilent: false },
  };
  let reason = 'the connection was closed';
  current = line;
  socket.setNoDelay(true);
  socket.on(tls ? 'secureConnect' : 'connect', () => {
    const channel = socket instanceof TLSSocket ? channelOf(socket) : undefined;
    report({ dial: number, connected: { localAddress: socket.localAddress!, channel } });
  });
  socket.on('data', (chunk: Buffer) => {
    if (socket.destroyed) return;
    try {
      receive(number, line, chunk);
    } catch (error) {
      socket.destroy(new Error(`it ${(error as Error).message}`));
    }
  });
  socket.on('error', (error: NodeJS.ErrnoException) => {
    reason = error.message || (error.code ?? String(error));
  });
  socket.on('close', () => {
    if (current === line) {
      clearInterval(timer);
      if (isWelcome) change(LivenessWord.SCHEDULER_LOST, 1);
    }
    report({ dial: number, closed: line.isSilent ? 'it fell silent' : reason });
  });
}

function beat({ heartbeatMs, lostAfterMs }: Extract<LineCommand, { beat: unknown }>['beat']): void {
  clearInterval(timer);
  const line = current!;
  line.isTrusted = true;
  line.reader.maxBytes = MAX_SCHEDULER_BYTES;
  let last = performance.now();
  timer = setInterval(() => {
    const now = performance.now();
    // Whoever was suspended itself must not blame the other side for it.
    if (now - last > lostAfterMs / 2) line.heardAt = now;
    last = now;
    if (now - line.heardAt > lostAfterMs) {
      line.isSilent = true;
      line.socket.destroy();
    } else {
      write(BEAT);
    }
  }, heartbeatMs);
}

function end(): void {
  port.close();
  clearInterval(timer);
  isWelcome = false;
  const socket = current?.socket;
  if (!socket || socket.destroyed) return;
  if (socket.connecting) return void socket.destroy();
  socket.end();
  // The socket keeps the thread alive until the other side has closed as well; the timer does not.
  setTimeout(() => socket.destroy(), END_TIMEOUT_MS).unref();
}

port.on('message', (command: LineCommand) => {
  if ('dial' in command) dial(command.dial);
  else if ('send' in command) write(encodeFrame(command.send));
  else if ('beat' in command) beat(command.beat);
  else if ('drop' in command) current?.socket.destroy();
  else end();
});
