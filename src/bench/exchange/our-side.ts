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
import { UsageError } from '../../base/index.ts';
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
  readonly placement: PlacementPlan;
  readonly tensors: readonly ModelTensor[];
  readonly variants: readonly Variant[];
  /** A folder of this run alone. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal?: AbortSignal | undefined;
}

/** Of the 4 GiB that a server's memory can have; the rest is for messages and gaps. */
const SERVER_BYTES = 3.75 * 2 ** 30;

export class OurSide {
  readonly workers: PeerGroup;
  /** Undefined where they are in the workers' processes. */
  readonly servers: PeerGroup | undefined;

  private constructor(workers: PeerGroup, servers: PeerGroup | undefined) {
    this.workers = workers;
    this.servers = servers;
  }

  static async start(options: OurSideOptions): Promise<OurSide> {
    checkMemory(options);
    const folder = mkdtempSync(join(options.folder, 'ours-'));
    writeRun(folder, runOf(options));
    const { placement, servers: count } = options.placement;
    const { signal, workers, env } = options;
    const isApart = placement === 'NCC' || placement === 'NCS';
    const servers = isApart
      ? await PeerGroup.start(command('server', count, folder, env), { signal })
      : undefined;
    try {
      return new OurSide(await PeerGroup.start(command('rank', workers, folder, env), { signal }), servers);
    } catch (error) {
      await servers?.close();
      throw error;
    }
  }

  get groups(): readonly PeerGroup[] {
    return this.servers ? [this.workers, this.servers] : [this.workers];
  }

  async close(): Promise<void> {
    // Workers say goodbye to servers.
    await this.workers.close();
    await this.servers?.close();
  }
}

/** Variants that fit into the memory of one set of servers, as many at a time as do; throws where one alone does not. */
export function batchesOf(
  variants: readonly Variant[],
  options: Omit<OurSideOptions, 'variants'>,
): Variant[][] {
  const batches: Variant[][] = [];
  for (const variant of variants) {
    const last = batches.at(-1);
    if (last && serverBytes({ ...options, variants: [...last, variant] }) <= SERVER_BYTES) last.push(variant);
    else {
      checkMemory({ ...options, variants: [variant] });
      batches.push([variant]);
    }
  }
  return batches;
}

function runOf(options: OurSideOptions): Parameters<typeof writeRun>[1] {
  const { transport, workers, placement, variants } = options;
  const tenants = tenantsOf(variants);
  return {
    ...{ transport, workers, ...placement },
    tensors: options.tensors.map((tensor) => ({ ...tensor })),
    tenants: tenants.map((settings, i) => ({
      ...{ namespace: `tenant-${i}`, nonce: randomBytes(32).toString('hex'), ...settings },
    })),
    variants: Object.fromEntries(
      variants.map((variant) => [variant.name, variant.tenants.map((tenant) => tenants.indexOf(tenant))]),
    ),
  };
}

function tenantsOf(variants: readonly Variant[]): TenantSettings[] {
  return [...new Set(variants.flatMap(({ tenants }) => tenants))];
}

/** Weights, momentum, and the gradients and copies of all workers, for each tenant, on the fullest server. */
function serverBytes({ tensors, workers, placement, transport, variants }: OurSideOptions): number {
  const model = 4 * tensors.reduce((sum, { length }) => sum + length, 0);
  const bytes = tenantsOf(variants).map(({ rows }) => model * (2 + (rows === null ? workers : 0)));
  // Over TCP a server has only its part of the model, in shared memory it maps the gradients of all of it.
  const share = transport === 'tcp' ? 1 / placement.servers : 1;
  return share * bytes.reduce((sum, one) => sum + one, 0);
}

function checkMemory(options: OurSideOptions): void {
  const bytes = serverBytes(options);
  if (bytes <= SERVER_BYTES) return;
  throw new UsageError(
    'OUT_OF_SHARED_MEMORY',
    `a server would need ${(bytes / 2 ** 30).toFixed(1)} GiB for weights, momentum and gradients of ${tenantsOf(options.variants).length} tenant(s) with ${options.workers} workers, and can have ${SERVER_BYTES / 2 ** 30}; take a smaller model, or fewer tenants or workers`,
    { bytes, limit: SERVER_BYTES },
  );
}

function command(
  role: 'server' | 'rank',
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
    name: role === 'rank' ? 'Tributary' : 'servers of Tributary',
    ranks: count,
    processes: (control) => Array.from({ length: count }, (_, number) => processOf(control, number)),
    env,
    settings: {},
    install: 'npm install',
  };
}
