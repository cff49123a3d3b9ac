/**
 * The thread in which a worker's stores talk to servers, beside the thread that computes: what is
 * pushed leaves at once, while the backward pass goes on. The thread's side is
 * `store-thread-main.ts`, and what a worker has of a store `thread-store.ts`. Invariants: calls are
 * made in the order in which they were posted; a thread that dies fails all that is not answered.
 */
import { ThreadLink } from '../base/index.ts';
import { AnnouncedSegments } from '../communication/index.ts';
import type { SharedSpace } from '../memory/index.ts';
import { libc } from '../sockets/index.ts';
import { StoreWords } from './store-messages.ts';
import type { StoreConnection, StoreLink, StoreThreadData } from './store-messages.ts';
import { ThreadStore } from './thread-store.ts';
import type { StoreCaller } from './thread-store.ts';

/** Between two looks at whether the thread is alive while blocked on it. */
const LOOK_MS = 100;

export class StoreThread {
  readonly #link: StoreLink;
  readonly #words = new StoreWords();
  readonly #announced: AnnouncedSegments;
  readonly #space: SharedSpace;
  /** Belongs to this side, so that nothing else can have its number while it may be rung. */
  readonly #doorbell: number;
  #stores = 0;
  #closing: Promise<void> | undefined;

  /** `space`: whose regions are pushed and pulled; both threads work on it. */
  constructor(space: SharedSpace) {
    this.#space = space;
    const calls = libc();
    this.#doorbell = calls.doorbell();
    const data: Omit<StoreThreadData, 'port'> = {
      ...{ words: this.#words.buffer, memory: space.memory, doorbell: this.#doorbell },
    };
    this.#link = new ThreadLink(
      {
        ...{ entry: new URL('./store-thread-main', import.meta.url), data, title: 'store thread' },
        afterEnd: 'what lives on servers cannot be reached from here any more: start this process again',
        ring: () => {
          if (this.#words.posted()) calls.ring(this.#doorbell);
        },
        isAlive: () => this.#words.isThreadAlive,
      },
      { report: () => undefined, ended: () => undefined },
    );
    this.#announced = new AnnouncedSegments(space, (news) => this.#link.post(news));
  }

  /** Whether calls can be made, also as a caller sees it that is blocked and gets no events. */
  get isAlive(): boolean {
    this.#link.checkAlive();
    return this.#link.end === undefined;
  }

  /** As `RemoteStore.connect`. */
  async connect(options: StoreConnection): Promise<ThreadStore> {
    const store = this.#stores++;
    const shared = await this.#link.request('connect', { store, options });
    const caller: StoreCaller = {
      ...{ space: this.#space, announced: this.#announced },
      request: (what, ask) => this.#link.request(what, ask),
      isGone: () => this.#link.end !== undefined,
      settle: (mostMs) => this.#settle(mostMs),
    };
    return new ThreadStore(caller, store, options, shared);
  }

  /** Ends the thread, after its stores. May be called again. */
  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    // A thread that is gone has ended already.
    await this.#link.request('end', {}).catch(() => undefined);
    await this.#link.ended();
    libc().close(this.#doorbell);
  }

  /** Blocks until all calls are answered, at most so long. */
  #settle(mostMs: number): void {
    const endMs = performance.now() + mostMs;
    for (;;) {
      const { answers } = this.#words;
      this.#link.drain();
      const leftMs = endMs - performance.now();
      if (this.#link.unanswered === 0 || leftMs <= 0) return;
      this.#words.awaitAnswer(answers, Math.min(LOOK_MS, leftMs));
      this.#link.checkAlive();
    }
  }
}
