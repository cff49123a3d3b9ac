/**
 * The operations that could begin, as a binary heap. Not a queue of all operations: those that still wait for others
 * are not in it. Invariant: no operation goes before its parent, (i - 1) / 2, in the order of (priority, high
 * first; push).
 */
import type { Operation } from './operation.ts';

export class ReadyQueue {
  readonly #heap: Operation[] = [];

  add(operation: Operation): void {
    const heap = this.#heap;
    let at = heap.length;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!goesBefore(operation, heap[parent]!)) break;
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = operation;
  }

  /** Removes and returns the one to begin next. */
  take(): Operation | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (!last || heap.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) break;
      if (child + 1 < heap.length && goesBefore(heap[child + 1]!, heap[child]!)) child++;
      if (!goesBefore(heap[child]!, last)) break;
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }

  clear(): void {
    this.#heap.length = 0;
  }
}

function goesBefore(a: Operation, b: Operation): boolean {
  return a.priority > b.priority || (a.priority === b.priority && a.sequence < b.sequence);
}
