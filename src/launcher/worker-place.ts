/**
 * This process's place among the workers of a run: in the user's own process the others are started from here, with a
 * scheduler in a thread; in a process that was started that way, the place is read. Joins nothing yet.
 * Invariant: what was started here has ended when `close` is done, whatever went wrong.
 */
import { randomBytes } from 'node:crypto';
import { UsageError } from '../base/index.ts';
import type { PeerError } from '../base/index.ts';
import type { TransportChoice } from './join-cluster.ts';
import type { TlsOptions } from '../sockets/index.ts';
import { startSchedulerThread } from './scheduler-thread.ts';
import { claimFurtherProcesses } from './script-call.ts';
import { readTlsFiles } from './tls-files.ts';
import type { TlsFiles } from './tls-files.ts';
import { workerAssignment } from './assignment.ts';
import { WorkerProcesses } from './worker-processes.ts';
import type { WorkerProcessesOptions } from './worker-processes.ts';

/** Where workers run. The first one is where this process is. */
export interface WorkerMachine {
  readonly name: string;
  readonly workers: number;
  /** What a command there begins with: `['ssh', 'host-b']`; see `WorkerCommand`. Default none: it is this machine. */
  readonly prefix?: readonly string[] | undefined;
  /** The address at which its workers are reached. Default: the one that leads to the first machine. */
  readonly address?: string | undefined;
}

export interface WorkerPlaceOptions extends WorkerProcessesOptions {
  /** Two workers or more, over all of them. */
  readonly machines: readonly [WorkerMachine, ...WorkerMachine[]];
  /** How they exchange data. Default 'auto'. */
  readonly transport?: TransportChoice | undefined;
  /** Encrypts what goes over the network; read in every process. Default: none. */
  readonly tls?: TlsFiles | undefined;
}

export interface WorkerPlace {
  readonly rank: number;
  readonly workers: number;
  readonly scheduler: string;
  readonly secret: string;
  readonly transport: TransportChoice;
  readonly host?: string | undefined;
  readonly address?: string | undefined;
  /** What the files of `tls` hold here. */
  readonly tls?: TlsOptions | undefined;
  /** Settles if a worker ends while it is still needed; only the first process hears of it. */
  readonly failed: Promise<PeerError>;
  /** Waits for the other processes, where they were started here. */
  close(): Promise<void>;
}

export const MAX_WORKERS = 256;

export async function takeWorkerPlace(options: WorkerPlaceOptions): Promise<WorkerPlace> {
  const { machines, transport = 'auto' } = options;
  const workers = machines.reduce((sum, machine) => sum + machine.workers, 0);
  if (!(Number.isInteger(workers) && workers >= 2 && workers <= MAX_WORKERS)) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `workers is ${workers}; give a whole number from 2 to ${MAX_WORKERS}`,
      { workers },
    );
  }
  const assigned = workerAssignment();
  if (assigned) {
    endWithTheFirst();
    return {
      ...{ ...assigned, tls: assigned.tls && readTlsFiles(assigned.tls) },
      ...{ failed: new Promise(() => undefined), close: () => Promise.resolve() },
    };
  }
  if (!options.command) claimFurtherProcesses('workers');
  const tls = options.tls && readTlsFiles(options.tls);
  const secret = randomBytes(32).toString('hex');
  const isAlone = machines.length === 1;
  const [{ address }] = machines;
  // Beyond this machine only if there is another one to hear it.
  const host = isAlone ? undefined : address;
  const scheduler = await startSchedulerThread({
    ...{ size: workers, secret, ...(host ? { host } : {}) },
    ...(tls ? { tls: { key: tls.key, cert: tls.cert } } : {}),
  }).catch((error: unknown) => {
    throw host !== undefined && isNoAddressHere(error) ? noAddressHere(host, error) : error;
  });
  const shared = { workers, scheduler: scheduler.address, secret, transport };
  const all = machines.flatMap((machine) =>
    Array.from({ length: machine.workers }, () => ({
      prefix: machine.prefix,
      place: isAlone ? {} : { host: machine.name, ...(machine.address ? { address: machine.address } : {}) },
    })),
  );
  const [own, ...others] = all;
  const processes = new WorkerProcesses(
    others.map(({ prefix, place }, i) => ({
      prefix,
      assignment: { ...shared, ...place, rank: i + 1, tls: options.tls },
    })),
    options,
  );
  return {
    ...{ ...shared, ...own!.place, rank: 0, tls, failed: processes.failed },
    close: async () => {
      await processes.close();
      await scheduler.close();
    },
  };
}

/** On any port, what a scheduler cannot listen on is not of this machine, or not known. */
function isNoAddressHere(error: unknown): boolean {
  const codes: readonly unknown[] = ['EADDRNOTAVAIL', 'ENOTFOUND', 'EAI_AGAIN'];
  return error instanceof UsageError && codes.includes(error.facts['errno']);
}

function noAddressHere(address: string, cause: unknown): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `resources: machines[0].address is ${address}, which is no address of this machine; the first machine is the one that starts the run: give the address at which the others reach it`,
    { address },
    cause,
  );
}

/** How long a worker may take to end by itself when the first process is gone, or waits for its end. */
const GRACE_MS = 5000;

/**
 * The standard input ends with the process that started this one, or when that one waits for the end of this one. Whatever this
 * one does with the others fails or is done then; it is given the time to clean up behind itself.
 */
function endWithTheFirst(): void {
  const end = (): void => void setTimeout(() => process.exit(1), GRACE_MS).unref();
  process.stdin.once('end', end);
  process.stdin.once('error', end);
  process.stdin.resume();
  // It must not keep a process alive that is done.
  (process.stdin as { unref?: () => void }).unref?.();
}
