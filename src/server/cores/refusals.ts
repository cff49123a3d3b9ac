/**
 * The errors that workers receive when a core refuses a request. Who receives them, and when, is the business of sessions and of
 * the loop. Invariant: nothing of the place in our code leaves the server.
 */
import { InternalError, keyText, pack, PeerError, TributaryError, UsageError } from '../../base/index.ts';
import type { PackedError, StoreKey } from '../../base/index.ts';
import type { ProtocolFault } from '../wire/frame.ts';
import type { ServiceSettings } from '../wire/messages.ts';
import type { Service } from './office.ts';

/** A fault as an error for whoever has made it. */
export function faultOf(who: string, { message, nextStep }: ProtocolFault): PeerError {
  return new PeerError('PROTOCOL_VIOLATION', `${who} ${message}; ${nextStep}`, { who, fault: message });
}

/** Without the place in our code, which is nobody's business. */
export function packedForOthers(error: unknown): PackedError {
  const ours =
    error instanceof TributaryError
      ? error
      : new InternalError('BROKEN_INVARIANT', `the server failed: ${String(error)}; please report it`);
  return { ...pack(ours), stack: undefined };
}

export function keepsNone(namespace: string): UsageError {
  return new UsageError(
    'NO_CHECKPOINTS',
    `service '${namespace}' keeps no checkpoints; create it with a folder`,
    { namespace },
  );
}

export function otherPlan(worker: number, key: StoreKey): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} has another plan than the others, or key ${keyText(key)} is there already; init the same keys in the same order on all workers, each once`,
    { worker, key },
  );
}

export function notAsStored(
  worker: number,
  { namespace, logFolder: path }: Pick<Service, 'namespace' | 'logFolder'>,
  batch: number,
): UsageError {
  return new UsageError(
    'CHECKPOINT_MISMATCH',
    `worker ${worker} inits other keys, or cuts them otherwise, than those of '${namespace}' in ${path}; ` +
      'init the same keys in the same order, with the same servers and chunks, or give another folder',
    { worker, namespace, path, batch },
  );
}

/** Undefined if the settings are the same. */
export function otherSettings(
  worker: number,
  namespace: string,
  expected: ServiceSettings,
  actual: ServiceSettings,
): UsageError | undefined {
  const names = new Set([...Object.keys(expected), ...Object.keys(actual)] as (keyof ServiceSettings)[]);
  const differing = [...names].filter((name) => settingText(expected[name]) !== settingText(actual[name]));
  if (differing.length === 0) return undefined;
  const isHere = differing.map((name) => `${optionOf(name)} is ${settingText(actual[name])}`).join(' and ');
  const wasBegun = differing.map((name) => settingText(expected[name])).join(' and ');
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker}: ${isHere} here, but service '${namespace}' was begun with ${wasBegun}; use the same, another service, or start the server again, with another folder if it has one`,
    { worker, namespace, differing: differing.map(optionOf), expected, actual },
  );
}

/** By the name that users give it. */
function optionOf(name: keyof ServiceSettings): string {
  return name === 'isHeld' ? 'held' : name;
}

function settingText(value: ServiceSettings[keyof ServiceSettings]): string {
  return typeof value === 'string' ? `'${value}'` : (JSON.stringify(value) ?? 'not set');
}

export function otherWorkers(
  worker: number,
  namespace: string,
  expected: number,
  actual: number,
): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker}: workers is ${actual} here, but service '${namespace}' was created for ${expected}; use as many, or create another service`,
    { worker, namespace, expected, actual },
  );
}

export function outdated(worker: number): PeerError {
  return new PeerError(
    'REFUSED',
    `worker ${worker} was started again meanwhile, and this process is the earlier one; end it`,
    { worker },
  );
}

export function awayTooLong(worker: number, graceMs: number): PeerError {
  return new PeerError(
    'REFUSED',
    `worker ${worker} was away for more than ${graceMs} ms, and the others went on without it; start it again`,
    { worker, graceMs },
  );
}

export function atOnceThoughHeld(worker: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed and pulled at once where updates are held; push, apply, then pull`,
    { worker },
  );
}

export function rateOfPush(namespace: string): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `a push of namespace '${namespace}' has a learning rate, and training there is synchronous; set it by setLearningRate`,
    { namespace },
  );
}

/** To one core. */
export function tooManyConnections(namespace: string, connections: number): PeerError {
  return new PeerError(
    'REFUSED',
    `namespace '${namespace}' has ${connections} connections to this core, as many as one may; end workers that are not needed, or use more servers`,
    { namespace, connections },
  );
}

export function tooManyAdministrators(administrators: number): PeerError {
  return new PeerError(
    'REFUSED',
    `${administrators} administrators are being answered; try again in a moment`,
    { administrators },
  );
}
