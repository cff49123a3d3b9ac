/**
 * What stands between a worker and one core of a server in tests: passes bytes on, sees what the
 * worker says, and can change it. Invariant: after `close` no connection is left.
 */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import type { AddressInfo, Server, Socket } from 'node:net';

export class MeddlingProxy {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Connections that came. */
  connections = 0;
  /** What is passed on instead of what a worker has sent; undefined: both connections are cut. */
  meddle: (text: string) => string | undefined = (text) => text;
  /** Looks at what a worker has sent. */
  heard: (text: string) => void = () => undefined;

  private constructor(port: number) {
    this.#server = createServer((worker) => {
      this.connections++;
      const server = connect(port, '127.0.0.1');
      const cut = () => {
        worker.destroy();
        server.destroy();
      };
      for (const socket of [worker, server]) {
        this.#sockets.add(socket);
        socket.on('error', cut).on('close', cut);
      }
      worker.on('data', (bytes) => {
        const text = bytes.toString('latin1');
        this.heard(text);
        const passed = this.meddle(text);
        if (passed === undefined) cut();
        else server.write(Buffer.from(passed, 'latin1'));
      });
      // What the server says last still arrives.
      server.on('data', (bytes) => worker.write(bytes)).on('end', () => worker.end());
    });
  }

  static async start(port: number): Promise<MeddlingProxy> {
    const proxy = new MeddlingProxy(port);
    await once(proxy.#server.listen(0, '127.0.0.1'), 'listening');
    return proxy;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Breaks all connections. */
  cut(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Whoever dials from now on is refused. */
  async refuse(): Promise<void> {
    const closed = once(this.#server.close(), 'close');
    this.cut();
    await closed;
  }

  async close(): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
