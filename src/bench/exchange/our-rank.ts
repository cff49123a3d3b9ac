/**
 * A worker of ours in `bench exchange`: exchanges with the servers when its turn comes. A program that `our-side.ts` starts;
 * nothing imports it. All tenants of the run have a store in every worker process, so that the number of processes does
 * not depend on them. Invariants: only exchanges are timed; after every turn all weights are compared with what they
 * must be, bit by bit.
 */
import { UsageError } from '../../base/index.ts';
import { serveTurns } from '../allreduce/index.ts';
import type { Turn, TurnResult } from '../allreduce/index.ts';
import { DenseTenant } from './dense-tenant.ts';
import { findServers, readAssignment, readRun, startServer } from './our-run.ts';
import { hostedServer } from './placement.ts';
import { RowsTenant } from './rows-tenant.ts';
import { meetWorkers } from './worker-clients.ts';

const { control, number: worker, folder } = readAssignment(process.argv[2]);
const run = readRun(folder);
const own = hostedServer(run.placement, worker);
const server = own === undefined ? undefined : await startServer(run, own, folder);
const servers = await findServers(run, folder);
const cluster = await meetWorkers(run, worker, folder);
const modelBytes = 4 * run.tensors.reduce((sum, { length }) => sum + length, 0);
const tenants: (DenseTenant | RowsTenant)[] = [];
// One after the other, on all workers in the same order: opening has barriers.
for (const tenant of run.tenants) {
  const place = { run, tenant, worker, servers, own, cluster };
  tenants.push(await (tenant.rows === null ? DenseTenant.open(place) : RowsTenant.open(place, tenant.rows)));
}
await serveTurns(control, worker, take);
await Promise.all(tenants.map(({ store }) => store.close()));
await cluster?.close();
await server?.close();

async function take({ bytes, iterations, algorithm: variant }: Turn): Promise<TurnResult> {
  const active = run.variants[variant]?.map((tenant) => tenants[tenant]!);
  if (active === undefined || bytes !== modelBytes) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} has a model of ${modelBytes} bytes and the variants ${Object.keys(run.variants).join(', ')}, but the turn is of ${bytes} bytes and '${variant}'; ask for one of these`,
      { worker, bytes, variant },
    );
  }
  const [first] = active;
  await first!.store.barrier();
  const start = performance.now();
  for (let i = 0; i < iterations; i++) {
    if (active.length === 1) await first!.exchange();
    else await Promise.all(active.map((tenant) => tenant.exchange()));
  }
  const milliseconds = performance.now() - start;
  let ok = true;
  // All of them whatever is found: those of a client look together.
  for (const tenant of active) ok = (await tenant.isRight()) && ok;
  return { micros: (milliseconds * 1e3) / iterations / active.length, ok, algorithm: first!.checksum };
}
