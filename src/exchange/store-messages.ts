/**
 * What a worker and its store's thread tell each other, as plain data, and the words that both look
 * at. Regions travel as places in the memory that both share. Invariants: calls are made in the
 * order in which they were posted; an answer is posted before the word changes that tells of it.
 */
import type { MessagePort } from 'node:worker_threads';
import { isThreadAlive, systemThreadId } from '../base/index.ts';
import type { LinkCommand, LinkReport, StoreKey, ThreadLink } from '../base/index.ts';
import type { PackedRegion, SegmentNews } from '../communication/index.ts';
import type { RemoteStore, RemoteStoreOptions } from '../kvstore/index.ts';
import type { Region, SegmentRange, WasmMemory } from '../memory/index.ts';

/** Options of a store that can be sent; its memory is that of the thread. */
export type StoreConnection = Omit<RemoteStoreOptions, 'log' | 'space' | 'kernels'>;

/** What a worker calls in its store's thread. */
export type StoreMethod =
  | 'init'
  | 'initState'
  | 'setOptimizer'
  | 'push'
  | 'pushRows'
  | 'pull'
  | 'pullRows'
  | 'pullHeld'
  | 'pullHeldRows'
  | 'apply'
  | 'pullState'
  | 'pullSlot'
  | 'pullElements'
  | 'pushElements';

export type StoreArguments<Method extends StoreMethod> = Parameters<RemoteStore[Method]>;

/** In the place of a region of a call. */
export interface PackedTensor {
  readonly region: PackedRegion;
  /** It is the server's own memory of this key. */
  readonly lent?: StoreKey | undefined;
}

/**
 * In the place of a list that is frozen, as one for all steps is: what it is comes once, afterwards
 * only its number.
 */
export interface PackedList {
  readonly list: number;
  readonly entries?: readonly unknown[];
}

/** The server's memory of a value, mapped here by the thread. */
export interface ValuePlace {
  readonly range: SegmentRange;
  readonly byteOffset: number;
  readonly length: number;
}

export interface StoreAnswer {
  readonly result: unknown;
  /** Milliseconds since 1970. */
  readonly endedMs: number;
}

export interface StoreRequests {
  readonly connect: {
    readonly ask: { readonly store: number; readonly options: StoreConnection };
    readonly answer: { readonly sharesMemory: boolean; readonly sharesSome: boolean };
  };
  readonly call: {
    readonly ask: {
      readonly store: number;
      readonly method: StoreMethod;
      readonly args: readonly unknown[];
    };
    readonly answer: StoreAnswer;
  };
  /**
   * Of keys that are there; a place is undefined where no server on this host has all of it.
   * `found`: some were there before this worker opened them.
   */
  readonly values: {
    readonly ask: { readonly store: number; readonly keys: readonly StoreKey[] };
    readonly answer: { readonly places: readonly (ValuePlace | undefined)[]; readonly found: boolean };
  };
  readonly forget: { readonly ask: { readonly segments: readonly number[] }; readonly answer: undefined };
  readonly close: { readonly ask: { readonly store: number }; readonly answer: undefined };
  /** The thread ends. */
  readonly end: { readonly ask: object; readonly answer: undefined };
}
export type StoreRequest = keyof StoreRequests;

export type StoreLink = ThreadLink<SegmentNews, never, StoreRequests>;
export type StoreCommand = SegmentNews | LinkCommand<StoreRequests>;
export type StoreReport = LinkReport;

export interface StoreThreadData {
  readonly port: MessagePort;
  readonly words: SharedArrayBuffer;
  readonly memory: WasmMemory;
  /** Rung when something was posted while the thread sleeps in the kernel. */
  readonly doorbell: number;
}

const [POSTED, SLEEPING, ANSWERED, THREAD_ID] = [0, 1, 2, 3];

export class StoreWords {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;

  constructor(buffer = new SharedArrayBuffer(4 * 4)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer);
  }

  /**
   * The worker's side: something was posted. Returns whether the thread has to be woken in the
   * kernel.
   */
  posted(): boolean {
    Atomics.add(this.#words, POSTED, 1);
    return Atomics.load(this.#words, SLEEPING) !== 0;
  }

  /** How often something was posted. */
  get posts(): number {
    return Atomics.load(this.#words, POSTED);
  }

  /** The thread's side: it is about to sleep; read `posts` behind it. */
  asleep(): void {
    Atomics.store(this.#words, SLEEPING, 1);
  }

  awake(): void {
    Atomics.store(this.#words, SLEEPING, 0);
  }

  /** The thread's side: an answer was posted. */
  answered(): void {
    Atomics.add(this.#words, ANSWERED, 1);
    Atomics.notify(this.#words, ANSWERED);
  }

  /** How often an answer was posted. */
  get answers(): number {
    return Atomics.load(this.#words, ANSWERED);
  }

  /** Blocks until there are more answers than so many, at most so long. */
  awaitAnswer(answers: number, timeoutMs: number): void {
    Atomics.wait(this.#words, ANSWERED, answers, timeoutMs);
  }

  /** The thread's side: notes which thread of the system it is. */
  enrol(): void {
    Atomics.store(this.#words, THREAD_ID, systemThreadId());
  }

  get isThreadAlive(): boolean {
    return isThreadAlive(Atomics.load(this.#words, THREAD_ID));
  }
}

/** Whether part of a call is a region; asks for nothing that it would have to make. */
export function isRegion(part: unknown): part is Region {
  return typeof part === 'object' && part !== null && 'space' in part && 'byteOffset' in part;
}

/** The same call with other parts in the place of some; what is not plain stays as it is. */
export function withParts(value: unknown, replaced: (part: object) => unknown): unknown {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  const other = replaced(value);
  if (other !== undefined) return other;
  if (Array.isArray(value)) return value.map((part) => withParts(part, replaced));
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, withParts(part, replaced)]));
}
