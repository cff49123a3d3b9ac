/**
 * The one scheduler of a simulated run: a virtual clock and a queue of events, each of which belongs to a thread of a simulated
 * process. Everything that happens in a run happens here, one event after the other, in an order that follows from the
 * seed. Invariants: time never goes back; a dead process does nothing more; a stopped one does it later.
 */
import { Random } from '../../src/base/index.ts';

export interface Owner {
  /** Nothing it has planned happens any more. */
  readonly isDead: boolean;
  /** What it has planned waits until then. */
  readonly stoppedUntilMs: number;
  /** Whether promises may go on after what it does. */
  readonly hasPromises: boolean;
}

interface Event {
  atMs: number;
  readonly order: number;
  readonly owner: Owner | undefined;
  act: (() => void) | undefined;
}

/** What a person reads of a run that went wrong. */
export interface TraceLine {
  readonly atMs: number;
  readonly who: string;
  readonly what: string;
}

export class Scheduler {
  readonly random: Random;
  readonly trace: TraceLine[] = [];
  #nowMs = 0;
  #events = 0;
  /** The number of the one that happens now. */
  event = 0;
  readonly #heap: Event[] = [];

  constructor(seed: number) {
    this.random = new Random(seed);
  }

  get nowMs(): number {
    return this.#nowMs;
  }

  get events(): number {
    return this.#events;
  }

  /** Returns a function that calls it off. */
  after(delayMs: number, owner: Owner | undefined, act: () => void): () => void {
    const event: Event = { atMs: this.#nowMs + delayMs, order: this.#events++, owner, act };
    this.#push(event);
    return () => (event.act = undefined);
  }

  note(who: string, what: string): void {
    this.trace.push({ atMs: this.#nowMs, who, what });
  }

  /** Uniform between the two. */
  between(least: number, most: number): number {
    return least + this.random.uniform() * (most - least);
  }

  /** Two digits a byte. */
  randomHex(bytes: number): string {
    let text = '';
    while (text.length < 2 * bytes)
      text += this.random
        .below(2 ** 24)
        .toString(16)
        .padStart(6, '0');
    return text.slice(0, 2 * bytes);
  }

  /** Runs events until the condition holds or virtual time is up; true if it holds. */
  async runUntil(isDone: () => boolean, limitMs: number): Promise<boolean> {
    while (!isDone()) {
      const event = this.#heap[0];
      if (event === undefined || event.atMs > limitMs) return false;
      this.#pop();
      const { owner, act } = event;
      if (act === undefined || owner?.isDead) continue;
      if (owner && owner.stoppedUntilMs > event.atMs) {
        event.atMs = owner.stoppedUntilMs;
        this.#push(event);
        continue;
      }
      this.#nowMs = event.atMs;
      event.act = undefined;
      this.event = event.order;
      act();
      if (owner?.hasPromises) await settled();
    }
    return true;
  }

  #push(event: Event): void {
    const heap = this.#heap;
    let i = heap.push(event) - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (!isBefore(event, heap[parent]!)) break;
      heap[i] = heap[parent]!;
      i = parent;
    }
    heap[i] = event;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return;
    let i = 0;
    for (;;) {
      let child = 2 * i + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!isBefore(heap[child]!, last)) break;
      heap[i] = heap[child]!;
      i = child;
    }
    heap[i] = last;
  }
}

function isBefore(a: Event, b: Event): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}

/** Lets all promises go on that can: nothing else is waited for in a simulated process. */
function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
