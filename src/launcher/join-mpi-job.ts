/**
 * How a process that mpirun or srun started gets into the cluster of its job: rank and size come from MPI, and stay.
 * Ranks on one host exchange through shared memory, those on different hosts through MPI. Invariant: a transport that
 * was opened is closed again if joining fails.
 */
import { hostname } from 'node:os';
import { z } from 'zod';
import { PeerError } from '../base/index.ts';
import { Cluster, hostIdentity } from '../cluster/index.ts';
import type { ClusterOptions } from '../cluster/index.ts';
import { measureCosts } from '../collectives/index.ts';
import { hasSharedMemory, SharedSpace } from '../memory/index.ts';
import { createMpiTransport, createSharedMemoryTransport, RoutedTransport } from '../transport/index.ts';
import type { MemberAddress, MpiTransport, Transport } from '../transport/index.ts';

export interface JoinMpiJobOptions extends Pick<
  ClusterOptions,
  'stallAfterMs' | 'deadlineMs' | 'spinMicros' | 'onStall'
> {
  /** The memory whose regions are exchanged. Default: a new space. */
  readonly space?: SharedSpace | undefined;
  /** Whether ranks on one host exchange through shared memory instead of MPI. Default true, where the system can. */
  readonly sharedMemory?: boolean | undefined;
  /** Whether to measure what each algorithm costs between these ranks before the first use. Default true. */
  readonly measure?: boolean | undefined;
}

/** What a rank tells the others of itself. */
const Introduction = z.object({
  title: z.string(),
  host: z.string(),
  address: z.record(z.string(), z.unknown()),
});
type Introduction = z.infer<typeof Introduction>;

export async function joinMpiJob(options: JoinMpiJobOptions = {}): Promise<Cluster> {
  const space = options.space ?? SharedSpace.create();
  const host = hostIdentity();
  const mpi = createMpiTransport({ space });
  let transport: Transport = mpi;
  let cluster: Cluster | undefined;
  try {
    if (options.sharedMemory ?? hasSharedMemory()) {
      transport = new RoutedTransport(createSharedMemoryTransport({ space }), mpi, host);
    }
    const title = `process ${process.pid} on ${hostname()}`;
    const members = meet(mpi, { title, host, address: { ...transport.address } });
    cluster = await Cluster.ofFixed(transport, members, options);
    if (options.measure ?? true) await measureCosts(cluster.world);
    return cluster;
  } catch (error) {
    if (cluster) await cluster.abort(error as Error);
    else transport.abort(error as Error);
    throw error;
  }
}

/** All ranks of the job, as they say they are. */
function meet(mpi: MpiTransport, self: Introduction): MemberAddress[] {
  return mpi.introduce(JSON.stringify(self)).map((text, member) => {
    const { success, data } = Introduction.safeParse(parsed(text));
    if (success) return { member, ...data };
    throw new PeerError(
      'PROTOCOL_VIOLATION',
      `rank ${member} introduced itself with '${text.slice(0, 200)}'; run the same version of Tributary on all ranks`,
      { member },
    );
  });
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
