/** Who makes room among connections that have not authenticated. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { connectionToEvict } from '../../src/sockets/index.ts';

const evicted = (...hosts: readonly string[]): number => connectionToEvict(hosts.keys(), (i) => hosts[i]!);

describe('a connection that makes room', () => {
  it('is the oldest of the address that has the most', () => {
    expect(evicted('10.0.0.1', '10.0.0.2', '10.0.0.2', '10.0.0.1', '10.0.0.2')).toBe(1);
    expect(evicted('10.0.0.1', '10.0.0.2', '10.0.0.1')).toBe(0);
  });

  it('is the oldest of all if no address has more than another', () => {
    expect(evicted('10.0.0.3', '10.0.0.1', '10.0.0.2')).toBe(0);
  });

  it.each([
    ['addresses of one network of IPv6', ['::1', 'fd00:1::1', 'fd00:1:0:0:9::2'], 1],
    ['one written in two ways', ['fd00:0:0:2:0:0:0:1', 'fd00::1', 'fd00::2'], 1],
    ['IPv4 that came over IPv6', ['::ffff:10.0.0.1', '::ffff:10.0.0.2', '10.0.0.2'], 1],
    ['an interface', ['fe80::1%eth0', '10.0.0.1', 'fe80::2%eth0'], 0],
  ])('counts %s as one', (_what, hosts, victim) => {
    expect(evicted(...hosts)).toBe(victim);
  });

  it('never comes from an address that has fewer than another', () => {
    const host = fc.integer({ min: 1, max: 5 }).map((i) => `10.0.0.${i}`);
    fc.assert(
      fc.property(fc.array(host, { minLength: 1 }), (hosts) => {
        const victim = hosts[evicted(...hosts)];
        const count = (one: string | undefined) => hosts.filter((other) => other === one).length;
        expect(count(victim)).toBe(Math.max(...hosts.map(count)));
      }),
    );
  });
});
