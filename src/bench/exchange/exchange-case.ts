/**
 * What `bench exchange` returns: the figures of each case, and around them what it ran on and how. Types, and the one formula
 * behind them. Invariant: bytes are counted, not measured: those that an exchange must move through memory.
 */
import type { Aggregation } from '../../server/index.ts';
import type { Machine } from '../machine.ts';
import type { Assignment } from './assignment.ts';
import type { ExchangeTransport } from './peer-commands.ts';
import type { Placement } from './placement.ts';

export const SWEEPS = ['chunks', 'tenants', 'assignment'] as const;
export type Sweep = (typeof SWEEPS)[number];

export interface ExchangeCase {
  /** Its name, or the number of its tensors where only lengths were given. */
  readonly model: string;
  readonly workers: number;
  readonly servers: number;
  readonly clients: number;
  readonly tenants: number;
  readonly transport: ExchangeTransport;
  readonly aggregation: Aggregation;
  readonly chunkBytes: number;
  /** Of all tenants together. */
  readonly exchangesPerSec: number;
  /** Bytes that these exchanges must move through memory, by `bytesPerExchange`. */
  readonly bytesPerSec: number;
  /** bytesPerSec / the memory bandwidth that the same run measured. */
  readonly memoryShare: number | null;
  /** Null here and below: not measured. */
  readonly glooExchangesPerSec: number | null;
  /** Ours / gloo's. */
  readonly ratioGloo: number | null;
  readonly openmpiExchangesPerSec: number | null;
  readonly ratioOpenmpi: number | null;
}

/** Of `--sweep assignment`: threads of one process, without messages. */
export interface AssignmentCase extends ExchangeCase {
  readonly assignment: Assignment;
}

/** Of `--rows`: exchanges of some rows of a table against those of all of it. */
export interface RowsCase extends ExchangeCase {
  readonly tableRows: number;
  readonly rowLength: number;
  /** That each worker touches in a step. */
  readonly rows: number;
  readonly denseExchangesPerSec: number;
  /** Exchanges per second by rows / dense. */
  readonly ratioDense: number;
}

/** Of `--neighbour`: exchanges beside a tenant that means badly against those beside one that is idle. */
export interface NeighbourCase extends ExchangeCase {
  readonly aloneExchangesPerSec: number;
  /** Exchanges per second beside a neighbour that means badly / beside an idle one. */
  readonly ratioAlone: number;
}

export interface MemoryFigures {
  /** Of the vector that is updated: the model's. */
  readonly bytes: number;
  readonly threads: number;
  /** Bytes per second right before and right after what is compared with it. */
  readonly before: number;
  readonly after: number;
}

export interface ExchangeBench {
  readonly bench: 'exchange';
  readonly date: string;
  readonly machine: Machine;
  readonly model: string;
  readonly workers: number;
  readonly servers: number;
  readonly transport: ExchangeTransport;
  readonly placement: Placement;
  /** What was varied; null where nothing was. */
  readonly sweep: Sweep | 'rows' | 'neighbour' | null;
  /** Null where the memory was not measured. */
  readonly memory: MemoryFigures | null;
  /** How each side was started, and how it was measured. */
  readonly configuration: Readonly<Record<string, unknown>>;
  /** What was left out, and why. */
  readonly skipped: readonly string[];
  /** What to know when reading the figures. */
  readonly notes: readonly string[];
  readonly cases: readonly (ExchangeCase | AssignmentCase | RowsCase | NeighbourCase)[];
}

export const BYTES_FORMULA =
  'bytes of an exchange = (workers + 4) x bytes of the model: the gradients of all workers are read once, weights and momentum are read and written once';

export function bytesPerExchange(workers: number, modelBytes: number): number {
  return (workers + 4) * modelBytes;
}

export const ROWS_FORMULA =
  'bytes of an exchange by rows = workers x rows x bytes of a row x 5: each gradient row is read once, its weights and momentum are read and written once; workers touch different rows';

export function bytesPerRowsExchange(workers: number, rows: number, rowLength: number): number {
  return workers * rows * rowLength * 4 * 5;
}
