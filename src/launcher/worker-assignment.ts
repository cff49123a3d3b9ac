/**
 * What a worker process receives from the one that started it: its rank, where the others are, and the secret. It comes as one
 * line on the standard input, so that nothing secret stands on a command line or in the environment, and so that the end of
 * that input says that the first process is gone. Invariant: a process that nobody started as a worker reads nothing.
 */
import { readSync } from 'node:fs';
import { z } from 'zod';
import { UsageError } from '../base/index.ts';
import { tlsFilesSchema } from './tls-files.ts';

/** Set to 1 in the environment of worker processes. */
export const WORKER_MARK = 'TRIBUTARY_WORKER';

const assignmentSchema = z.object({
  rank: z.number().int().min(1),
  workers: z.number().int().min(2),
  /** 'host:port' */
  scheduler: z.string().min(1),
  secret: z.string().min(1),
  transport: z.enum(['auto', 'shm', 'tcp']),
  /** Workers with the same one share memory. Default: found out. */
  host: z.string().optional(),
  /** The address at which others reach this worker. Default: the one that leads to the scheduler. */
  address: z.string().optional(),
  /** Paths, for what they hold is nobody else's. Default: no TLS. */
  tls: tlsFilesSchema.optional(),
});

export type WorkerAssignment = Readonly<z.infer<typeof assignmentSchema>>;

const MAX_BYTES = 64 * 1024;
const STANDARD_INPUT = 0;

let read: WorkerAssignment | undefined;

/** Undefined in a process that the user started. */
export function assignmentOfThisProcess(
  env: Readonly<Record<string, string | undefined>> = process.env,
): WorkerAssignment | undefined {
  if (env[WORKER_MARK] !== '1') return undefined;
  return (read ??= parseAssignment(readLine()));
}

export function parseAssignment(line: string): WorkerAssignment {
  try {
    return assignmentSchema.parse(JSON.parse(line));
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
