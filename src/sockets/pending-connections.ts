/**
 * Which connection that has not authenticated makes room when there are too many: the oldest of the network address
 * that has the most. It owns no socket and closes none. Invariant: as long as another address has more, nobody is
 * chosen, so that a flood from one address ends its own connections only; whoever comes last is chosen only if nobody
 * else could be.
 */
import { isIPv6 } from 'node:net';
import { ipv6Groups } from './socket-address.ts';

/** Of a non-empty list, oldest first. `hostOf`: the numeric address that it comes from. */
export function connectionToEvict<T>(pending: Iterable<T>, hostOf: (one: T) => string): T {
  const byNetwork = new Map<string, { readonly oldest: T; count: number }>();
  let most: { readonly oldest: T; count: number } | undefined;
  for (const one of pending) {
    const network = networkOf(hostOf(one));
    const group = byNetwork.get(network) ?? { oldest: one, count: 0 };
    byNetwork.set(network, group);
    group.count++;
  }
  for (const group of byNetwork.values()) if (group.count > (most?.count ?? 0)) most = group;
  return most!.oldest;
}

/** What one machine can choose its addresses from: an IPv4 address, or the 64 bits of a network of IPv6. */
export function networkOf(host: string): string {
  const plain = host.split('%')[0]!;
  if (!isIPv6(plain)) return plain;
  const groups = ipv6Groups(plain);
  const isMapped = groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff;
  if (isMapped)
    return groups
      .slice(6)
      .flatMap((group) => [group >> 8, group & 0xff])
      .join('.');
  return groups
    .slice(0, 4)
    .map((group) => group.toString(16))
    .join(':');
}
