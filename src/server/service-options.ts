/**
 * What a service is created with, and the checks of it, whoever asks: the program that runs the
 * server, or an administrator over the network. Pure. Invariant: what `checkedServiceOptions`
 * returns can be offered to workers.
 */
import { UsageError } from '../base/index.ts';
import { isNonce } from '../sockets/index.ts';
import { MAX_CONNECTIONS } from './cores/connection-table.ts';
import type { Durability, Service } from './cores/office.ts';
import { isNamespace, MAX_WORKERS, readSettings } from './wire/messages.ts';
import type { ServiceSettings } from './wire/messages.ts';

export interface ServiceOptions {
  /** Letters, digits, '.', '_' and '-', up to 64, the first no dot. */
  readonly namespace: string;
  /** 64 hexadecimal digits that workers must know. Default: random. */
  readonly nonce?: string | undefined;
  /**
   * Workers that it is for; one that comes with another number is refused. Default: as the first
   * worker says.
   */
  readonly workers?: number | undefined;
  /** How it is trained. Default: as the first worker says. */
  readonly settings?: ServiceSettings | undefined;
  /**
   * How long a worker whose connection broke is waited for before it is counted out, in
   * milliseconds. Default 5,000.
   */
  readonly graceMs?: number | undefined;
  /**
   * What becomes of synchronous training without a lost worker: 'release' continues with the
   * others, 'wait' waits until it has been started again and then goes back to the last checkpoint,
   * so that the result is that of a run without the loss. 'rewind' gives up the step after
   * `graceMs`: all workers get REWOUND, and nothing is applied without the lost one. Default
   * 'release'.
   */
  readonly lostWorkers?: 'release' | 'wait' | 'rewind' | undefined;
  /** Folder of its checkpoints and logs, of this server alone. Default: nothing is kept. */
  readonly folder?: string | undefined;
  /**
   * What acknowledged pushes survive, where they are logged (asynchronous training with a folder):
   * 'process', the end of the server's process, however it comes; 'disk', also a power cut, because
   * nothing is acknowledged before it is on the disk. Default 'process'.
   */
  readonly durability?: Durability | undefined;
  /**
   * Bytes that it may take: values, slots, gradients on their way, segments of workers on this
   * host, and copies for checkpoints. Quotas may add up to more than there is; then it is the first
   * who gets it. Default: half of the space.
   */
  readonly maxBytes?: number | undefined;
  /**
   * Keys and chunks of them that it may have on one core; each takes 2 KiB of its quota. Default
   * 131,072.
   */
  readonly maxChunks?: number | undefined;
  /**
   * Bytes that it may write to its logs of pushes between two checkpoints; each core has an equal
   * share. Pushes beyond are refused until a checkpoint is on the disk. Default 64 GiB: minutes of
   * the fastest pushing, which a restart must be able to do again.
   */
  readonly maxLogBytes?: number | undefined;
  /** Connections that it may have to one core: one for each worker. Default 256. */
  readonly maxConnections?: number | undefined;
}

export type CheckedOptions = Pick<
  Service,
  | 'workers'
  | 'settings'
  | 'graceMs'
  | 'lostWorkers'
  | 'durability'
  | 'maxBytes'
  | 'maxChunks'
  | 'maxLogBytes'
  | 'maxConnections'
>;

/**
 * With defaults for what was left out; throws a `UsageError` for what cannot be. `capacityBytes`:
 * of the server's space.
 */
export function checkedServiceOptions(
  options: ServiceOptions & { readonly nonce: string },
  capacityBytes: number,
): CheckedOptions {
  const { namespace, nonce, workers } = options;
  if (!isNamespace(namespace)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `namespace '${String(namespace)}' is no name; give another one of 1 to 64 letters, digits, '.', '_' and '-'`,
      { namespace },
    );
  }
  if (!isNonce(nonce)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the nonce of namespace '${namespace}' is not made of 64 hexadecimal digits; leave it out for a random one`,
      { namespace },
    );
  }
  const { graceMs = 5000, maxBytes = Math.floor(capacityBytes / 2) } = options;
  const { maxChunks = 131_072, maxConnections = 256, maxLogBytes = 64 * 2 ** 30 } = options;
  if (workers !== undefined) checkCount('workers', workers, 1, MAX_WORKERS);
  checkCount('graceMs', graceMs, 0, 2 ** 31);
  checkCount('maxBytes', maxBytes, 1, 2 ** 40);
  checkCount('maxChunks', maxChunks, 1, 2 ** 31);
  checkCount('maxLogBytes', maxLogBytes, 1, 2 ** 50);
  checkCount('maxConnections', maxConnections, 1, MAX_CONNECTIONS);
  const { lostWorkers = 'release', durability = 'process' } = options;
  if (durability !== 'process' && durability !== 'disk') throw unknownDurability(namespace, durability);
  const settings = options.settings && checkedSettings(options.settings);
  return {
    ...{ workers, settings, graceMs, lostWorkers, durability },
    ...{ maxBytes, maxChunks, maxLogBytes, maxConnections },
  };
}

function checkedSettings(settings: ServiceSettings): ServiceSettings {
  try {
    return readSettings(settings);
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the settings of a service are ${JSON.stringify(settings)}; give workers, consistency, combine and aggregation as the documentation says`,
      { settings },
      cause,
    );
  }
}

function unknownDurability(namespace: string, durability: unknown): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `the durability of namespace '${namespace}' is ${JSON.stringify(durability)}; give 'process' or 'disk'`,
    { namespace, durability },
  );
}

export function checkCount(name: string, value: number, least: number, most: number): void {
  if (Number.isInteger(value) && value >= least && value <= most) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${name} is ${value}; give a whole number from ${least} to ${most}`,
    { [name]: value },
  );
}
