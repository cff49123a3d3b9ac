/**
 * What a run may use: machines and the workers on each, given as an object or as a file. Checks it and fills in what was left
 * out; starts nothing. Invariant: what comes back names at least one machine, the first of which is this one.
 */
import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { resolve } from 'node:path';
import { z } from 'zod';
import { schemaFault, UsageError } from '../base/index.ts';
import {
  TRANSPORTS,
  tlsFilesSchema,
  type TlsFiles,
  type TransportChoice,
  type WorkerMachine,
} from '../launcher/index.ts';

export interface Machine {
  /** A name or an address; commands are run there by `ssh`, which must not have to ask for a password. */
  readonly name: string;
  /** Workers there. Default 1. */
  readonly workers?: number | undefined;
  /** What a command there begins with, instead of `ssh <name>`: `['ssh', '-p', '2222', 'b']`, `['ip', 'netns', 'exec', 'b']`. */
  readonly command?: readonly string[] | undefined;
  /** The address at which its workers are reached. Default: the one that leads to the first machine. */
  readonly address?: string | undefined;
}

export interface Resources {
  /** Processes that train, if there is but this machine. Default: as many as there are processors. */
  readonly workers?: number | undefined;
  /** All machines, this one first. Node, the script and the data must be at the same places there. Default: this one. */
  readonly machines?: readonly Machine[] | undefined;
  /** How workers exchange data. Default 'auto': by shared memory inside a machine, by TCP between machines. */
  readonly transport?: TransportChoice | undefined;
  /**
   * Encrypts all that goes over the network: paths of PEM files, which are the same on all machines and hold the certificate of
   * each. Relative ones begin at the working folder. Default: none.
   */
  readonly tls?: TlsFiles | undefined;
}

export interface ResolvedResources {
  readonly workers: number;
  readonly machines: readonly [WorkerMachine, ...WorkerMachine[]];
  readonly transport: TransportChoice;
  /** With absolute paths. */
  readonly tls: TlsFiles | undefined;
}

/** One that is not there, or wants to ask something, is an error soon. */
const SSH = ['ssh', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=15'] as const;

const count = z.number().int().min(1);
const schema = z
  .object({
    workers: count.optional(),
    transport: z.enum(TRANSPORTS).optional(),
    tls: tlsFilesSchema.optional(),
    machines: z
      .array(
        z
          .object({
            // ssh would take it for an option, and options of ssh can run anything here.
            name: z.string().regex(/^[^-]/, 'expected a name that does not begin with a dash'),
            workers: count.optional(),
            command: z.array(z.string()).min(1).optional(),
            address: z.string().min(1).optional(),
          })
          .strict(),
      )
      .min(1)
      .optional(),
  })
  .strict()
  .refine(({ workers, machines }) => workers === undefined || machines === undefined, {
    message: 'workers belongs to each of the machines when there are some',
  });

/** A text is the path of a JSON file. */
export function resolveResources(given: Resources | string): ResolvedResources {
  const raw: unknown = typeof given === 'string' ? readFile(given) : given;
  const { data, error } = schema.safeParse(raw);
  if (error) {
    const [issue] = error.issues;
    const where = issue!.path.join('.');
    throw new UsageError(
      'INVALID_ARGUMENT',
      `resources${typeof given === 'string' ? ` in ${given}` : ''}: ${schemaFault(issue!, raw)}; give workers, or machines with a name and workers each`,
      { path: where },
    );
  }
  const { machines, workers = availableParallelism(), transport = 'auto', tls } = data;
  const [first, ...others] = machines ?? [{ name: 'this machine', workers }];
  const here: WorkerMachine = { name: first!.name, workers: first!.workers ?? 1, address: first!.address };
  const there = others.map(({ name, workers: own = 1, command = [...SSH, name], address }) => ({
    ...{ name, workers: own, prefix: command, address },
  }));
  const all: [WorkerMachine, ...WorkerMachine[]] = [here, ...there];
  if (all.length > 1 && here.address === undefined) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `resources: ${here.name} needs an address at which the ${there.length} other machine(s) reach it; give machines[0].address`,
      { machine: here.name },
    );
  }
  return {
    workers: all.reduce((sum, machine) => sum + machine.workers, 0),
    ...{ machines: all, transport, tls: tls && absolute(tls) },
  };
}

function absolute({ key, cert, ca, serverName }: TlsFiles): TlsFiles {
  return { key: resolve(key), cert: resolve(cert), ca: resolve(ca), serverName };
}

function readFile(path: string): unknown {
  const fault = (cause: unknown) => (cause instanceof Error ? cause.message : String(cause));
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (cause) {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `the resources in ${path} cannot be read: ${fault(cause)}; check the path`,
      { path },
      cause,
    );
  }
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new UsageError(
      'INVALID_CONFIG',
      `the resources in ${path} are no JSON: ${fault(cause)}; correct the file`,
      { path },
      cause,
    );
  }
}
