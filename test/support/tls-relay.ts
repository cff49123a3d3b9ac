/**
 * Somebody between two ends of TLS connections, with a certificate that both trust: takes connections, makes others to the real
 * target, and passes on all bytes as they are. Invariant: what it holds open is closed by `close`.
 */
import { once } from 'node:events';
import type { AddressInfo, Socket } from 'node:net';
import { connect, createServer } from 'node:tls';
import type { Server } from 'node:tls';
import type { TlsOptions } from '../../src/sockets/index.ts';

export class TlsRelay {
  /** How many it has taken, with both handshakes done. */
  connections = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor({ key, cert, ca }: TlsOptions, target: number) {
    const trust = { key, cert, ca } as const;
    this.#server = createServer({ ...trust, requestCert: true, rejectUnauthorized: false }, (caller) => {
      const other = connect({ ...trust, host: '127.0.0.1', port: target }, () => this.connections++);
      for (const [one, another] of [
        [caller, other],
        [other, caller],
      ] as const) {
        this.#sockets.add(one);
        one.on('error', () => another.destroy());
        one.pipe(another);
      }
    });
  }

  static async listen(tls: TlsOptions, target: number): Promise<TlsRelay> {
    const relay = new TlsRelay(tls, target);
    relay.#server.listen(0, '127.0.0.1');
    await once(relay.#server, 'listening');
    return relay;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
