/**
 * The address of this machine on the way to another: that of the interface the system would send by. Nothing is sent.
 * Invariant: never an address that means 'any'.
 */
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { PeerError } from '../base/index.ts';

/** `target` is 'host:port'. */
export async function localAddressTowards(target: string): Promise<string> {
  const at = target.lastIndexOf(':');
  const name = target.slice(0, at).replace(/^\[|\]$/g, '');
  try {
    const { address, family } = await lookup(name);
    const socket = createSocket(family === 6 ? 'udp6' : 'udp4');
    try {
      await new Promise<void>((resolve, reject) => {
        socket.once('error', reject);
        // Connecting a datagram socket only picks the route.
        socket.connect(Number(target.slice(at + 1)), address, resolve);
      });
      return socket.address().address;
    } finally {
      socket.close();
    }
  } catch (cause) {
    throw new PeerError(
      'UNREACHABLE',
      `there is no way from here to the scheduler at ${target} (${(cause as Error).message}); check its name, or give the address of this process with 'address'`,
      { target },
      cause,
    );
  }
}
