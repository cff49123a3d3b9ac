/**
 * An operation of a step that servers answer: it is asked for when it starts. Where a store's thread
 * answers, whoever waits for it blocks; otherwise that is a promise. Invariant: what goes wrong is
 * thrown where it is waited for, and nowhere else.
 */
import type { LaneHandler, MovedMessage } from '../runtime/index.ts';
import { wallMs } from './exchange.ts';
import type { StoreCall, ThreadStore } from './thread-store.ts';

export class Answer<T> implements LaneHandler {
  readonly #store: Pick<ThreadStore, 'settle'> | undefined;
  readonly #ask: () => StoreCall<T>;
  readonly #bytesOf: ((value: T) => number) | undefined;
  #answered: Promise<T> | undefined;
  #outcome: { readonly value: T; readonly endedMs: number } | undefined;
  #startedMs = 0;

  /** `bytesOf`: what it moved, where a trace shows that. */
  constructor(
    store: Pick<ThreadStore, 'settle'> | undefined,
    ask: () => StoreCall<T>,
    bytesOf?: (value: T) => number,
  ) {
    this.#store = store;
    this.#ask = ask;
    this.#bytesOf = bytesOf;
  }

  start(): void {
    this.#startedMs = wallMs();
    this.#outcome = undefined;
    const call = this.#ask();
    this.#answered = call.then((value) => {
      this.#outcome = { value, endedMs: call.endedMs ?? wallMs() };
      return value;
    });
    this.#answered.catch(() => undefined);
  }

  hasEnded(): boolean {
    return this.#outcome !== undefined;
  }

  /** Blocks for as long as the event loop can be without this thread; the rest is a promise. */
  wait(): Promise<T> | undefined {
    if (this.#outcome) return undefined;
    this.#store?.settle();
    return this.#answered!;
  }

  /** Of the last start. */
  get answered(): Promise<T> {
    return this.#answered!;
  }

  /** Once it has ended. */
  get value(): T {
    return this.#outcome!.value;
  }

  get message(): MovedMessage {
    const { value, endedMs } = this.#outcome!;
    return { startedMs: this.#startedMs, endedMs, bytes: this.#bytesOf?.(value) };
  }
}
