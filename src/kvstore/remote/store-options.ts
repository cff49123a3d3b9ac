/**
 * How a worker's store on servers is told what to do, the checks of that, and what servers are told of it. Pure.
 * Invariant: workers with the same options, but for their numbers and their own memory, send the same settings.
 */
import { keyText, UsageError } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { SharedSpace } from '../../memory/index.ts';
import type {
  Aggregation,
  Combine,
  Consistency,
  RowsMode,
  ServiceAccess,
  ServiceSettings,
  Updater,
} from '../../server/index.ts';
import type { TlsOptions } from '../../sockets/index.ts';
import type { PushOptions } from '../kv-store.ts';

/** What servers need not be told where workers wait for each other. */
export interface RemotePushOptions extends PushOptions {
  /**
   * Counts as a push of this worker, but its values are left out: it had no samples. Default false.
   */
  readonly isSkipped?: boolean | undefined;
  /**
   * Learning rate of the update, where pushes take effect one by one. Default: the last one that
   * was set or pushed.
   */
  readonly lr?: number | undefined;
}

export interface RemoteStoreOptions {
  /**
   * Addresses of the servers, 'host:port', the same and in the same order on all workers. Of a
   * server that listens at several, 'host:port+host:port': connections to its cores are balanced
   * over them, and where one fails another is used.
   */
  readonly servers: readonly string[];
  /** What `createService` returned. */
  readonly access: ServiceAccess;
  /** This worker's number, from 0. */
  readonly worker: number;
  /** Workers that train together; the servers wait for so many. */
  readonly workers: number;
  /** When pushes take effect. Default synchronous. */
  readonly consistency?: Consistency | undefined;
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /**
   * What becomes of rows of tables without a gradient: 'lazy' leaves them and their momentum alone, 'exact' gives the
   * result of dense updates, at a cost that grows with the steps that a row missed. Default 'lazy'.
   */
  readonly rows?: RowsMode | undefined;
  /**
   * What becomes of pushes before `setOptimizer`: 'assign' takes the combined push of a step (without waiting: the
   * last push) for the value, as MXNet does, so that workers can pull the sum and update by themselves; 'accumulate'
   * adds all pushes up, as ps-lite does. Default 'assign'.
   */
  readonly updater?: Updater | undefined;
  /**
   * Whether servers only combine what all workers have pushed, answer with its sum of squares, and update by `apply`,
   * so that gradients can be clipped by their common norm. For synchronous training. Default false.
   */
  readonly held?: boolean | undefined;
  /** 'wide' aggregation is for comparison only. Default 'tall'. */
  readonly aggregation?: Aggregation | undefined;
  /** What becomes of a gradient that is not finite; 'accept' does not look, which saves a pass. Default 'refuse'. */
  readonly nonFinite?: 'refuse' | 'skip' | 'accept' | undefined;
  /** Longest piece that is updated at once, in bytes, a multiple of 64; servers take up to 4 MiB. Default 32 KB. */
  readonly chunkBytes?: number | undefined;
  /** Whether servers on this host may use this process's memory in place; or one for each server. Default true. */
  readonly sharedMemory?: boolean | readonly boolean[] | undefined;
  /**
   * How long a server that is not reached, or does not answer whether it is alive, is tried again before calls fail, in
   * milliseconds. Waiting for other workers does not count. Default 30,000.
   */
  readonly reconnectTimeoutMs?: number | undefined;
  /**
   * How long a server that this worker has never met may refuse its proof, or give none of its own,
   * before `connect` fails, in milliseconds: its service may not be there yet. Default:
   * `reconnectTimeoutMs`.
   */
  readonly refusedTimeoutMs?: number | undefined;
  /**
   * Longest wait for an answer of a server that is alive, in milliseconds, as for other workers that never come. Then
   * the store is of no use any more. Default 86,400,000, a day.
   */
  readonly requestTimeoutMs?: number | undefined;
  /**
   * Receives a line when a server is not reached for two seconds, and every ten seconds from then on; and when workers
   * that have not met yet are awaited for two seconds, less and less often from then on. Default: standard error.
   */
  readonly log?: ((line: string) => void) | undefined;
  /** Encrypts and authenticates all connections. Default: none. */
  readonly tls?: TlsOptions | undefined;
  /** Memory of tensors; regions in it are used where they lie. Default: a new space. */
  readonly space?: SharedSpace | undefined;
  /** Compiled for a space, which then is the one that is used; saves compiling them again. Default: new ones. */
  readonly kernels?: Kernels | undefined;
}

/** What servers are told, the same by all workers. */
export function settingsOf(options: RemoteStoreOptions): ServiceSettings {
  const { workers, consistency = { kind: 'synchronous' }, combine = 'sum', aggregation = 'tall' } = options;
  const { rows = 'lazy', updater = 'assign', held: isHeld = false } = options;
  return { workers, consistency, combine, aggregation, rows, updater, isHeld };
}

export function mayShare(option: RemoteStoreOptions['sharedMemory'] = true, server: number): boolean {
  return typeof option === 'boolean' ? option : (option[server] ?? true);
}

/** `mayBeNone`: whether a worker without samples can push, which then weighs nothing. */
export function samplesOf(
  key: StoreKey,
  worker: number,
  { samples = 1 }: PushOptions,
  mayBeNone: boolean,
): number {
  if ((samples > 0 || (mayBeNone && samples === 0)) && Number.isFinite(samples)) return samples;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed key ${keyText(key)} with ${samples} samples; give a positive number${mayBeNone ? ', or 0' : ''}`,
    { worker, key, samples },
  );
}

/** Factor and learning rate of a held step, which must be numbers that can be multiplied with. */
export function checkApply(worker: number, scale: number, lr: number | undefined): void {
  if (Number.isFinite(scale) && (lr === undefined || Number.isFinite(lr))) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} applies with scale ${scale} and learning rate ${lr}; give finite numbers`,
    { worker, scale: String(scale), lr: String(lr) },
  );
}

/** The rate travels with a push only where the push is an update. */
export function checkRateOfPush(
  key: StoreKey,
  { worker, consistency = { kind: 'synchronous' } }: RemoteStoreOptions,
  { lr }: RemotePushOptions,
): void {
  if (lr === undefined) return;
  checkRate(worker, lr);
  if (consistency.kind === 'asynchronous' || consistency.kind === 'bounded') return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed key ${keyText(key)} with a learning rate in ${consistency.kind} training, where a push is no update of its own; use setLearningRate`,
    { worker, key, consistency: consistency.kind },
  );
}

/** A number that JSON brings over; whether there is an optimizer to have it is the servers' business. */
export function checkRate(worker: number, lr: unknown): void {
  if (typeof lr === 'number' && Number.isFinite(lr) && lr >= 0) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} set the learning rate to ${String(lr)}; give a finite number of 0 or more`,
    { worker, lr: String(lr) },
  );
}

export function checkOptions(options: RemoteStoreOptions): void {
  const { servers, worker, workers, held, consistency } = options;
  if (held && consistency && consistency.kind !== 'synchronous') {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} wants updates held in ${consistency.kind} training, where pushes do not wait for each other; hold them in synchronous training`,
      { worker, consistency: consistency.kind },
    );
  }
  const isFine = Number.isInteger(workers) && workers > 0 && Number.isInteger(worker) && worker >= 0;
  if (isFine && servers.length > 0) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} of ${workers} with ${servers.length} servers cannot be; give a worker from 0, one or more workers, and the addresses of one or more servers`,
    { worker, workers, servers },
  );
}
