/**
 * Services on all servers of a training at once: created with one nonce, ended, listed. What one
 * server does is in `client.ts`. Invariants: before a service is created anywhere, all servers have
 * said that they could; a command that failed on some servers can be repeated, and changes nothing
 * where it is done.
 */
import { randomBytes } from 'node:crypto';
import { asTributaryError, InternalError, PeerError, UsageError } from '../../base/index.ts';
import type { TributaryError } from '../../base/index.ts';
import { accessByAdministrator } from '../service-access.ts';
import type { ServiceAccess } from '../service-access.ts';
import type {
  CreatedService,
  EndedService,
  ListedService,
  RequestedService,
} from '../wire/administration.ts';
import { administer } from './client.ts';
import type { AdministratorOptions } from './client.ts';

const SALT_BYTES = 32;

export interface OfServer<T> {
  /** As it was given. */
  readonly address: string;
  readonly answer: T;
}

export interface CreatedServices {
  readonly access: ServiceAccess;
  readonly servers: readonly OfServer<CreatedService>[];
}

/**
 * `check` gets what workers will need before anything is created, so that it can refuse. A service
 * that is there with the same options is as good as a new one.
 */
export async function createServices(
  addresses: readonly string[],
  service: Omit<RequestedService, 'salt'>,
  options: AdministratorOptions,
  check: (access: ServiceAccess) => void = () => undefined,
): Promise<CreatedServices> {
  const { namespace } = service;
  const create = (salt: string, isTrial: boolean) =>
    onAll(addresses, (address) =>
      administer(address, { op: 'create', service: { ...service, salt }, isTrial }, options),
    );
  const fresh = randomBytes(SALT_BYTES).toString('hex');
  const salt = commonSalt(namespace, await create(fresh, true)) ?? fresh;
  const access = accessByAdministrator(options.secret, namespace, salt);
  check(access);
  const servers = await create(salt, false);
  // Somebody else was quicker.
  if (commonSalt(namespace, servers, false) !== salt) throw otherNonces(namespace, servers);
  return { access, servers };
}

export function endServices(
  addresses: readonly string[],
  namespace: string,
  options: AdministratorOptions,
): Promise<readonly OfServer<EndedService>[]> {
  return onAll(addresses, (address) => administer(address, { op: 'end', namespace }, options));
}

export function listServices(
  addresses: readonly string[],
  options: AdministratorOptions,
): Promise<readonly OfServer<readonly ListedService[]>[]> {
  return onAll(addresses, async (address) => (await administer(address, { op: 'list' }, options)).services);
}

/** That of the servers that have the service; undefined: none has. */
function commonSalt(
  namespace: string,
  servers: readonly OfServer<CreatedService>[],
  isTrial = true,
): string | undefined {
  const having = isTrial ? servers.filter(({ answer }) => !answer.isNew) : servers;
  const salts = new Set(having.map(({ answer }) => answer.salt));
  if (salts.size > 1) throw otherNonces(namespace, having);
  return [...salts][0];
}

function otherNonces(namespace: string, servers: readonly OfServer<CreatedService>[]): UsageError {
  const named = servers.map(({ address }) => address).join(' and ');
  return new UsageError(
    'SERVICE_EXISTS',
    `service '${namespace}' was created by another command on one of ${named}, with another nonce; end it on all of them, and create it again`,
    { namespace, servers: servers.map(({ address }) => address) },
  );
}

/** The answers of all, or an error that says who has done it all the same. */
async function onAll<T>(
  addresses: readonly string[],
  ask: (address: string) => Promise<T>,
): Promise<readonly OfServer<T>[]> {
  const asked = await Promise.allSettled(
    addresses.map(async (address) => ({ address, answer: await ask(address) })),
  );
  const done = asked.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
  const failures = asked.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []));
  const [first] = failures;
  if (first === undefined) return done;
  if (addresses.length === 1) throw asTributaryError(first);
  throw onSome(
    asTributaryError(first),
    failures.map((one) => (one as Error).message),
    done.map(({ address }) => address),
  );
}

function onSome(first: TributaryError, messages: readonly string[], done: readonly string[]): TributaryError {
  const others =
    done.length === 0
      ? ''
      : `; nothing is wrong at ${done.join(' and ')}, where the command can be repeated and does nothing twice`;
  const kinds = [UsageError, PeerError, InternalError] as const;
  const Kind = kinds.find((one) => first instanceof one) ?? InternalError;
  return new Kind(first.code, `${messages.join('; and ')}${others}`, { ...first.facts, done }, first);
}
