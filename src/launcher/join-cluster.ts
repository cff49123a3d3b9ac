/**
 * How a process gets into a cluster: chooses its transport and its address, joins through the scheduler, and has the
 * costs of the links measured. The only place where transports are chosen. Invariant: a transport that was opened is
 * closed again if joining fails.
 */
import { hostname } from 'node:os';
import { UsageError } from '../base/index.ts';
import { Cluster, hostIdentity } from '../cluster/index.ts';
import type { ClusterOptions } from '../cluster/index.ts';
import { measureCosts } from '../collectives/index.ts';
import { hasSharedMemory, SharedSpace } from '../memory/index.ts';
import { createSharedMemoryTransport, createTcpTransport, RoutedTransport } from '../transport/index.ts';
import type { TlsOptions } from '../sockets/index.ts';
import type { Transport } from '../transport/index.ts';
import { localAddressTowards } from './local-address.ts';

export const TRANSPORTS = ['auto', 'shm', 'tcp'] as const;
export type TransportChoice = (typeof TRANSPORTS)[number];

export interface JoinClusterOptions extends Omit<ClusterOptions, 'title' | 'host' | 'tls'> {
  /**
   * How members exchange data: 'shm' by shared memory (one host), 'tcp' by the network even on one host, 'auto' by
   * shared memory inside a host and by the network between hosts. Default 'auto'.
   */
  readonly transport?: TransportChoice | undefined;
  /** The memory whose regions are exchanged. Default: a new space. */
  readonly space?: SharedSpace | undefined;
  /** The address at which peers reach this process. Default: the one that leads to the scheduler. */
  readonly address?: string | undefined;
  /** First and last port that may be listened at. Default: any. */
  readonly ports?: readonly [from: number, to: number] | undefined;
  /** Connections to each peer on another host. Default 1. */
  readonly connectionsPerPeer?: number | undefined;
  /** Bytes that are kept for each peer on another host before somebody asks for them; then reading pauses. Default 256 MiB. */
  readonly maxUnexpectedBytes?: number | undefined;
  /**
   * Encrypts what goes between processes over the network, with certificates on both sides; the scheduler must have TLS as well.
   * Stores of the cluster inherit it. Default: none.
   */
  readonly tls?: TlsOptions | undefined;
  /** Processes with the same host share memory. Default: found out. */
  readonly host?: string | undefined;
  /**
   * Whether to measure what each algorithm costs between these members before the first use. A process that is taken into
   * a running cluster does not: the others are at work, and all choose by a rule of thumb. Default true.
   */
  readonly measure?: boolean | undefined;
  /**
   * Receives a line about addresses, reached peers, refused strangers and what joining waits for. Default: the last of
   * these go to the error output, the others nowhere.
   */
  readonly log?: ((line: string) => void) | undefined;
}

export async function joinCluster(options: JoinClusterOptions): Promise<Cluster> {
  const host = options.host ?? hostIdentity();
  const transport = await openTransport(options, host);
  const { log } = options;
  let cluster: Cluster | undefined;
  try {
    cluster = await Cluster.join(transport, {
      ...options,
      title: `process ${process.pid} on ${hostname()}`,
      host,
      onWaiting: options.onWaiting ?? (({ text }) => (log ?? toErrorOutput)(text)),
    });
    const { world } = cluster;
    log?.(
      `rank ${world.rank} of ${world.size} (process ${process.pid} on ${hostname()}): ${describe(transport)}; all ${world.size - 1} peers reached`,
    );
    if ((options.measure ?? true) && !cluster.isNewcomer) await measureCosts(world);
    return cluster;
  } catch (error) {
    if (cluster) await cluster.abort(error as Error);
    else transport.abort(error as Error);
    throw error;
  }
}

/** Nobody should wait for others without knowing for whom. */
function toErrorOutput(line: string): void {
  process.stderr.write(`${line}\n`);
}

async function openTransport(options: JoinClusterOptions, host: string): Promise<Transport> {
  const choice = options.transport ?? 'auto';
  if (!TRANSPORTS.includes(choice)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `transport is '${String(choice)}'; give ${TRANSPORTS.join(', ')}`,
      {
        transport: choice,
      },
    );
  }
  const space = options.space ?? SharedSpace.create();
  if (choice === 'shm') return createSharedMemoryTransport({ space });
  const address = options.address ?? (await localAddressTowards(options.scheduler));
  const { secret, ports, connectionsPerPeer, maxUnexpectedBytes, tls } = options;
  const tcp = await createTcpTransport({
    space,
    secret,
    address,
    ...(ports ? { ports } : {}),
    ...(connectionsPerPeer === undefined ? {} : { connectionsPerPeer }),
    ...(maxUnexpectedBytes === undefined ? {} : { maxUnexpectedBytes }),
    tls,
    log: options.log,
  });
  if (choice === 'tcp' || !hasSharedMemory()) return tcp;
  return new RoutedTransport(createSharedMemoryTransport({ space }), tcp, host);
}

function describe({ kind, address }: Transport): string {
  const tcp = (address['remote'] ?? address) as Readonly<Record<string, unknown>>;
  const at =
    'port' in tcp ? ` at ${String(tcp['host'])}:${String(tcp['port'])} (change with address, ports)` : '';
  return `${kind}${at}`;
}
