/**
 * The address of this machine on the way to another: that of the interface the system would send by. Nothing is sent.
 * Invariant: never an address that means 'any'.
 */
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { PeerError } from '../base/index.ts';
import { parseTarget } from '../cluster/index.ts';

/** `scheduler` is 'host:port'. */
export async function localAddressTowards(scheduler: string): Promise<string> {
  const { host, port } = parseTarget(scheduler, undefined);
  try {
    const { address, family } = await lookup(host);
    const socket = createSocket(family === 6 ? 'udp6' : 'udp4');
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('error', reject);
        // Connecting a datagram socket only picks the route.
        socket.connect(port, address, resolve);
      });
      return socket.address().address;
    } finally {
      socket.close();
    }
  } catch (cause) {
    throw new PeerError(
      'UNREACHABLE',
      `there is no way from here to the scheduler at ${scheduler} (${(cause as Error).message}); check its name, or give the address of this process with 'address'`,
      { target: scheduler },
      cause,
    );
  }
}
