/**
 * Starts and stops the thread that carries connections over TLS, and owns the folder of its local sockets. It moves no
 * bytes itself, so the engine is the same with and without TLS. Invariant: the folder is readable by this user only,
 * and is gone after `close` or `abort`.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { InternalError, UsageError } from '../base/index.ts';
import { errorName, libc } from './libc.ts';
import { localAddress } from './socket-address.ts';
import type { SocketAddress } from './socket-address.ts';
import { listenAt } from './sockets.ts';
import type { TlsOptions } from './tls-options.ts';
import { TUNNEL_THREAD } from './tls-tunnel-thread.ts';
import type { TunnelData, TunnelMessage } from './tls-tunnel-thread.ts';

const START_TIMEOUT_MS = 10_000;

export interface TunnelOptions {
  /** The first and last port that may be listened at; [0, 0] for any. */
  readonly ports: readonly [number, number];
  /** Size of the kernel's buffers in bytes; 0: the kernel chooses. */
  readonly socketBufferBytes: number;
  readonly handshakeTimeoutMs: number;
  /** Connections that may be in TLS's handshake at a time. */
  readonly maxPendingHandshakes: number;
  /** Gets a line of text for each refused connection. */
  readonly log: (line: string) => void;
}

export class TlsTunnel {
  /** Where the engine accepts what came over TLS. */
  readonly listeningFd: number;
  /** Where the engine dials, whoever it wants to reach. */
  readonly dialAddress: SocketAddress;
  /** The port that others dial. */
  readonly port: number;
  readonly #folder: string;
  readonly #worker: Worker;
  readonly #exited: Promise<unknown>;
  readonly #refused: Int32Array;

  private constructor(fd: number, port: number, folder: string, worker: Worker, refused: Int32Array) {
    this.listeningFd = fd;
    this.port = port;
    this.dialAddress = localAddress(join(folder, 'dial'));
    this.#folder = folder;
    this.#worker = worker;
    this.#exited = new Promise((resolve) => worker.once('exit', resolve));
    this.#refused = refused;
  }

  static async open(tls: TlsOptions, host: string, options: TunnelOptions): Promise<TlsTunnel> {
    const folder = mkdtempSync(join(tmpdir(), 'tributary-tls-'));
    const refused = new Int32Array(new SharedArrayBuffer(4));
    const enginePath = join(folder, 'engine');
    let worker: Worker | undefined;
    let fd = -1;
    try {
      fd = listenAt(libc(), localAddress(enginePath), options.socketBufferBytes);
      if (fd < 0) {
        throw new InternalError(
          'BROKEN_INVARIANT',
          `listening at the local socket ${enginePath} failed with ${errorName(fd)}; check the temporary folder`,
          { enginePath },
        );
      }
      const { ports, handshakeTimeoutMs, maxPendingHandshakes, log } = options;
      const workerData: TunnelData = {
        ...{ tls, host, ports, enginePath, dialPath: join(folder, 'dial'), refused },
        ...{ handshakeTimeoutMs, maxPendingHandshakes },
      };
      worker = new Worker(TUNNEL_THREAD, { eval: true, workerData, execArgv: [], stdin: false });
      const port = await started(worker, host, options.ports);
      worker.on('message', (message: TunnelMessage) => {
        if (message.kind === 'refused') log(message.line);
      });
      worker.on('error', (error) => log(`the TLS tunnel failed: ${String(error)}`));
      // A tunnel that was forgotten must not keep the process alive.
      worker.unref();
      return new TlsTunnel(fd, port, folder, worker, refused);
    } catch (error) {
      await worker?.terminate();
      if (fd >= 0) libc().close(fd);
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Strangers that TLS refused. */
  get refused(): number {
    return Atomics.load(this.#refused, 0);
  }

  /** Lets the thread send what it has, for two seconds at most. */
  async close(): Promise<void> {
    this.#worker.ref();
    this.#worker.postMessage('close');
    await this.#exited;
    rmSync(this.#folder, { recursive: true, force: true });
  }

  abort(): void {
    void this.#worker.terminate();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function started(worker: Worker, host: string, ports: readonly [number, number]): Promise<number> {
  return new Promise((resolve, reject) => {
    const fail = (reason: string): void =>
      reject(
        new UsageError(
          'INVALID_ARGUMENT',
          `the TLS tunnel cannot listen at ${host}, ports ${ports[0]} to ${ports[1]}: ${reason}; check address, ports, and key, cert and ca of tls`,
          { address: host, ports, reason },
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
      fail(error instanceof Error ? error.message : String(error));
    });
  });
}
