/**
 * Where the servers of ours stand in `bench exchange` (PHub, figure 3): colocated with workers or not (C, NC), one central
 * server or the model sharded over several (C, S). Decides and explains; starts nothing. Invariant: what contradicts
 * itself is refused before anything is started.
 */
import { cpus } from 'node:os';
import { UsageError } from '../../base/index.ts';
import type { ExchangeTransport } from './peer-commands.ts';

export const PLACEMENTS = ['CC', 'CS', 'NCC', 'NCS'] as const;
export type Placement = (typeof PLACEMENTS)[number];

export interface PlacementOptions {
  readonly transport: ExchangeTransport;
  readonly workers: number;
  /** Default: NCC by shared memory, CS by TCP; as many servers as were asked for count first. */
  readonly placement?: Placement | undefined;
  /** Default: what the placement has; 2 for NCS. */
  readonly servers?: number | undefined;
  /** Threads of each server. Default: the cores of the machine shared among the servers; 1 for CS. */
  readonly cores?: number | undefined;
}

export interface PlacementPlan {
  readonly placement: Placement;
  readonly servers: number;
  readonly coresPerServer: number;
}

const MAX_SERVERS = 64;

export function planPlacement(options: PlacementOptions): PlacementPlan {
  const { workers, servers: wanted } = options;
  const placement = options.placement ?? defaultPlacement(options);
  const allowed = placement === 'CS' ? workers : placement === 'NCS' ? undefined : 1;
  const servers = wanted ?? allowed ?? 2;
  if (allowed !== undefined && servers !== allowed) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `placement ${placement} of ${workers} workers has ${allowed} server${allowed === 1 ? '' : 's'}, not ${servers}; leave the number out, or place them as NCS`,
      { placement, servers, workers },
    );
  }
  const shared = placement === 'CS' ? 1 : Math.max(1, Math.floor(cpus().length / servers));
  const coresPerServer = options.cores ?? shared;
  checkCount('servers', servers, MAX_SERVERS);
  checkCount('cores', coresPerServer, 256);
  return { placement, servers, coresPerServer };
}

/** The server that a worker's process hosts, if any. */
export function hostedServer(placement: Placement, worker: number): number | undefined {
  if (placement === 'CS') return worker;
  return placement === 'CC' && worker === 0 ? 0 : undefined;
}

export function describePlacement({ placement, servers, coresPerServer }: PlacementPlan): string {
  const cores = `${coresPerServer} core${coresPerServer === 1 ? '' : 's'}`;
  switch (placement) {
    case 'CC':
      return `CC: one server of ${cores} in the process of worker 0`;
    case 'CS':
      return `CS: a server of ${cores} in the process of each worker`;
    case 'NCC':
      return `NCC: one server of ${cores} in a process of its own`;
    case 'NCS':
      return `NCS: ${servers} servers of ${cores}, each in a process of its own`;
  }
}

function defaultPlacement({ transport, workers, servers }: PlacementOptions): Placement {
  if (servers === undefined) return transport === 'shm' ? 'NCC' : 'CS';
  if (servers === 1) return 'NCC';
  return transport === 'tcp' && servers === workers ? 'CS' : 'NCS';
}

export function checkCount(name: string, value: number, most: number): void {
  if (Number.isSafeInteger(value) && value >= 1 && value <= most) return;
  throw new UsageError('INVALID_ARGUMENT', `${name} is ${value}; give a whole number from 1 to ${most}`, {
    [name]: value,
  });
}
