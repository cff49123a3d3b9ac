/** The errors of a worker's store that say what its caller did, and what to do instead. Pure. */
import { keyText, PeerError, UsageError } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';

/** Push and apply are two steps where updates are held, and one where they are not. */
export function wrongCall(worker: number, call: string, isHeld: boolean): UsageError {
  const next = isHeld
    ? 'values change by apply; call push, apply and pull'
    : 'pushes take effect by themselves; connect all workers with held updates';
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} called ${call} where updates are ${isHeld ? '' : 'not '}held: ${next}`,
    { worker, call },
  );
}

export function closedMeanwhile(worker: number): PeerError {
  return new PeerError(
    'CANCELLED',
    `worker ${worker} closed its store while a call of it waited for an answer; await calls before closing`,
    { worker },
  );
}

export function alreadyClosed(worker: number): UsageError {
  return new UsageError('INVALID_ARGUMENT', `the store of worker ${worker} is closed; connect a new one`, {
    worker,
  });
}

export function inPlaceOfValue(worker: number, key: StoreKey): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} asked for the combined gradient of key ${keyText(key)} in the place of its value; give a tensor of its own`,
    { worker, key },
  );
}

export function notFinite(worker: number, key: StoreKey, step: number, value: number): UsageError {
  return new UsageError(
    'NOT_A_NUMBER',
    `worker ${worker} pushed ${value} to key ${keyText(key)} in step ${step}; look for a division by zero or a learning rate that is too high, or let such pushes be skipped`,
    { worker, key, step, value: String(value) },
  );
}
