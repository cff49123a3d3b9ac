/**
 * How many bytes an exchange moves, by arithmetic alone (Parallax, section 5.3.1 and table 3), and how many of them pass the
 * link of one machine. No times: these come from measured costs, which `routes.ts` compares. Terms: b bytes of a
 * parameter, N workers, alpha (sparsity) the share of rows that one worker touches in a step. Invariant: on one machine
 * no byte passes a link.
 */
import { refuse, requireCount } from './argument-checks.ts';
import { requireCostNumber } from './exchange-costs.ts';

export type ParameterKind = 'dense' | 'sparse';
export type ExchangeMethod = 'servers' | 'collectives';

export interface TransferLoad {
  /** Bytes of the whole parameter; b. */
  readonly bytes: number;
  readonly workers: number;
  /** Share of the rows that a worker touches in a step; alpha. Default 1. */
  readonly sparsity?: number;
}

/**
 * Bytes that one worker transfers in a step, by table 3:
 *
 *             servers      collectives
 *   dense     2 b          2 (N - 1) b / N       push and pull; a ring allreduce
 *   sparse    2 alpha b    2 (N - 1) alpha b     rows only; an allgather, in which every worker gets the rows of all
 */
export function transferBytes(kind: ParameterKind, method: ExchangeMethod, load: TransferLoad): number {
  const { bytes, workers, sparsity = 1 } = load;
  requireCostNumber('bytes', bytes);
  requireCount('workers', workers);
  requireShare('sparsity', sparsity);
  if (method === 'servers') return 2 * (kind === 'dense' ? 1 : sparsity) * bytes;
  return 2 * (workers - 1) * (kind === 'dense' ? 1 / workers : sparsity) * bytes;
}

export interface Machines {
  readonly machines: number;
  readonly workersPerMachine: number;
  /** Server processes, spread over the machines from the first on; 0 if there are none. */
  readonly servers: number;
}

export interface LinkLoad {
  /** Bytes of the whole parameter. */
  readonly bytes: number;
  /** Share of the rows that one worker touches in a step. Default 1. */
  readonly sparsity?: number;
  /** Share that all workers together touch. Default: as if each chose its rows independently. */
  readonly unionShare?: number;
  /** Whether the workers of a machine add up among themselves first, so that a machine sends as one. Default true. */
  readonly localAggregation?: boolean;
}

/**
 * Bytes that leave the busiest machine through its link in a step; as many come in, on the other half of a full-duplex link.
 * With m machines of k workers (k = 1 if they aggregate locally, with the rows that they touch together), q the share
 * of the servers that the first machine has:
 *
 *             servers                                   collectives
 *   dense     k b ((1 - q) + q (m - 1))                 2 (m k - 1) b / (m k)
 *   sparse    the same, alpha b instead of b            (m k - 1) alpha b
 *
 * The first is what the machine's workers push to servers elsewhere and its own servers answer to workers elsewhere. For a
 * server on each machine, as Parallax starts them, it is 2 (m - 1) k b / m: with k = 1 that of a ring. Table 3 counts
 * both directions of a push and pull, but one direction of a ring, and no bytes of servers; a link needs them all.
 */
export function linkBytes(
  kind: ParameterKind,
  method: ExchangeMethod,
  places: Machines,
  load: LinkLoad,
): number {
  const { machines, workersPerMachine, servers } = places;
  const { bytes, localAggregation = true } = load;
  if (machines === 1) return 0;
  const senders = localAggregation ? 1 : workersPerMachine;
  const share = kind === 'dense' ? 1 : shareTouched(load, places, workersPerMachine / senders);
  if (method === 'servers') {
    const onFirst = Math.ceil(servers / machines) / servers;
    return senders * share * bytes * (1 - onFirst + onFirst * (machines - 1));
  }
  const ranks = machines * senders;
  return (ranks - 1) * (kind === 'dense' ? 2 / ranks : share) * bytes;
}

/**
 * The share of rows that `together` workers touch: alpha for one of them, the measured union for all. Between the two it
 * grows by a power of their number, as vocabularies do with the length of a text (Heaps' law).
 */
function shareTouched(load: LinkLoad, places: Machines, together: number): number {
  const { sparsity = 1, unionShare } = load;
  const workers = places.machines * places.workersPerMachine;
  if (unionShare === undefined) return 1 - (1 - sparsity) ** together;
  if (workers === 1 || sparsity === 0) return sparsity;
  return sparsity * together ** (Math.log(unionShare / sparsity) / Math.log(workers));
}

export function requireShare(name: string, value: number): void {
  if (!(value >= 0 && value <= 1)) refuse(name, value, 'a share from 0 to 1');
}
