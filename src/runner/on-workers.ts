/**
 * Who trains, if workers do: checks `Workers` of `on` and fills in what was left out. Which
 * machines there are is found by `resources.ts`. Starts nothing. Invariant: every combination that
 * comes back can train.
 */
import { isAbsolute, resolve } from 'node:path';
import { refuseUnknownOptions, type UsageError } from '../base/index.ts';
import { STORE_TYPES } from '../kvstore/index.ts';
import type { Merging, Strategy } from '../plan/index.ts';
import type { Clients, LockStep, OnConsistency, OnHere, OnWorkers, ServerAccess, Workers } from './on.ts';
import { checkChoice, fault, isWithin, list, print } from './on-faults.ts';
import { resolveResources, type Resources } from './resources.ts';

const STRATEGIES = ['hybrid', 'collectives', 'servers', 'parallax'] as const satisfies readonly Strategy[];
const MERGINGS = [
  ...(['optimal', 'layer by layer', 'single', 'buckets', 'algorithm 1'] as const),
] satisfies Merging[];
const EVERY_STEPS = 64;
const ELASTIC_SHARE = 0.5;

export function resolveWorkers(given: Workers): OnHere | OnWorkers {
  const { mode, strategy, merging, serverCores = 1 } = given;
  if (mode !== undefined) checkChoice('mode', mode, STORE_TYPES);
  if (strategy !== undefined) checkChoice('strategy', strategy, STRATEGIES);
  if (merging !== undefined) checkChoice('merging', merging, MERGINGS);
  if (!isWithin(serverCores, 256)) {
    throw fault(`serverCores is ${print(serverCores)}; give a whole number from 1 to 256`);
  }
  const resources = resolveResources(resourcesOf(given));
  const consistency = consistencyOf(given);
  const way =
    dealsWithServers(given) && mode !== 'collective'
      ? clientsOf(given, consistency, resources.workers)
      : lockStepOf(given, resources.workers);
  if (resources.workers === 1 && way.kind === 'lock step') return { kind: 'here' };
  return { kind: 'workers', resources, way };
}

function resourcesOf({ workers, machines, transport, tls }: Workers): Resources | string {
  const inObject = Object.fromEntries(
    Object.entries({ workers, machines, transport, tls }).filter(([, value]) => value !== undefined),
  );
  if (typeof machines !== 'string') return inObject;
  const others = Object.keys(inObject).filter((name) => name !== 'machines');
  if (others.length === 0) return machines;
  throw fault(`machines is the file ${machines}, which says ${list(others)} too; give them there only`);
}

/** Whether workers form clients that deal with servers; otherwise all is planned in lock step. */
function dealsWithServers(given: Workers): boolean {
  const { mode, clients, servers, strategy, consistency = 'synchronous' } = given;
  const isPlanned = mode === undefined && clients === undefined && consistency === 'synchronous';
  return !isPlanned || (Array.isArray(servers) && strategy === undefined);
}

function lockStepOf(given: Workers, workers: number): LockStep {
  const { mode, servers, strategy, merging = 'optimal', serverCores = 1, access, clients } = given;
  if (mode === 'collective') {
    const others = Object.entries({ servers, access, clients, strategy }).filter(
      ([, value]) => value !== undefined && value !== 0,
    );
    if (others.length > 0) {
      throw fault(
        `mode is 'collective', which has no servers, and on has ${list(others.map(([name]) => name))} too; leave that out, or use mode 'mpi-sgd'`,
      );
    }
  }
  // 0: everything by collectives.
  checkPlaceOfServers({ ...given, servers: servers === 0 ? undefined : servers }, workers);
  if (typeof servers === 'object' && strategy === 'collectives') {
    throw fault(
      "strategy is 'collectives', which uses no servers, and on has addresses of some; leave them out, or use strategy 'hybrid'",
    );
  }
  if (servers === 0 && strategy !== undefined && strategy !== 'collectives') {
    throw fault(`servers is 0 and strategy is '${strategy}', which needs some; use strategy 'collectives'`);
  }
  const usual = mode === 'collective' || servers === 0 ? 'collectives' : 'hybrid';
  return {
    ...{ kind: 'lock step', strategy: strategy ?? usual, merging, serverCores },
    servers: servers === 0 ? undefined : servers,
    access: access && checkedAccess(access),
  };
}

function clientsOf(given: Workers, consistency: Clients['consistency'], workers: number): Clients {
  const { mode, servers = 1, access, strategy, merging, serverCores = 1 } = given;
  const planned = Object.entries({ strategy, merging }).filter(([, value]) => value !== undefined);
  if (planned.length > 0) {
    throw fault(
      `on has ${list(planned.map(([name]) => name))}, which says how a plan in lock step is made, and clients that deal with servers have no such plan; leave out either that, or mode, clients and consistency, and name a strategy where there are addresses`,
    );
  }
  if (workers === 1) throw aloneWithServers();
  const usual = mode?.startsWith('mpi') ? 1 : workers;
  const { clients = usual } = given;
  if (!isWithin(clients, workers)) {
    throw fault(`clients is ${print(clients)} but there are ${workers} workers; give 1 to ${workers}`, {
      ...{ clients, workers },
    });
  }
  if (mode?.startsWith('dist') && clients !== workers) {
    throw fault(
      `clients is ${clients} and mode is '${mode}', in which each of the ${workers} workers is a client; leave out clients, or use mode '${mode.replace('dist', 'mpi')}'`,
      { clients, workers, mode },
    );
  }
  checkPlaceOfServers({ ...given, servers }, workers);
  const kinds = { synchronous: 'sgd', asynchronous: 'asgd', bounded: 'asgd', elastic: 'esgd' } as const;
  const name: Clients['mode'] =
    `${clients === workers && !mode?.startsWith('mpi') ? 'dist' : 'mpi'}-${kinds[consistency.kind]}` as const;
  return {
    ...{ kind: 'clients', mode: name, clients, consistency, servers, serverCores },
    access: access && checkedAccess(access),
  };
}

function consistencyOf({ mode, consistency }: Workers): Clients['consistency'] {
  const ending = mode === 'collective' ? 'sgd' : mode?.slice(mode.indexOf('-') + 1);
  const given = consistency ?? byMode(ending);
  const resolved = resolveConsistency(given);
  const fits = {
    sgd: ['synchronous'],
    asgd: ['asynchronous', 'bounded'],
    esgd: ['elastic'],
  } as const;
  if (
    ending === undefined ||
    (fits[ending as keyof typeof fits] as readonly string[]).includes(resolved.kind)
  ) {
    return resolved;
  }
  throw fault(
    `mode is '${mode}' and consistency is ${print(given)}, which is another mode; leave out one of them`,
    { mode, consistency: given },
  );
}

function byMode(ending: string | undefined): OnConsistency {
  if (ending === 'asgd') return 'asynchronous';
  return ending === 'esgd' ? { elastic: ELASTIC_SHARE } : 'synchronous';
}

function resolveConsistency(given: OnConsistency): Clients['consistency'] {
  if (given === 'synchronous' || given === 'asynchronous') return { kind: given };
  if (typeof given === 'string') {
    checkChoice('consistency', given, ['synchronous', 'asynchronous']);
  }
  const form = `give 'synchronous', 'asynchronous', { staleness: 4 } or { elastic: 0.5, everySteps: 64 }`;
  if (typeof given !== 'object' || given === null) throw fault(`consistency is ${print(given)}; ${form}`);
  if ('staleness' in given) {
    refuseUnknownOptions('on.consistency with staleness', given, { staleness: true });
    const { staleness } = given;
    if (Number.isSafeInteger(staleness) && staleness >= 0) return { kind: 'bounded', staleness };
    throw fault(`staleness is ${print(staleness)}; give a whole number of steps, 0 or more`);
  }
  refuseUnknownOptions('on.consistency', given, { elastic: true, everySteps: true });
  if (!('elastic' in given)) throw fault(`consistency is ${print(given)}; ${form}`);
  const { elastic: alpha, everySteps = EVERY_STEPS } = given;
  if (!(typeof alpha === 'number' && alpha > 0 && alpha <= 1)) {
    throw fault(`elastic is ${print(alpha)}; give a share above 0 and at most 1`);
  }
  if (!isWithin(everySteps, Number.MAX_SAFE_INTEGER)) {
    throw fault(`everySteps is ${print(everySteps)}; give a whole number of 1 or more`);
  }
  return { kind: 'elastic', alpha, everySteps };
}

/** In the processes of workers, or at addresses with access to a service. */
function checkPlaceOfServers({ servers, access, serverCores }: Workers, workers: number): void {
  if (typeof servers !== 'object') {
    if (access !== undefined) {
      throw fault('access is for servers of their own, and on has no addresses; add servers: ["host:port"]');
    }
    if (servers !== undefined) checkServers(servers, workers);
    return;
  }
  if (workers === 1) throw aloneWithServers();
  checkAddresses(servers);
  if (access === undefined) {
    throw fault(
      'servers of their own need access to a service; add access: { namespace, nonceFile } with the name that `tributary server --service` was given and the file of its nonce (on the command line --service NAME --nonce-file FILE)',
    );
  }
  if (serverCores !== undefined) {
    throw fault(
      'serverCores is for servers in the processes of workers; those with an address have their own `tributary server --cores`',
    );
  }
}

function aloneWithServers(): UsageError {
  return fault('workers is 1, and servers are for several; give workers: 2 or more, or leave out the rest');
}

function checkServers(servers: number, workers: number): void {
  if (isWithin(servers, workers)) return;
  throw fault(
    `servers is ${print(servers)} but there are ${workers} workers; give 1 to ${workers}, or addresses of servers of their own`,
    { servers, workers },
  );
}

function checkAddresses(servers: readonly string[]): void {
  const bad = servers.find((one) => typeof one !== 'string' || !/^.+:\d{1,5}$/.test(one));
  if (servers.length > 0 && bad === undefined) return;
  throw fault(`servers is ${print(servers)}; give addresses such as "10.0.0.9:7000", at least one`);
}

function checkedAccess(access: ServerAccess): ServerAccess {
  refuseUnknownOptions('on.access', access, { namespace: true, nonceFile: true });
  const { namespace, nonceFile } = access;
  if (
    typeof namespace !== 'string' ||
    namespace === '' ||
    typeof nonceFile !== 'string' ||
    nonceFile === ''
  ) {
    throw fault('access needs namespace, the name of the service, and nonceFile, the path of its nonce');
  }
  return { namespace, nonceFile: isAbsolute(nonceFile) ? nonceFile : resolve(nonceFile) };
}
