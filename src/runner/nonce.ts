/**
 * The nonce of a service on servers of their own: read where it is needed, told to nobody, written
 * nowhere.
 */
import { readFileSync } from 'node:fs';
import { UsageError } from '../base/index.ts';
import { fault } from './on-faults.ts';
import type { ServerAccess } from './on.ts';

export function readNonce({ namespace, nonceFile }: ServerAccess): string {
  let nonce: string;
  try {
    nonce = readFileSync(nonceFile, 'utf8').trim();
  } catch (cause) {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `the nonce of service '${namespace}' cannot be read from ${nonceFile}: ${(cause as Error).message}; copy the file that \`tributary server\` made there, on every machine with workers`,
      { namespace, nonceFile },
      cause,
    );
  }
  if (/^[0-9a-f]{64}$/.test(nonce)) return nonce;
  throw fault(
    `${nonceFile} is no nonce of a service: it must hold 64 hexadecimal digits; give the file that \`tributary server\` made`,
    { nonceFile },
  );
}
