/**
 * Starts and stops the thread that carries connections over TLS, and owns the folder of its local sockets. It moves
 * no bytes itself, so the engine is the same with and without TLS. Invariants: the folder is readable by this user
 * only, and is gone after `close` or `abort`; a thread that ends by itself is known by `failure`, never by a wait
 * without end.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { InternalError, PeerError, startThread, UsageError } from '../base/index.ts';
import { errorName, libc } from './libc.ts';
import { localAddress } from './socket-address.ts';
import type { SocketAddress } from './socket-address.ts';
import { listenAt } from './sockets.ts';
import type { TlsOptions } from './tls-options.ts';
import { TunnelWord } from './tunnel-messages.ts';
import type { TunnelData, TunnelMessage } from './tunnel-messages.ts';

const START_TIMEOUT_MS = 10_000;

export interface TunnelOptions {
  /** How long TLS's handshake may take, of callers and of calls, in milliseconds. */
  readonly handshakeTimeoutMs: number;
  /**
   * Connections of callers that may be in TLS's handshake at a time; one more ends the oldest of the address with the
   * most.
   */
  readonly maxPendingHandshakes: number;
  /** Gets a line of text for each refused connection, and when the thread fails. */
  readonly log: (line: string) => void;
}

/** Where others call. */
export interface TunnelListening {
  /** Numeric. */
  readonly host: string;
  /** The first and last port that may be listened at; [0, 0] for any. */
  readonly ports: readonly [number, number];
  /** Size of the kernel's buffers in bytes; 0: the kernel chooses. */
  readonly socketBufferBytes: number;
}

export class TlsTunnel {
  /** Where the engine dials, whoever it wants to reach. */
  readonly dialAddress: SocketAddress;
  /**
   * The port that others dial, and the socket at which the engine accepts what came over TLS, which the engine closes.
   * Undefined where nobody can call.
   */
  readonly listening: { readonly fd: number; readonly port: number } | undefined;
  /** Settles when the thread has ended though nobody ended it. */
  readonly lost: Promise<PeerError>;
  readonly #folder: string;
  readonly #worker: Worker;
  readonly #exited: Promise<void>;
  readonly #words: Int32Array;
  #why = 'its thread has ended';
  #isClosing = false;

  private constructor(
    { folder, worker, words }: Started,
    listening: TlsTunnel['listening'],
    log: (line: string) => void,
  ) {
    this.dialAddress = localAddress(join(folder, 'dial'));
    this.listening = listening;
    this.#folder = folder;
    this.#worker = worker;
    this.#words = words;
    this.#exited = new Promise((resolve) => worker.once('exit', () => resolve()));
    worker.on('message', (message: TunnelMessage) => {
      if (message.kind === 'log') log(message.line);
    });
    worker.on('error', (error) => (this.#why = reasonOf(error)));
    this.lost = new Promise((resolve) => {
      void this.#exited.then(() => {
        Atomics.store(words, TunnelWord.ENDED, 1);
        const { failure } = this;
        if (failure === undefined) return;
        log(failure.message);
        resolve(failure);
      });
    });
    // A tunnel that was forgotten must not keep the process alive.
    worker.unref();
  }

  /** `listen` says where others can call. Without it nobody can: the tunnel is for calls of this process. */
  static async open(tls: TlsOptions, options: TunnelOptions, listen?: TunnelListening): Promise<TlsTunnel> {
    const folder = mkdtempSync(join(tmpdir(), 'tributary-tls-'));
    const enginePath = join(folder, 'engine');
    let fd = -1;
    try {
      if (listen) fd = listenLocally(enginePath, listen.socketBufferBytes);
      const started = await start(folder, tls, options, listen && { ...listen, enginePath });
      return new TlsTunnel(started, listen && { fd, port: started.port }, options.log);
    } catch (error) {
      if (fd >= 0) libc().close(fd);
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Strangers that TLS refused. */
  get refused(): number {
    return Atomics.load(this.#words, TunnelWord.REFUSED);
  }

  /**
   * What became of the thread if it has ended though nobody ended it; known at once, also while this thread is
   * blocked.
   */
  get failure(): PeerError | undefined {
    if (this.#isClosing || Atomics.load(this.#words, TunnelWord.ENDED) === 0) return undefined;
    return new PeerError(
      'PEER_LOST',
      `the TLS tunnel of this process has failed: ${this.#why}; all peers behind it are lost: start this process again`,
      { reason: this.#why },
    );
  }

  /** Lets the thread send what it has, for two seconds at most. */
  async close(): Promise<void> {
    this.#isClosing = true;
    this.#worker.ref();
    this.#worker.postMessage('close');
    await this.#exited;
    rmSync(this.#folder, { recursive: true, force: true });
  }

  abort(): void {
    this.#isClosing = true;
    void this.#worker.terminate();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

interface Started {
  readonly folder: string;
  readonly worker: Worker;
  readonly words: Int32Array;
  readonly port: number;
}

function listenLocally(path: string, bufferBytes: number): number {
  const fd = listenAt(libc(), localAddress(path), bufferBytes);
  if (fd >= 0) return fd;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `listening at the local socket ${path} failed with ${errorName(fd)}; check the temporary folder`,
    { path },
  );
}

async function start(
  folder: string,
  tls: TlsOptions,
  { handshakeTimeoutMs, maxPendingHandshakes }: TunnelOptions,
  listening: (TunnelListening & { readonly enginePath: string }) | undefined,
): Promise<Started> {
  const words = new Int32Array(new SharedArrayBuffer(8));
  const data: TunnelData = {
    ...{ tls, listening, dialPath: join(folder, 'dial'), words },
    ...{ handshakeTimeoutMs, maxPendingHandshakes },
  };
  const worker = startThread(new URL('./tls-tunnel-thread', import.meta.url), data);
  try {
    return { folder, worker, words, port: await started(worker, listening) };
  } catch (error) {
    await worker.terminate();
    throw error;
  }
}

function started(worker: Worker, listening: TunnelListening | undefined): Promise<number> {
  return new Promise((resolve, reject) => {
    const where = listening
      ? `listen at ${listening.host}, ports ${listening.ports.join(' to ')}`
      : 'be opened';
    const fail = (reason: string): void =>
      reject(
        new UsageError(
          'INVALID_ARGUMENT',
          `the TLS tunnel cannot ${where}: ${reason}; check address, ports, and key, cert and ca of tls`,
          { address: listening?.host, ports: listening?.ports, reason },
        ),
      );
    const timer = setTimeout(() => fail('it did not start in time'), START_TIMEOUT_MS);
    worker.once('message', (message: TunnelMessage) => {
      clearTimeout(timer);
      if (message.kind === 'listening') resolve(message.port);
      else fail(message.kind === 'failed' ? message.reason : message.line);
    });
    worker.once('error', (error) => {
      clearTimeout(timer);
      fail(reasonOf(error));
    });
  });
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
