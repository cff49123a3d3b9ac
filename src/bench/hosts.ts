/**
 * Hosts made of network namespaces: each has one link to a switch, which is a bridge in a namespace of its own, and each
 * link is limited to a rate in both directions by a token bucket. The machine's own network is not touched. Needs root
 * and iproute2. Invariant: what a process created is removed by `close`, at the latest when it exits; what a killed one
 * left behind is removed by the next that creates hosts.
 */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { UsageError } from '../base/index.ts';

export interface HostsOptions {
  /** Hosts at the switch, 1 to 16. */
  readonly count: number;
  /** Rate of each link in each direction, in Mbit/s, counted with Ethernet headers. Default 1,000. */
  readonly rateMbit?: number;
  /** Whether each host has processors of its own, as far as there are enough, not a share of all. Default false. */
  readonly ownProcessors?: boolean;
}

export interface Host {
  /** The name of the namespace; also fit for a host name. */
  readonly name: string;
  readonly address: string;
  /** What to start instead of the command so that it runs on this host, under its name; the process id stays. */
  command(file: string, ...args: readonly string[]): [file: string, args: string[]];
}

export interface Hosts {
  /** Reaches all hosts by an unlimited link: the place for a scheduler. */
  readonly switch: Host;
  readonly hosts: readonly Host[];
  /** The addresses of all, in the form '10.213.0.0/24'. */
  readonly subnet: string;
  readonly rateMbit: number;
  /** A program for `mpirun --mca plm_rsh_agent`: runs a command on a host, as ssh would. Its text; write it to a file. */
  readonly remoteShell: string;
  /**
   * Gives a host a further address that it can listen at and nobody else can reach: others have no route to it, or
   * what they send is silently dropped at the switch, as by a firewall.
   */
  unreachableAddress(host: number, how: 'no route' | 'dropped'): string;
  close(): void;
}

const PREFIX = 'tributary';
const NETWORK = '10.213.0';
const UNREACHABLE_NETWORK = '10.214.0';
const MAX_HOSTS = 16;
/** Longest time that a packet waits for the link: a queue long enough that one stream loses nothing. */
const QUEUE_MS = 40;
/** What may pass at once: a millisecond's worth, so that a slow timer does not cost throughput. */
const BURST_MS = 1;

/** The start of a command that gives what follows a host name, the first argument after these, and becomes it. */
const withHostName = ['unshare', '--uts', 'sh', '-c', 'hostname "$0" && exec "$@"'];

const REMOTE_SHELL = `#!/bin/sh
host="$1"
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0" && eval "$*"' "$host" "$@"
`;

let created = 0;

export function createHosts({ count, rateMbit = 1000, ownProcessors = false }: HostsOptions): Hosts {
  if (!Number.isInteger(count) || count < 1 || count > MAX_HOSTS) {
    throw new UsageError('INVALID_ARGUMENT', `${count} hosts are asked for; give 1 to ${MAX_HOSTS}`, {
      count,
    });
  }
  removeLeftovers();
  const prefix = `${PREFIX}-${process.pid}-${created++}`;
  const hub = hostNamed(`${prefix}-switch`, 254);
  const hosts = Array.from({ length: count }, (_, i) =>
    hostNamed(`${prefix}-host${i}`, i + 1, ownProcessors ? processorsOf(i, count) : undefined),
  );
  const close = (): void => {
    process.off('exit', close);
    for (const { name } of [...hosts, hub]) remove(name);
  };
  process.on('exit', close);
  try {
    ip('netns', 'add', hub.name);
    ip('-n', hub.name, 'link', 'add', 'bridge', 'type', 'bridge');
    ip('-n', hub.name, 'address', 'add', `${hub.address}/24`, 'dev', 'bridge');
    for (const device of ['lo', 'bridge']) ip('-n', hub.name, 'link', 'set', device, 'up');
    hosts.forEach((host, i) => plugIn(host, hub, `port${i}`, rateMbit));
  } catch (error) {
    close();
    throw error;
  }
  return {
    switch: hub,
    hosts,
    subnet: `${NETWORK}.0/24`,
    rateMbit,
    remoteShell: REMOTE_SHELL,
    unreachableAddress(host, how) {
      const address = `${UNREACHABLE_NETWORK}.${host + 1}`;
      ip('-n', hosts[host]!.name, 'address', 'add', `${address}/32`, 'dev', 'lo');
      // The switch does not forward, and says nothing.
      const others = how === 'dropped' ? hosts.filter((_, i) => i !== host) : [];
      for (const { name } of others) ip('-n', name, 'route', 'add', `${address}/32`, 'via', hub.address);
      return address;
    },
    close,
  };
}

function plugIn(host: Host, hub: Host, port: string, rateMbit: number): void {
  ip('netns', 'add', host.name);
  ip('-n', hub.name, 'link', 'add', port, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', host.name);
  ip('-n', hub.name, 'link', 'set', port, 'master', 'bridge', 'up');
  ip('-n', host.name, 'address', 'add', `${host.address}/24`, 'dev', 'eth0');
  for (const device of ['lo', 'eth0']) ip('-n', host.name, 'link', 'set', device, 'up');
  limit(host.name, 'eth0', rateMbit);
  limit(hub.name, port, rateMbit);
}

/** Limits what leaves by the device. */
function limit(namespace: string, device: string, rateMbit: number): void {
  const burst = Math.max(16 * 1024, Math.round((rateMbit * 1000 * BURST_MS) / 8));
  const bucket = ['rate', `${rateMbit}mbit`, 'burst', String(burst), 'latency', `${QUEUE_MS}ms`];
  run('tc', ['-n', namespace, 'qdisc', 'add', 'dev', device, 'root', 'tbf', ...bucket]);
}

function hostNamed(name: string, number: number, processors?: string): Host {
  const bound = processors === undefined ? [] : ['taskset', '--cpu-list', processors];
  return {
    name,
    address: `${NETWORK}.${number}`,
    command: (file, ...args) => [
      'ip',
      ['netns', 'exec', name, ...withHostName, name, ...bound, file, ...args],
    ],
  };
}

/** Those of one host, as `taskset` takes them; several hosts share one if there are more hosts than processors. */
function processorsOf(host: number, hosts: number): string {
  const all = availableParallelism();
  if (hosts >= all) return String(host % all);
  const each = Math.floor(all / hosts);
  return `${host * each}-${(host + 1) * each - 1}`;
}

/** Removes the hosts of processes that are no more. */
function removeLeftovers(): void {
  const listed = spawnSync('ip', ['netns', 'list'], { encoding: 'utf8' }).stdout;
  for (const [name, pid] of listed.matchAll(new RegExp(`^${PREFIX}-(\\d+)-\\d+-\\w+`, 'gm'))) {
    if (!isAlive(Number(pid))) remove(name);
  }
}

function remove(name: string): void {
  spawnSync('ip', ['netns', 'delete', name]);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

function ip(...args: string[]): void {
  run('ip', args);
}

function run(file: string, args: readonly string[]): void {
  const { status, stderr, error } = spawnSync(file, args, { encoding: 'utf8', timeout: 10_000 });
  if (status === 0) return;
  throw new UsageError(
    'MISSING_COMPONENT',
    `${file} ${args.join(' ')}: ${error?.message ?? stderr.trim()}; hosts on one machine need root, iproute2 and a kernel that allows network namespaces`,
    { component: 'iproute2' },
  );
}
