/**
 * A service on servers of their own, as a run comes to it: its nonce, read where it is needed, told
 * to nobody, written nowhere; and the refusal of values that it has of an earlier training.
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

export function foundValues(namespace: string, servers: readonly string[]): UsageError {
  return new UsageError(
    'OUTPUT_EXISTS',
    `service '${namespace}' on ${servers.join(', ')} has the values of an earlier training; go on with that by resume, replace it by overwrite, or use another service`,
    { namespace },
  );
}
