/**
 * The four ways to place servers (PHub, section 2.1 and figure 4): on the workers' hosts or on others (colocated or
 * not), one server or the keys spread over several (central or sharded). It names hosts and starts nothing. Invariant:
 * no two servers share a host, and servers that are not colocated share none with a worker.
 */
import { UsageError } from '../base/index.ts';
import { refuse, requireCount } from './argument-checks.ts';

export const placementKinds = Object.freeze({
  CC: Object.freeze({ title: 'colocated, central', colocated: true, sharded: false }),
  CS: Object.freeze({ title: 'colocated, sharded', colocated: true, sharded: true }),
  NCC: Object.freeze({ title: 'not colocated, central', colocated: false, sharded: false }),
  NCS: Object.freeze({ title: 'not colocated, sharded', colocated: false, sharded: true }),
});

export type PlacementKind = keyof typeof placementKinds;

export interface ServerHosts {
  /** The host of each worker; several workers may name the same one. */
  readonly workerHosts: readonly string[];
  /** Hosts for servers that are not colocated. Default none. */
  readonly extraHosts?: readonly string[];
  /** Servers wanted. Default 1 when central, otherwise one for each host that may have one. */
  readonly servers?: number;
}

/** The host of each server: the first ones of those that may have one, in the order given. */
export function serverPlaces(kind: PlacementKind, hosts: ServerHosts): readonly string[] {
  const { colocated, sharded } = traitsOf(kind);
  const { workerHosts, extraHosts = [] } = hosts;
  const name = colocated ? 'workerHosts' : 'extraHosts';
  const allowed = [...new Set(colocated ? workerHosts : extraHosts)];
  if (allowed.length === 0) refuse(name, '[]', `at least one host for the servers of ${kind}`);
  const shared = colocated ? undefined : allowed.find((host) => workerHosts.includes(host));
  if (shared !== undefined)
    throw new UsageError(
      'INVALID_ARGUMENT',
      `Host ${shared} has a worker, but ${kind} keeps servers apart from them; take it out of extraHosts or use ${sharded ? 'CS' : 'CC'}.`,
      { kind, host: shared },
    );
  const servers = serverCount(kind, hosts.servers, allowed.length);
  if (servers > allowed.length)
    refuse('servers', servers, `at most ${allowed.length}, one for each of the hosts in ${name}`);
  return Object.freeze(allowed.slice(0, servers));
}

/** The number of servers, 1 when central; `unlessGiven` is for sharded ones without a number. */
export function serverCount(kind: PlacementKind, given: number | undefined, unlessGiven: number): number {
  const { sharded } = traitsOf(kind);
  const servers = given ?? (sharded ? unlessGiven : 1);
  requireCount('servers', servers);
  if (!sharded && servers !== 1)
    refuse('servers', servers, `1, as ${kind} is central, or use ${kind === 'CC' ? 'CS' : 'NCS'}`);
  return servers;
}

/** Kinds also come from configuration files, where the type does not hold them. */
export function traitsOf(kind: PlacementKind): (typeof placementKinds)[PlacementKind] {
  if (!Object.hasOwn(placementKinds, kind))
    refuse('kind', kind, `one of ${Object.keys(placementKinds).join(', ')}`);
  return placementKinds[kind];
}
