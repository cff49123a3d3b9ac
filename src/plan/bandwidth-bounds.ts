/**
 * The network bandwidth a server's host needs at least if exchanges are to hide behind compute (PHub, section 2.3.1,
 * figure 4 and table 2): every worker sends the model's gradients and receives its parameters within one iteration, by
 * infinitely fast servers that own equal shares. A bound and no forecast. Invariant: bytes between a worker and a
 * server on the same host are not counted; both directions are, so a full-duplex link needs half of it each way.
 */
import { refuse, requireCount, requirePositive } from './argument-checks.ts';
import { serverCount, traitsOf, type PlacementKind } from './server-places.ts';

export interface ExchangeLoad {
  /** Bytes of the model's gradients, which are those of its parameters. */
  readonly modelBytes: number;
  /** Seconds of compute in an iteration, behind which the exchange is to hide. */
  readonly iterationSeconds: number;
  /** Workers, each on a host of its own. */
  readonly workers: number;
  /** Servers, each on a host of its own. Default 1 when central, otherwise as many as workers. */
  readonly servers?: number;
}

/**
 * Bits per second, both directions together, at each host that has a server. With M bits of the model, T seconds of an
 * iteration, N workers and S servers:
 *
 *   colocated      2 (N - 1) M / (S T) as a server + 2 (S - 1) M / (S T) as a worker
 *   not colocated  2 N M / (S T)
 *
 * For S = 1 these are CC = 2 (N - 1) M / T and NCC = 2 N M / T of table 2, for S = N, its number of shards,
 * CS = 4 (N - 1) M / (N T) and NCS = 2 M / T.
 */
export function bandwidthLowerBound(kind: PlacementKind, load: ExchangeLoad): number {
  const { modelBytes, iterationSeconds, workers } = load;
  requirePositive('modelBytes', modelBytes);
  requirePositive('iterationSeconds', iterationSeconds);
  requireCount('workers', workers);
  const servers = serverCount(kind, load.servers, workers);
  const { colocated } = traitsOf(kind);
  if (colocated && servers > workers)
    refuse('servers', servers, `at most ${workers}, one for each worker's host`);
  const sharesOfModel = colocated ? workers - 1 + (servers - 1) : workers;
  return (2 * sharesOfModel * 8 * modelBytes) / (servers * iterationSeconds);
}
