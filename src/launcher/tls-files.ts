/**
 * Where a process finds what it needs for TLS: paths, which may be told to other processes and written down; what the files hold
 * is read where it is used and stays there. Invariant: no key is in an error, a log or a message to another process.
 */
import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { UsageError } from '../base/index.ts';
import type { TlsOptions } from '../sockets/index.ts';

export interface TlsFiles {
  /** The private key of the process that reads it, PEM. */
  readonly key: string;
  /** Its certificate, PEM; signed by `ca`. */
  readonly cert: string;
  /** The certificates of those who may sign for members, PEM. */
  readonly ca: string;
  /** The name that certificates must have. Default: the address that is dialled. */
  readonly serverName?: string | undefined;
}

export const tlsFilesSchema = z
  .object({
    ...{ key: z.string().min(1), cert: z.string().min(1), ca: z.string().min(1) },
    serverName: z.string().min(1).optional(),
  })
  .strict();

export function readTlsFiles({ key, cert, ca, serverName }: TlsFiles): TlsOptions {
  return { key: read('key', key), cert: read('cert', cert), ca: read('ca', ca), serverName };
}

function read(what: keyof TlsFiles, path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `tls.${what} is ${path}, which cannot be read: ${(cause as Error).message}; check the path and its permissions, on every machine`,
      { what, path },
      cause,
    );
  }
}
