/**
 * What a tenant may make one core remember beyond shared memory: headers that come in parts, requests whose answers
 * are not due yet, answers that are not sent yet, and entries of lists, each over all its connections. Without limits
 * a member could fill the heap of the thread, which is that of all tenants. Counts only; who asked is the session's
 * business. Invariant: what was counted is counted off when it is answered or its connection ends.
 */
import { UsageError } from '../../base/index.ts';
import type { StreamAccount } from '../wire/message-stream.ts';
import type { TenantSpace } from '../tenant-space.ts';
import type { KeyShape, PieceShape } from '../wire/messages.ts';
import { chunksOf } from './batch.ts';
import type { Service } from './office.ts';

/** Requests of all workers of a tenant that one core keeps, and bytes of their headers. */
const MAX_REQUESTS = 65_536;
const MAX_HEADER_BYTES = 64 * 2 ** 20;
/** Four of the longest. Apart from those above, so that a request for which others wait always comes in. */
const MAX_UNFINISHED_BYTES = 2 * 2 ** 20;
/** Above this nothing is read from the tenant: some answers of many workers, without what they carry. */
const MAX_UNSENT_BYTES = 16 * 2 ** 20;

/** About what a core remembers of a chunk: the plan, the piece, what the optimizer and each worker have of it. */
export const CHUNK_BYTES = 2048;

/** Entries of lists that there may be for each chunk that there may be: workers have lists of their own. */
const ENTRIES_A_CHUNK = 8;

export class TenantLimits implements StreamAccount {
  readonly #service: Service;
  readonly #space: Pick<TenantSpace, 'take' | 'give'>;
  #chunks = 0;
  #requests = 0;
  #headerBytes = 0;
  #entries = 0;
  #unfinishedBytes = 0;
  #unsentBytes = 0;

  /** `space`: where bytes count towards the quota. */
  constructor(service: Service, space: Pick<TenantSpace, 'take' | 'give'>) {
    this.#service = service;
    this.#space = space;
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

  /** Throws if they are more than there may be in all. They may be there already. */
  checkChunks(keys: readonly KeyShape[], pieces: readonly PieceShape[]): void {
    const wanted = chunksOf(keys, pieces);
    if (wanted > this.#service.maxChunks) throw this.#tooManyChunks(wanted);
  }

  /** Chunks are counted before they are made. */
  reserveChunks(keys: readonly KeyShape[], pieces: readonly PieceShape[]): void {
    const wanted = chunksOf(keys, pieces);
    if (this.#chunks + wanted > this.#service.maxChunks) throw this.#tooManyChunks(wanted);
    this.#space.take(CHUNK_BYTES * wanted);
    this.#chunks += wanted;
  }

  giveBackChunks(keys: readonly KeyShape[], pieces: readonly PieceShape[]): void {
    const count = chunksOf(keys, pieces);
    this.#space.give(CHUNK_BYTES * count);
    this.#chunks -= count;
  }

  /** The tenant is gone. */
  close(): void {
    this.#space.give(CHUNK_BYTES * this.#chunks);
    this.#chunks = 0;
  }

  /** Entries of the lists of all workers. */
  reserveEntries(worker: number, entries: number): void {
    this.checkEntries(worker, entries);
    this.#entries += entries;
  }

  /** Throws if there may not be so many more. */
  checkEntries(worker: number, entries: number): void {
    const { namespace } = this.#service;
    const most = ENTRIES_A_CHUNK * this.#service.maxChunks;
    if (this.#entries + entries > most) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} announced ${entries} entries more in lists of namespace '${namespace}', which has ${this.#entries} of ${most} on this core; use the same lists of keys again, or ask for a larger quota (maxChunks)`,
        { worker, namespace, expected: most, actual: this.#entries + entries },
      );
    }
  }

  giveBackEntries(entries: number): void {
    this.#entries -= entries;
  }

  #tooManyChunks(wanted: number): UsageError {
    const { maxChunks, namespace } = this.#service;
    return new UsageError(
      'INVALID_ARGUMENT',
      `${wanted} keys and chunks more are wanted in namespace '${namespace}', which has ${this.#chunks} of ${maxChunks} on this core; use larger chunks or ask for a larger quota (maxChunks)`,
      { namespace, expected: maxChunks, actual: this.#chunks + wanted },
    );
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

/** What a key remembers of each worker, over all pieces and workers: some hundred bytes each. */
const MAX_PROGRESS = 2 ** 22;

export function checkProgress(
  namespace: string,
  worker: number | undefined,
  workers: number,
  pieces: number,
): void {
  if (workers * pieces <= MAX_PROGRESS) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${worker === undefined ? 'what was kept' : `worker ${worker}`} of namespace '${namespace}' makes ${workers} workers with ${pieces} pieces of keys each on this core, where ${MAX_PROGRESS} in all are kept; use fewer workers or larger keys, or more cores`,
    { worker, namespace, expected: MAX_PROGRESS, actual: workers * pieces },
  );
}
