/**
 * Our side of `bench exchange` as processes: servers where the placement has them in processes of their own, and workers with a
 * store for every tenant. Not what is measured on them. Invariants: tenants are told apart by namespace and nonce, also
 * those that exist to compare settings; after `close` no process is left.
 */
import { randomBytes } from 'node:crypto';
import { mkdtempSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PeerGroup } from '../allreduce/index.ts';
import type { ControlAddress, GroupCommand } from '../allreduce/index.ts';
import { openMeeting } from '../allreduce/meeting.ts';
import { UsageError } from '../../base/index.ts';
import type { Scheduler } from '../../cluster/index.ts';
import type { Aggregation } from '../../server/index.ts';
import type { ModelTensor } from './models.ts';
import { writeRun } from './our-run.ts';
import type { OurAssignment } from './our-run.ts';
import type { ExchangeTransport } from './peer-commands.ts';
import type { PlacementPlan } from './placement.ts';

/** How the parameters of a tenant are exchanged. */
export interface TenantSettings {
  readonly chunkBytes: number;
  readonly aggregation: Aggregation;
  /** Rows that each worker touches in a step; null: all are exchanged. */
  readonly rows: number | null;
}

/** Tenants that exchange in one turn. The same object in several variants is the same tenant. */
export interface Variant {
  /** One word, by which a turn asks for it. */
  readonly name: string;
  readonly tenants: readonly TenantSettings[];
}

export interface OurSideOptions {
  readonly transport: ExchangeTransport;
  readonly workers: number;
  /** Groups of workers that face the servers as one; as many as workers: every worker does by itself. */
  readonly clients: number;
  /** Whether workers of clients face the servers by themselves, since all are on one host and the sum is the same. */
  readonly isFused: boolean;
  readonly placement: PlacementPlan;
  readonly tensors: readonly ModelTensor[];
  readonly variants: readonly Variant[];
  /** Whether there is a process more, with a service of its own on the servers. Default false. */
  readonly hasNeighbour?: boolean | undefined;
  /** A folder of this run alone. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal?: AbortSignal | undefined;
}

/** Of the 4 GiB that the shared memory of a process can have; the rest is for messages and gaps. */
const PROCESS_BYTES = 3.75 * 2 ** 30;

export class OurSide {
  readonly workers: PeerGroup;
  /** Undefined where they are in the workers' processes. */
  readonly servers: PeerGroup | undefined;
  /** A turn says by its variant what it does from then on. */
  readonly neighbour: PeerGroup | undefined;
  /** Where the workers of clients meet. */
  readonly #scheduler: Scheduler | undefined;

  private constructor(
    workers: PeerGroup,
    servers: PeerGroup | undefined,
    neighbour: PeerGroup | undefined,
    scheduler: Scheduler | undefined,
  ) {
    this.workers = workers;
    this.neighbour = neighbour;
    this.servers = servers;
    this.#scheduler = scheduler;
  }

  static async start(options: OurSideOptions): Promise<OurSide> {
    checkMemory(options);
    const folder = mkdtempSync(join(options.folder, 'ours-'));
    writeRun(folder, runOf(options));
    const { placement, servers: count } = options.placement;
    const { signal, workers, env } = options;
    const clients = facesOf(options);
    const isApart = placement === 'NCC' || placement === 'NCS';
    const scheduler = clients < workers ? await openMeeting(folder, workers) : undefined;
    let servers: PeerGroup | undefined;
    let ranks: PeerGroup | undefined;
    try {
      if (isApart) servers = await PeerGroup.start(command('server', count, folder, env), { signal });
      ranks = await PeerGroup.start(command('rank', workers, folder, env), { signal });
      const neighbour = options.hasNeighbour
        ? await PeerGroup.start(command('neighbour', 1, folder, env), { signal })
        : undefined;
      return new OurSide(ranks, servers, neighbour, scheduler);
    } catch (error) {
      await ranks?.close();
      await servers?.close();
      await scheduler?.close();
      throw error;
    }
  }

  get groups(): readonly PeerGroup[] {
    return [this.workers, this.servers, this.neighbour].filter((group) => group !== undefined);
  }

  async close(): Promise<void> {
    await this.neighbour?.close();
    // Workers say goodbye to servers.
    await this.workers.close();
    await this.servers?.close();
    await this.#scheduler?.close();
  }
}

/** Variants that fit into the memory of one set of processes, as many at a time as do; throws where one alone does not. */
export function batchesOf(
  variants: readonly Variant[],
  options: Omit<OurSideOptions, 'variants'>,
): Variant[][] {
  const batches: Variant[][] = [];
  for (const variant of variants) {
    const last = batches.at(-1);
    if (last && fits({ ...options, variants: [...last, variant] })) last.push(variant);
    else {
      checkMemory({ ...options, variants: [variant] });
      batches.push([variant]);
    }
  }
  return batches;
}

function runOf(options: OurSideOptions): Parameters<typeof writeRun>[1] {
  const { transport, workers, placement, variants } = options;
  const clients = facesOf(options);
  const tenants = tenantsOf(variants);
  return {
    ...{ transport, workers, clients, ...placement },
    neighbour: options.hasNeighbour
      ? { namespace: 'neighbour', nonce: randomBytes(32).toString('hex') }
      : null,
    tensors: options.tensors.map((tensor) => ({ ...tensor })),
    tenants: tenants.map((settings, i) => ({
      ...{ namespace: `tenant-${i}`, nonce: randomBytes(32).toString('hex'), ...settings },
    })),
    variants: Object.fromEntries(
      variants.map((variant) => [variant.name, variant.tenants.map((tenant) => tenants.indexOf(tenant))]),
    ),
  };
}

/** How many the servers face. */
function facesOf({ workers, clients, isFused }: OurSideOptions): number {
  return isFused ? workers : clients;
}

function tenantsOf(variants: readonly Variant[]): TenantSettings[] {
  return [...new Set(variants.flatMap(({ tenants }) => tenants))];
}

/** Weights, momentum, and the gradients and copies of all who face it, for each tenant, on the fullest server. */
function serverBytes(options: OurSideOptions): number {
  const { workers, placement, transport } = options;
  const clients = facesOf(options);
  // Clients have their sums, and the weights before they are passed on, in memory that the server maps.
  const mapped = clients < workers ? 2 * clients : workers;
  // Over TCP a server has only its part of the model, in shared memory it maps the gradients of all of it.
  const share = transport === 'tcp' ? 1 / placement.servers : 1;
  return share * bytesOf(options, 2, mapped);
}

/** Gradient, weights and sum, and the others' gradients, in the memory of a client's first worker. */
function clientBytes(options: OurSideOptions): number {
  const { workers } = options;
  const clients = facesOf(options);
  return clients < workers ? bytesOf(options, 0, 2 + Math.ceil(workers / clients)) : 0;
}

/** So many times the model for each tenant, and so many more where all of it is exchanged. */
function bytesOf({ tensors, variants }: OurSideOptions, always: number, dense: number): number {
  const model = 4 * tensors.reduce((sum, { length }) => sum + length, 0);
  const times = tenantsOf(variants).map(({ rows }) => always + (rows === null ? dense : 0));
  return model * times.reduce((sum, one) => sum + one, 0);
}

function fits(options: OurSideOptions): boolean {
  return Math.max(serverBytes(options), clientBytes(options)) <= PROCESS_BYTES;
}

function checkMemory(options: OurSideOptions): void {
  if (fits(options)) return;
  const [server, client] = [serverBytes(options), clientBytes(options)];
  const [who, bytes] = server >= client ? ['a server', server] : ['the first worker of a client', client];
  throw new UsageError(
    'OUT_OF_SHARED_MEMORY',
    `${who} would need ${(bytes / 2 ** 30).toFixed(1)} GiB for the parameters and gradients of ${tenantsOf(options.variants).length} tenant(s) with ${options.workers} workers, and can have ${PROCESS_BYTES / 2 ** 30}; take a smaller model, or fewer tenants or workers`,
    { bytes, limit: PROCESS_BYTES },
  );
}

const NAMES = {
  rank: 'Tributary',
  server: 'servers of Tributary',
  neighbour: 'a neighbour on the same servers',
} as const;

function command(
  role: 'server' | 'rank' | 'neighbour',
  count: number,
  folder: string,
  env: OurSideOptions['env'],
): GroupCommand {
  // From the sources (tests) the program is TypeScript and needs a loader; built, it is JavaScript beside this file.
  const fromSources = import.meta.url.endsWith('.ts');
  const program = fileURLToPath(new URL(`./our-${role}.${fromSources ? 'ts' : 'js'}`, import.meta.url));
  const loader = fromSources ? ['--import', import.meta.resolve('tsx')] : [];
  const processOf = (control: ControlAddress, number: number) => {
    const assignment: OurAssignment = { control, number, folder };
    return { file: process.execPath, args: [...loader, program, JSON.stringify(assignment)] };
  };
  return {
    name: NAMES[role],
    ranks: count,
    processes: (control) => Array.from({ length: count }, (_, number) => processOf(control, number)),
    env,
    settings: {},
    install: 'npm install',
  };
}
