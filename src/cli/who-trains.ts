/**
 * Who trains, as a configuration and the command line say it: both become the option `on`, also
 * fields that files of earlier versions have. What `on` means and what is refused is decided by
 * `resolveOn`. Invariant: whoever is named on the command line trains, whatever the file says of
 * others.
 */
import { resolve } from 'node:path';
import { UsageError } from '../base/index.ts';
import {
  MAX_LEARNERS,
  UPDATE_MODES,
  updateModeNamed,
  updateModeParts,
  type UpdateMode,
} from '../learners/index.ts';
import {
  MODES,
  resolveOn,
  type Learners,
  type On,
  type OnConsistency,
  type OnLearners,
  type ResolvedOn,
  type Workers,
} from '../runner/index.ts';
import type { OptionSpecs, OptionValues } from './command.ts';
import type { ResolvedConfig } from './config.ts';

/** Of configurations before there was `on`. */
export interface EarlierFields {
  readonly workers?: number | undefined;
  readonly resources?: Workers | string | undefined;
  readonly learners?: number | 'auto' | undefined;
  readonly learnerMode?: UpdateMode | 'auto' | undefined;
}

export const EARLIER_FIELDS = ['workers', 'resources', 'learners', 'learnerMode'] as const;

/** Flags of commands that train. */
export const whoTrainsOptions = {
  learners: {
    kind: 'text',
    value: 'N|auto',
    help: 'Processes that train one set of weights in shared memory. Default auto: chosen by a short trial.',
  },
  workers: {
    kind: 'count',
    help: 'Processes that train together, each with its share of every batch. Not with --learners.',
  },
  mode: {
    kind: 'text',
    value: 'MODE',
    choices: ['auto', ...MODES, ...UPDATE_MODES],
    help: 'How workers use servers, or how learners share the weights; see below.',
  },
  clients: {
    kind: 'count',
    help: 'Groups of workers; the first of each deals with the servers. Default: each worker, with mpi modes 1.',
  },
  servers: {
    kind: 'text',
    value: 'N|HOST:PORT,...',
    help: 'Parameter servers: so many in the processes of workers, or addresses of tributary server.',
  },
  'server-cores': { kind: 'count', help: 'Threads of each server in a process of a worker. Default 1.' },
  service: { kind: 'text', value: 'NAME', help: 'With addresses: the service on these servers.' },
  'nonce-file': {
    kind: 'text',
    value: 'FILE',
    help: 'With addresses: the file with the nonce of the service.',
  },
  consistency: {
    kind: 'text',
    choices: ['synchronous', 'asynchronous'],
    help: 'Whether servers wait for all clients. Default synchronous, or as the mode says.',
  },
  staleness: { kind: 'count', help: 'Asynchronous, but no client is more steps ahead of the slowest.' },
  elastic: {
    kind: 'number',
    help: 'Clients have weights of their own, which move towards those of the servers by this share.',
  },
  'every-steps': { kind: 'count', help: 'With elastic averaging: steps between two exchanges. Default 64.' },
} as const satisfies OptionSpecs;

export type WhoTrainsFlags = OptionValues<typeof whoTrainsOptions>;

/**
 * `on` of a configuration; its relative paths begin at `folder`. Undefined: it says nothing of who
 * trains.
 */
export function onOfFields(on: On | undefined, earlier: EarlierFields, folder: string): On | undefined {
  const given = on ?? onOfEarlier(earlier);
  if (given === undefined || typeof given !== 'object' || given === null || 'learners' in given) return given;
  const { machines, access } = given;
  return {
    ...given,
    ...(typeof machines === 'string' ? { machines: resolve(folder, machines) } : {}),
    ...(typeof access?.nonceFile === 'string'
      ? { access: { ...access, nonceFile: resolve(folder, access.nonceFile) } }
      : {}),
  };
}

/** Some files name everything, the defaults too: those do not count where others are named. */
function onOfEarlier({
  workers = 1,
  resources,
  learners,
  learnerMode = 'auto',
}: EarlierFields): On | undefined {
  const team = typeof resources === 'string' ? { machines: resources } : resources;
  const ofWorkers = { ...team, ...(workers > 1 ? { workers } : {}) };
  const hasWorkers = team !== undefined || workers > 1;
  const countsNot = hasWorkers && (learners === 1 || learners === 'auto') && learnerMode === 'auto';
  const ofLearners =
    countsNot || (learners === undefined && learnerMode === 'auto')
      ? {}
      : { learners: learners ?? 'auto', ...updateOf(learnerMode) };
  const on = { ...ofWorkers, ...ofLearners };
  return Object.keys(on).length === 0 ? undefined : on;
}

/** How learners share the weights, by the name of a mode. */
export function updateOf(mode: UpdateMode | 'auto'): Partial<Learners> {
  return mode === 'auto' ? {} : updateModeParts(mode);
}

/** The name of it. */
export function updateModeOf({ update, appliedBy }: OnLearners): UpdateMode | 'auto' {
  if (update === 'auto' || appliedBy === 'auto') return 'auto';
  return updateModeNamed(update, appliedBy);
}

/** `on` of the configuration with what the command line says of it. */
export function onOfFlags(given: WhoTrainsFlags, on: On, cwd: string): On {
  const isOfLearners =
    given.mode === 'auto' || (UPDATE_MODES as readonly string[]).includes(given.mode ?? '');
  const ofWorkers = workersOf(given, cwd, isOfLearners);
  const named = Object.values(ofWorkers).some((value) => value !== undefined);
  const before = on === 'auto' ? {} : on;
  const earlier = 'learners' in before ? {} : before;
  if (given.learners === undefined && !isOfLearners) {
    if (!named) return on;
    return withoutUndefined({ ...kept(given, earlier), ...withoutUndefined(ofWorkers) });
  }
  if (named || given.learners === undefined) {
    const other = given.learners === undefined ? '--mode' : '--learners';
    const flags = Object.keys(whoTrainsOptions).filter(
      (name) => name !== 'learners' && name !== 'mode' && given[name as keyof WhoTrainsFlags] !== undefined,
    );
    if (given.mode !== undefined && !isOfLearners) flags.push('mode');
    if (named) throw either(flags, other);
    if (Object.keys(earlier).length > 0) throw modeOfOthers(given.mode!, earlier);
  }
  const mode = (isOfLearners ? given.mode : 'auto') as UpdateMode | 'auto';
  const kind = 'learners' in before ? before : { learners: 'auto' as const };
  const learners = given.learners === undefined ? kind.learners : learnersOf(given.learners);
  return { ...(given.mode === undefined ? kind : {}), learners, ...updateOf(mode) };
}

/** Of the file's workers: where they are. How they train is another matter once a mode is named. */
function kept({ mode, workers, consistency, staleness, elastic }: WhoTrainsFlags, on: Workers): Workers {
  const { machines, transport, tls, servers, serverCores, access } = on;
  const place = { transport, tls, ...(workers === undefined ? { machines, workers: on.workers } : {}) };
  if (mode === 'collective') return place;
  if (mode !== undefined) return { ...place, servers, serverCores, access };
  const isOther = consistency !== undefined || staleness !== undefined || elastic !== undefined;
  return {
    ...on,
    machines: undefined,
    workers: undefined,
    ...place,
    ...(isOther ? { mode: undefined } : {}),
  };
}

function workersOf(given: WhoTrainsFlags, cwd: string, isOfLearners: boolean): Workers {
  const { workers, clients, mode } = given;
  const addresses = given.servers?.includes(':')
    ? given.servers.split(',').map((one) => one.trim())
    : undefined;
  const [namespace, file] = [given.service, given['nonce-file']];
  if ((namespace === undefined) !== (file === undefined)) {
    throw new UsageError(
      'INVALID_COMMAND',
      'tributary train takes --service and --nonce-file together: the name of a service and the file of its nonce. See: tributary train --help',
      { options: ['--service', '--nonce-file'] },
    );
  }
  return {
    ...{ workers, clients, mode: isOfLearners ? undefined : (mode as Workers['mode']) },
    servers: addresses ?? (given.servers === undefined ? undefined : countOf(given.servers)),
    serverCores: given['server-cores'],
    access: file === undefined ? undefined : { namespace: namespace!, nonceFile: resolve(cwd, file) },
    consistency: consistencyOf(given),
  };
}

function consistencyOf(given: WhoTrainsFlags): OnConsistency | undefined {
  const { consistency, staleness, elastic } = given;
  const everySteps = given['every-steps'];
  const named = Object.entries({ consistency, staleness, elastic }).filter(
    ([, value]) => value !== undefined,
  );
  if (named.length > 1) throw either([named[0]![0]], `--${named[1]![0]}`);
  if (everySteps !== undefined && elastic === undefined && named.length > 0) {
    throw either(['every-steps'], `--${named[0]![0]}`);
  }
  if (staleness !== undefined) return { staleness };
  if (elastic !== undefined) return { elastic, everySteps };
  if (everySteps !== undefined) return { elastic: 0.5, everySteps };
  return consistency as OnConsistency | undefined;
}

function countOf(text: string): number {
  if (/^\d+$/.test(text)) return Number(text);
  throw new UsageError(
    'INVALID_COMMAND',
    `tributary train takes a number or addresses for --servers, got ${JSON.stringify(text)}; give 1, or host:port with commas between several. See: tributary train --help`,
    { option: 'servers', actual: text },
  );
}

function learnersOf(text: string): number | 'auto' {
  if (text === 'auto') return text;
  const learners = /^\d+$/.test(text) ? Number(text) : NaN;
  if (learners >= 1 && learners <= MAX_LEARNERS) return learners;
  throw new UsageError(
    'INVALID_COMMAND',
    `tributary train takes auto or a whole number from 1 to ${MAX_LEARNERS} for --learners, got ${JSON.stringify(text)}. See: tributary train --help`,
    { option: 'learners', actual: text },
  );
}

function either(flags: readonly string[], other: string): UsageError {
  const first = `--${flags[0]}`;
  return new UsageError(
    'INVALID_COMMAND',
    `tributary train takes ${first} or ${other}, not both. See: tributary train --help`,
    { options: [first, other] },
  );
}

function modeOfOthers(mode: string, on: Workers): UsageError {
  return new UsageError(
    'INVALID_COMMAND',
    `tributary train takes --mode '${mode}' for learners, and the configuration asks for workers: ${JSON.stringify(on)}. Give a mode of workers, or add --learners. See: tributary train --help`,
    { option: 'mode' },
  );
}

function withoutUndefined(value: Workers): Workers {
  return Object.fromEntries(Object.entries(value).filter(([, entry]) => entry !== undefined));
}

/** Who trains by this configuration. */
export function whoTrains({ on }: ResolvedConfig): ResolvedOn {
  return resolveOn(on, 'auto');
}
