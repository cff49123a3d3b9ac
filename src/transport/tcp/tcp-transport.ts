/**
 * The way into the TCP transport: what it adds to the contract, and how one is made. Everything else of this folder is
 * its own affair. Invariant: when making it fails, no descriptor, thread or folder is left behind.
 */
import { listenWithin, resolveHost, systemHost, TlsTunnel } from '../../sockets/index.ts';
import type { Host } from '../../sockets/index.ts';
import type { Transport } from '../transport.ts';
import type { Refused } from './listener.ts';
import { checkOptions } from './options.ts';
import type { TcpOptions } from './options.ts';
import { newId } from './peer.ts';
import type { TcpAddress } from './peer.ts';
import { SocketTransport } from './socket-transport.ts';

export interface TcpTransport extends Transport {
  readonly kind: 'tcp';
  readonly address: Readonly<Record<string, unknown>> & TcpAddress;
  /** Connections that were refused so far, by reason. */
  readonly refused: Refused & {
    /** Strangers without a certificate that we trust; 0 without `tls`. */
    readonly tls: number;
  };
  /** Connections that have not been accepted yet. */
  readonly pendingHandshakes: number;
}

/**
 * Listens at a port; `connect` does the rest. `machine`: where this process runs. Default: here.
 */
export async function createTcpTransport(
  options: TcpOptions,
  machine: Host = systemHost,
): Promise<TcpTransport> {
  const checked = checkOptions(options, machine);
  const { libc } = machine;
  const host = await resolveHost(checked.address);
  const { ports, socketBufferBytes } = checked;
  const tunnel =
    checked.tls && (await TlsTunnel.open(checked.tls, checked, { host, ports, socketBufferBytes }));
  const { fd, port } = tunnel?.listening ?? listenWithin(libc, host, ports, socketBufferBytes);
  try {
    return new SocketTransport(checked, fd, { host: checked.address, port, id: newId(machine) }, tunnel);
  } catch (error) {
    libc.close(fd);
    tunnel?.abort();
    throw error;
  }
}
