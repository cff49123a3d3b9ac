/**
 * What a tenant may make one core remember beyond shared memory: headers that come in parts, requests whose answers
 * are not due yet, answers that are not sent yet, and entries of lists, each over all its connections. Without limits
 * a member could fill the heap of the thread, which is that of all tenants. Counts only; who asked is the session's
 * business. Invariant: what was counted is counted off when it is answered or its connection ends.
 */
import { UsageError } from '../../base/index.ts';
import type { StreamAccount } from '../wire/message-stream.ts';
import type { Service } from './office.ts';

/** Requests of all workers of a tenant that one core keeps, and bytes of their headers. */
const MAX_REQUESTS = 65_536;
const MAX_HEADER_BYTES = 64 * 2 ** 20;
/** Two of the longest. Apart from those above, so that a request for which others wait always comes in. */
const MAX_UNFINISHED_BYTES = 32 * 2 ** 20;
/** Above this nothing is read from the tenant: some answers of many workers, without what they carry. */
const MAX_UNSENT_BYTES = 16 * 2 ** 20;

export class TenantLimits implements StreamAccount {
  readonly #service: Service;
  #requests = 0;
  #headerBytes = 0;
  #entries = 0;
  #unfinishedBytes = 0;
  #unsentBytes = 0;

  constructor(service: Service) {
    this.#service = service;
  }

  hasRoom(headerBytes: number): boolean {
    return this.#unfinishedBytes + headerBytes <= MAX_UNFINISHED_BYTES;
  }

  addUnfinished(headerBytes: number): void {
    this.#unfinishedBytes += headerBytes;
  }

  addUnsent(bytes: number): void {
    this.#unsentBytes += bytes;
  }

  /** Whether its answers must go before anything else is read from it. */
  get isOverUnsent(): boolean {
    return this.#unsentBytes > MAX_UNSENT_BYTES;
  }

  asked(headerBytes: number): void {
    this.#requests++;
    this.#headerBytes += headerBytes;
  }

  /** Throws if it was too much. */
  checkAsked(worker: number): void {
    if (this.#requests <= MAX_REQUESTS && this.#headerBytes <= MAX_HEADER_BYTES) return;
    const { namespace } = this.#service;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} asked while ${this.#requests} requests of namespace '${namespace}', of ${this.#headerBytes} bytes, wait for their answers, where ${MAX_REQUESTS} and ${MAX_HEADER_BYTES} bytes may; await answers before asking more`,
      { worker, namespace, expected: MAX_REQUESTS, actual: this.#requests },
    );
  }

  answered(requests: number, headerBytes: number): void {
    this.#requests -= requests;
    this.#headerBytes -= headerBytes;
  }

  /** Entries of the lists of all workers: as many as there may be chunks. */
  reserveEntries(worker: number, entries: number): void {
    const { namespace, maxChunks } = this.#service;
    if (this.#entries + entries > maxChunks) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} announced ${entries} entries more in lists of namespace '${namespace}', which has ${this.#entries} of ${maxChunks} on this core; use the same lists of keys again, or ask for a larger quota (maxChunks)`,
        { worker, namespace, expected: maxChunks, actual: this.#entries + entries },
      );
    }
    this.#entries += entries;
  }

  giveBackEntries(entries: number): void {
    this.#entries -= entries;
  }
}

/** Requests of one connection whose answers are not due yet. */
export class RequestsUnderWay {
  readonly #limits: TenantLimits;
  /** By the number that the worker gave; what their headers take. Requests of the same number are taken to be alike. */
  readonly #asked = new Map<number, { readonly count: number; readonly bytes: number }>();

  constructor(limits: TenantLimits) {
    this.#limits = limits;
  }

  add(id: number, headerBytes: number): void {
    const { count, bytes } = this.#asked.get(id) ?? { count: 0, bytes: 0 };
    this.#asked.set(id, { count: count + 1, bytes: bytes + headerBytes });
    this.#limits.asked(headerBytes);
  }

  answered(id: number): void {
    const asked = this.#asked.get(id);
    if (asked === undefined) return;
    const bytes = Math.ceil(asked.bytes / asked.count);
    if (asked.count === 1) this.#asked.delete(id);
    else this.#asked.set(id, { count: asked.count - 1, bytes: asked.bytes - bytes });
    this.#limits.answered(1, bytes);
  }

  /** Nobody waits for the answers any more. */
  end(): void {
    for (const { count, bytes } of this.#asked.values()) this.#limits.answered(count, bytes);
    this.#asked.clear();
  }
}
