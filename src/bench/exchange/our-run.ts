/**
 * What the processes of ours in `bench exchange` are told, and where they find each other: files in a folder of the run.
 * Nonces are in a file and not on a command line, which every user of the machine could read. Invariants: files are
 * readable by their owner alone; an address that is found is complete.
 */
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { PeerError, UsageError } from '../../base/index.ts';
import { ParameterServer } from '../../server/index.ts';
import { PLACEMENTS } from './placement.ts';

const RUN_FILE = 'run.json';
const OWNER_ONLY = 0o600;
/** Between two looks for an address. */
const LOOK_MS = 10;
const START_TIMEOUT_MS = 30_000;

const Count = z.number().int().positive();

/** A model with its own service on all servers; every worker has a store for it. */
const Tenant = z.object({
  namespace: z.string(),
  nonce: z.string(),
  chunkBytes: Count,
  aggregation: z.enum(['tall', 'wide']),
  /** Rows that each worker touches in a step; null: the whole model is exchanged. */
  rows: Count.nullable(),
});

const Run = z.object({
  transport: z.enum(['shm', 'tcp']),
  placement: z.enum(PLACEMENTS),
  servers: Count,
  coresPerServer: Count,
  workers: Count,
  /** Groups of workers that face the servers as one; as many as workers where clients are fused. */
  clients: Count,
  tensors: z.array(z.object({ key: z.string(), length: Count, rowLength: Count.optional() })),
  tenants: z.array(Tenant),
  /** A service of somebody else, who may mean badly; null: there is none. */
  neighbour: z.object({ namespace: z.string(), nonce: z.string() }).nullable(),
  /** The tenants that exchange in a turn, by the name that the turn asks for. */
  variants: z.record(z.string(), z.array(z.number().int().nonnegative())),
});
export type OurRun = z.infer<typeof Run>;
export type TenantAssignment = z.infer<typeof Tenant>;

/** What a process is told on its command line, as JSON. */
const Assignment = z.object({
  control: z.object({ host: z.string(), port: z.number().int(), token: z.string() }),
  /** Which of the workers or servers it is. */
  number: z.number().int().nonnegative(),
  folder: z.string(),
});
export type OurAssignment = z.infer<typeof Assignment>;

export function readAssignment(argument: string | undefined): OurAssignment {
  try {
    return Assignment.parse(JSON.parse(argument ?? ''));
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the program got '${argument?.slice(0, 200)}', not what the coordinator gives; start it by 'tributary bench exchange'`,
      {},
      cause,
    );
  }
}

export function writeRun(folder: string, run: OurRun): void {
  writeFileSync(join(folder, RUN_FILE), JSON.stringify(run), { mode: OWNER_ONLY });
}

export function readRun(folder: string): OurRun {
  return Run.parse(JSON.parse(readFileSync(join(folder, RUN_FILE), 'utf8')));
}

/** A server with the services of all tenants; says in the folder where it is. */
export async function startServer(run: OurRun, number: number, folder: string): Promise<ParameterServer> {
  const log = (line: string): void => void process.stderr.write(`server ${number}: ${line}\n`);
  const server = await ParameterServer.start({ cores: run.coresPerServer, log });
  for (const { namespace, nonce, aggregation } of run.tenants) {
    const settings = {
      ...({
        workers: run.clients,
        consistency: { kind: 'synchronous' },
        combine: 'sum',
        rows: 'lazy',
        aggregation,
      } as const),
    };
    // Tenants of a benchmark are of one owner, and may take what they find.
    server.createService({ namespace, nonce, settings, maxBytes: server.capacityBytes });
  }
  // With the quota that one gets who is not trusted.
  if (run.neighbour) server.createService({ ...run.neighbour, folder: join(folder, `neighbour-${number}`) });
  const file = addressFile(folder, number);
  // Renamed into place, so that nobody reads half of it.
  writeFileSync(`${file}.new`, `${server.address}:${server.port}`, { mode: OWNER_ONLY });
  renameSync(`${file}.new`, file);
  return server;
}

/** The addresses of all servers of the run, once all have been started. */
export async function findServers({ servers }: OurRun, folder: string): Promise<readonly string[]> {
  const deadline = performance.now() + START_TIMEOUT_MS;
  const found: string[] = [];
  while (found.length < servers) {
    const address = readAddress(folder, found.length);
    if (address !== undefined) found.push(address);
    else if (performance.now() < deadline) await delay(LOOK_MS);
    else {
      throw new PeerError(
        'TIMEOUT',
        `server ${found.length} of ${servers} did not say where it is within ${START_TIMEOUT_MS} ms; try again on a machine that is less busy`,
        { server: found.length, servers, timeoutMs: START_TIMEOUT_MS },
      );
    }
  }
  return found;
}

function readAddress(folder: string, number: number): string | undefined {
  try {
    return readFileSync(addressFile(folder, number), 'utf8');
  } catch {
    return undefined;
  }
}

function addressFile(folder: string, number: number): string {
  return join(folder, `server-${number}`);
}
