/**
 * What an administrator and a server say to each other, and the checks of every field that the
 * server takes in. Types and pure functions. A connection carries one request: hello, challenge,
 * request with proof, answer with proof, so that nobody in between can alter either. Invariants:
 * what a `read` function returns has been checked field by field; no nonce is ever in a message,
 * only the salt that both sides derive it with.
 */
import { isNonce } from '../../sockets/index.ts';
import type { Consistency } from '../consistency.ts';
import type { Durability } from '../cores/office.ts';
import { check, isCount, objectOf } from './fields.ts';
import type { Header } from './message-stream.ts';
import { isNamespace, MAX_WORKERS } from './messages.ts';

/** No namespace makes a worker's proof be for the same purpose. */
export const ADMINISTRATION_PURPOSE = 'administration of parameter servers';
export const ADMINISTRATION_VERSION = 1;
/** Longest answer to an administrator: a list of so many services. */
export const MAX_ANSWER_BYTES = 2 ** 20;
export const MAX_SERVICES = 1000;

/**
 * A service as an administrator asks for it. What is left out has the default of a service at the
 * server's start.
 */
export interface RequestedService {
  readonly namespace: string;
  /**
   * Random; the nonce of the service is derived from it, the namespace and the administrator's
   * secret.
   */
  readonly salt: string;
  readonly workers?: number | undefined;
  readonly durability?: Durability | undefined;
  readonly lostWorkers?: 'release' | 'wait' | undefined;
  readonly graceMs?: number | undefined;
  readonly maxBytes?: number | undefined;
  readonly maxLogBytes?: number | undefined;
}

export type AdministrationRequest =
  /** `isTrial`: says what would come of it, and changes nothing. */
  | { readonly op: 'create'; readonly service: RequestedService; readonly isTrial: boolean }
  | { readonly op: 'end'; readonly namespace: string }
  | { readonly op: 'list' };

export interface CreatedService {
  /** False: it was there, with the same options. */
  readonly isNew: boolean;
  /** The one that counts: of the service that was there, if it was. */
  readonly salt: string;
  /** On the server; null: nothing is kept, and the service ends with the server. */
  readonly folder: string | null;
}

export interface EndedService {
  readonly wasThere: boolean;
  /** Where its checkpoints and logs still are, on the server; null: nowhere. */
  readonly folder: string | null;
}

export interface ListedService {
  readonly namespace: string;
  /** Whether it was created over the network; else it was given at the server's start. */
  readonly isCreated: boolean;
  /** Workers that it is for; null: none has said it yet. */
  readonly workers: number | null;
  /** How it trains; null: no worker has come yet. */
  readonly mode: Consistency['kind'] | null;
  /** Workers that are connected now. */
  readonly connected: number;
  /** Memory that it takes now. */
  readonly bytes: number;
  readonly maxBytes: number;
  /** Updates of the parameter that has seen the most. */
  readonly steps: number;
}

export interface AdministrationAnswers {
  create: CreatedService;
  end: EndedService;
  list: { readonly services: readonly ListedService[] };
}
export type AdministrationAnswer = AdministrationAnswers[keyof AdministrationAnswers];

/** What one core knows of a tenant for such a list. */
export interface TenantCensus {
  readonly serial: number;
  readonly workers: number | null;
  readonly mode: Consistency['kind'] | null;
  readonly connected: number;
  readonly steps: number;
}

const OPTIONS = new Set([
  ...['namespace', 'salt', 'workers', 'durability', 'lostWorkers', 'graceMs', 'maxBytes', 'maxLogBytes'],
]);

/** The version of an administrator's hello. */
export function readAdministratorHello(header: Header): number {
  check(header.kind === 'administer' && isCount(header.version), 'hello of an administrator', header);
  check(header.version !== ADMINISTRATION_VERSION || isNonce(header.nonce), 'nonce', header);
  return header.version;
}

export function readAdministration(value: unknown): AdministrationRequest {
  const request = objectOf(value, 'request');
  const { op } = request;
  if (op === 'list') return { op };
  if (op === 'end') {
    check(isNamespace(request.namespace), 'request to end', request);
    return { op, namespace: request.namespace };
  }
  check(op === 'create' && typeof request.isTrial === 'boolean', 'request', request);
  return { op, isTrial: request.isTrial, service: readService(request.service) };
}

/** Of a request, or of the file where a server keeps it. */
export function readService(value: unknown): RequestedService {
  const service = objectOf(value, 'service');
  const { namespace, salt, workers, durability, lostWorkers, graceMs, maxBytes, maxLogBytes } = service;
  // An option that is not known here would be left out without a word.
  for (const name of Object.keys(service)) check(OPTIONS.has(name), `option ${name.slice(0, 64)}`, service);
  check(isNamespace(namespace) && isNonce(salt), 'service', service);
  checkOption(service, 'workers', isOptional(workers, MAX_WORKERS) && workers !== 0);
  checkOption(service, 'durability', [undefined, 'process', 'disk'].includes(durability as undefined));
  checkOption(service, 'lostWorkers', [undefined, 'release', 'wait'].includes(lostWorkers as undefined));
  checkOption(service, 'graceMs', isOptional(graceMs, 2 ** 31));
  checkOption(service, 'maxBytes', isOptional(maxBytes, 2 ** 40) && maxBytes !== 0);
  checkOption(service, 'maxLogBytes', isOptional(maxLogBytes, 2 ** 50) && maxLogBytes !== 0);
  return service as unknown as RequestedService;
}

function isOptional(value: unknown, most: number): boolean {
  return value === undefined || isCount(value, most);
}

function checkOption(service: Header, name: string, isRight: boolean): void {
  check(isRight, `option ${name}`, service[name]);
}
