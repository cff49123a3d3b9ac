/**
 * What a further process of a script receives from the one that started it: a worker its rank,
 * where the others are, and the secret; a learner what its watchdog tells it. It comes as one line
 * on the standard input, so that nothing secret stands on a command line or in the environment, and
 * so that the end of that input says that the first process is gone. Invariants: a process that
 * nobody started this way reads nothing; one that comes to another call than it was started for
 * fails.
 */
import { readSync } from 'node:fs';
import { z } from 'zod';
import { UsageError } from '../base/index.ts';
import { tlsFilesSchema } from './tls-files.ts';

/** Set to 1 in the environment of workers and learners. */
export const WORKER_MARK = 'TRIBUTARY_WORKER';

const workerSchema = z.object({
  rank: z.number().int().min(1),
  workers: z.number().int().min(2),
  /** 'host:port' */
  scheduler: z.string().min(1),
  secret: z.string().min(1),
  transport: z.enum(['auto', 'shm', 'tcp']),
  /** Workers with the same one share memory. Default: found out. */
  host: z.string().optional(),
  /**
   * The address at which others reach this worker. Default: the one that leads to the scheduler.
   */
  address: z.string().optional(),
  /** Paths, for what they hold is nobody else's. Default: no TLS. */
  tls: tlsFilesSchema.optional(),
});

/** What is in it is for the learners to know. */
const learnerSchema = z.object({ learner: z.record(z.string(), z.unknown()) });

export type WorkerAssignment = Readonly<z.infer<typeof workerSchema>>;
export type Assignment = WorkerAssignment | Readonly<z.infer<typeof learnerSchema>>;

const MAX_BYTES = 64 * 1024;
const STANDARD_INPUT = 0;

let read: Assignment | undefined;

/** Of a call for workers; undefined in a process that the user started. */
export function workerAssignment(): WorkerAssignment | undefined {
  const assigned = assignmentOfThisProcess();
  if (assigned && 'learner' in assigned) throw otherCall('learner', 'workers');
  return assigned;
}

/** Of a call for learners; undefined in a process that the user started. */
export function learnerAssignment(): unknown {
  const assigned = assignmentOfThisProcess();
  if (assigned && !('learner' in assigned)) throw otherCall('worker', 'learners');
  return assigned?.learner;
}

function assignmentOfThisProcess(
  env: Readonly<Record<string, string | undefined>> = process.env,
): Assignment | undefined {
  if (env[WORKER_MARK] !== '1') return undefined;
  return (read ??= parseAssignment(readLine()));
}

function otherCall(startedAs: string, comesTo: string): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `this process was started as a ${startedAs}, and comes to a call for ${comesTo} first; further processes run the script from its beginning, up to its first call that needs some. Use one kind in a script.`,
    { startedAs, comesTo },
  );
}

export function parseAssignment(line: string): Assignment {
  try {
    return z.union([learnerSchema, workerSchema]).parse(JSON.parse(line));
  } catch (cause) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${WORKER_MARK} is set, but the standard input does not tell this process which worker it is; unset it to start a run`,
      {},
      cause,
    );
  }
}

/** Byte by byte: what follows the line is not ours. */
function readLine(): string {
  const bytes = Buffer.alloc(MAX_BYTES);
  let length = 0;
  while (length < MAX_BYTES && readSync(STANDARD_INPUT, bytes, length, 1, null) === 1) {
    if (bytes[length] === 10) break;
    length++;
  }
  return bytes.toString('utf8', 0, length);
}
