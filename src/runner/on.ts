/**
 * Who trains a model: the option `on` of `fit`, `getRunner` and the configuration. `resolveOn` is
 * the only place that reads it. It fills in every default and refuses what cannot work together,
 * before anything is started. Invariant: what it returns is frozen and complete, so that nobody
 * behind it has a default of their own.
 */
import { didYouMean, refuseUnknownOptions, type OptionNames } from '../base/index.ts';
import { STORE_TYPES, type StoreType } from '../kvstore/index.ts';
import type { TlsFiles, TransportChoice } from '../launcher/index.ts';
import { MAX_LEARNERS } from '../learners/index.ts';
import type { Merging, Strategy } from '../plan/index.ts';
import { checkChoice, fault, isWithin, list, print } from './on-faults.ts';
import { resolveWorkers } from './on-workers.ts';
import type { Machine, ResolvedResources } from './resources.ts';

/** Names of the literature for how workers and servers train together (MXNET-MPI, section 5). */
export const MODES = STORE_TYPES;
export type Mode = StoreType;

/**
 * 'auto', for configurations of `tributary train` only: whoever is fastest on this machine, as a
 * short trial finds.
 */
export type On = 'auto' | Workers | Learners;

/** Processes that train one model, each on its share of the samples. */
export interface Workers {
  /** A name that stands for consistency, clients and servers. Default: as these say. */
  readonly mode?: Mode | undefined;
  /** Processes of this machine that train. Default: as many as there are processors. */
  readonly workers?: number | undefined;
  /**
   * Instead of `workers`: machines and the workers on each, or the path of a JSON file with them.
   */
  readonly machines?: readonly Machine[] | string | undefined;
  /**
   * How workers exchange data. Default 'auto': shared memory inside a machine, TCP between
   * machines.
   */
  readonly transport?: TransportChoice | undefined;
  /** Encrypts all that goes over the network: paths of PEM files. Default: none. */
  readonly tls?: TlsFiles | undefined;
  /**
   * A number: so many parameter servers, in the processes of the first workers. Addresses: servers of their own, with
   * `access`; in lock step by a plan if `strategy` is given, too. Default: in lock step one on each
   * machine if the plan has a use for it, otherwise 1.
   */
  readonly servers?: number | readonly string[] | undefined;
  /** Threads of each server in a worker's process. Default 1. */
  readonly serverCores?: number | undefined;
  /** The service on servers of their own, and the file with its nonce. */
  readonly access?: ServerAccess | undefined;
  /**
   * Groups of workers that add up their gradients among themselves; the first worker of each deals
   * with the servers. Default: every worker is one where servers are asked for by mode, address
   * without strategy, or consistency; 1 for the mpi modes.
   */
  readonly clients?: number | undefined;
  /** In lock step: which gradients go by collectives and which to servers. Default 'hybrid'. */
  readonly strategy?: Strategy | undefined;
  /** In lock step: how neighbouring gradients are merged into messages. Default 'optimal'. */
  readonly merging?: Merging | undefined;
  /**
   * When gradients take effect. 'synchronous': those of all workers together. 'asynchronous': those of a client at once.
   * `staleness`: at once, but no client is more steps ahead of the slowest. `elastic`: clients have weights of their own,
   * which move towards the servers' by this share of the distance every so many steps. Default 'synchronous'.
   */
  readonly consistency?: OnConsistency | undefined;
}

export type OnConsistency =
  | 'synchronous'
  | 'asynchronous'
  | { readonly staleness: number }
  | {
      /** Above 0, at most 1. */
      readonly elastic: number;
      /** Default 64. */
      readonly everySteps?: number | undefined;
    };

export interface ServerAccess {
  /** The name of the service. */
  readonly namespace: string;
  /**
   * Path of the file with its nonce, the same on all machines. Relative ones begin at the working
   * folder.
   */
  readonly nonceFile: string;
}

/**
 * Processes of this machine that train one set of weights in shared memory, each at its own pace.
 */
export interface Learners {
  readonly learners: number | 'auto';
  /** Whether a parameter is locked while it changes. Default: as a trial finds, or 'lock-free'. */
  readonly update?: 'lock-free' | 'locked' | undefined;
  /**
   * Who applies gradients: each learner, or one process for all. Default: as a trial finds, or
   * 'learner'.
   */
  readonly appliedBy?: 'learner' | 'server' | undefined;
  /**
   * Processes started in place of ones that died, at most, from the beginning or the last restart.
   * Default 8.
   */
  readonly maxReplacements?: number | undefined;
  /**
   * How often all processes are started again from the last checkpoint when no learner is left or
   * nothing moves. Default 1.
   */
  readonly maxRestarts?: number | undefined;
  /**
   * A learner that finishes no batch for so long is ended and replaced. Default 60,000
   * milliseconds.
   */
  readonly stallMs?: number | undefined;
  /**
   * A process that has not come to the call after so long is ended and replaced. Default 600,000
   * milliseconds.
   */
  readonly startMs?: number | undefined;
  /**
   * Folder of this user (mode 0700) on a shared-memory file system, for weights and gradients.
   * Default /dev/shm/tributary-<uid>.
   */
  readonly segmentDirectory?: string | undefined;
}

export type ResolvedOn = OnHere | OnLearners | OnWorkers;

export interface OnHere {
  readonly kind: 'here';
}

export interface OnLearners {
  readonly kind: 'learners';
  readonly learners: number | 'auto';
  readonly update: 'lock-free' | 'locked' | 'auto';
  readonly appliedBy: 'learner' | 'server' | 'auto';
  readonly maxReplacements: number;
  readonly maxRestarts: number;
  readonly stallMs: number;
  readonly startMs: number;
  /** Undefined: the usual one. */
  readonly segmentDirectory: string | undefined;
}

export interface OnWorkers {
  readonly kind: 'workers';
  readonly resources: ResolvedResources;
  readonly way: LockStep | Clients;
}

/** Every worker has all parameters, gradients travel as the plan says. */
export interface LockStep {
  readonly kind: 'lock step';
  readonly strategy: Strategy;
  readonly merging: Merging;
  /** Undefined: one on each machine, if the plan has a use for it. */
  readonly servers: number | readonly string[] | undefined;
  readonly serverCores: number;
  /** Of servers of their own; the path is absolute. */
  readonly access: ServerAccess | undefined;
}

/** Workers deal with servers in groups. */
export interface Clients {
  readonly kind: 'clients';
  readonly mode: Exclude<Mode, 'collective'>;
  readonly clients: number;
  readonly consistency:
    | { readonly kind: 'synchronous' }
    | { readonly kind: 'asynchronous' }
    | { readonly kind: 'bounded'; readonly staleness: number }
    | { readonly kind: 'elastic'; readonly alpha: number; readonly everySteps: number };
  readonly servers: number | readonly string[];
  readonly serverCores: number;
  /** Of servers of their own; the path is absolute. */
  readonly access: ServerAccess | undefined;
}

export const WORKERS_OPTIONS: OptionNames<Workers> = {
  ...{ mode: true, workers: true, machines: true, transport: true, tls: true },
  ...{ servers: true, serverCores: true, access: true, clients: true },
  ...{ strategy: true, merging: true, consistency: true },
};
export const LEARNERS_OPTIONS: OptionNames<Learners> = {
  ...{ learners: true, update: true, appliedBy: true, maxReplacements: true, maxRestarts: true },
  ...{ stallMs: true, startMs: true, segmentDirectory: true },
};

/** The same as `on`, where that was not given: 'here' is this process. */
export type OnByDefault = 'here' | 'auto' | 'all processors';

export function resolveOn(on: On | undefined, byDefault: OnByDefault): ResolvedOn {
  if (on === undefined && byDefault === 'here') return freeze<ResolvedOn>({ kind: 'here' });
  const given = on ?? (byDefault === 'auto' ? 'auto' : {});
  if (given === 'auto') return freeze<ResolvedOn>(resolveLearners({ learners: 'auto' }));
  if (typeof given !== 'object' || given === null) {
    const hint = typeof given === 'string' ? didYouMean(given, ['auto']) : '';
    throw fault(`on is ${JSON.stringify(given)}.${hint} Give 'auto', { workers: 2 } or { learners: 2 }`);
  }
  const [ofLearners, ofWorkers] = [LEARNERS_OPTIONS, WORKERS_OPTIONS].map((known) =>
    Object.entries(given).flatMap(([name, value]) =>
      value !== undefined && Object.hasOwn(known, name) ? [name] : [],
    ),
  ) as [string[], string[]];
  refuseUnknownOptions('on', given as Workers & Learners, { ...WORKERS_OPTIONS, ...LEARNERS_OPTIONS });
  if (ofLearners.length > 0 && ofWorkers.length > 0) {
    throw fault(
      `on has ${list(ofWorkers)} of workers and ${list(ofLearners)} of learners. Give either workers or learners, not both: workers exchange gradients, learners share one set of weights in memory`,
      { workers: ofWorkers, learners: ofLearners },
    );
  }
  return freeze<ResolvedOn>(
    ofLearners.length > 0 ? resolveLearners(given as Learners) : resolveWorkers(given as Workers),
  );
}

function resolveLearners(given: Learners): OnHere | OnLearners {
  const { learners, update, appliedBy, segmentDirectory } = given;
  const { maxReplacements = 8, maxRestarts = 1, stallMs = 60_000, startMs = 600_000 } = given;
  const isCount = learners === 'auto' || isWithin(learners, MAX_LEARNERS);
  if (!isCount) {
    throw fault(`learners is ${print(learners)}; give 'auto' or a whole number from 1 to ${MAX_LEARNERS}`);
  }
  if (update !== undefined) checkChoice('update', update, ['lock-free', 'locked']);
  if (appliedBy !== undefined) checkChoice('appliedBy', appliedBy, ['learner', 'server']);
  // Whoever says one of them has chosen; a trial looks for the best of both otherwise.
  const isOpen = update === undefined && appliedBy === undefined;
  for (const [name, value] of Object.entries({ maxReplacements, maxRestarts })) {
    if (value !== 0 && !isWithin(value, Number.MAX_SAFE_INTEGER)) {
      throw fault(`${name} is ${print(value)}; give a whole number of 0 or more`);
    }
  }
  for (const [name, value] of Object.entries({ stallMs, startMs })) {
    if (!(typeof value === 'number' && value > 0)) {
      throw fault(`${name} is ${print(value)}; give a number of milliseconds above 0`);
    }
  }
  // Alone it shares nothing with anybody.
  if (learners === 1 && isOpen) return { kind: 'here' };
  return {
    ...{ maxReplacements, maxRestarts, stallMs, startMs, segmentDirectory },
    ...{ kind: 'learners', learners },
    update: isOpen ? 'auto' : (update ?? 'lock-free'),
    appliedBy: isOpen ? 'auto' : (appliedBy ?? 'learner'),
  };
}

/** All the way down. */
function freeze<T extends object>(value: T): T {
  for (const entry of Object.values(value)) {
    if (typeof entry === 'object' && entry !== null) freeze(entry as object);
  }
  return Object.freeze(value);
}
