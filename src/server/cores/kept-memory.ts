/**
 * Memory that one core of a tenant has taken for requests under way and for gradients that are held, within the quota of the
 * tenant. Memory of requests outlives a connection: what was pushed counts while the worker is waited for. Invariant:
 * everything that is taken is given back once, at the latest by `close`.
 */
import { UsageError } from '../../base/index.ts';
import type { Segment, SharedSpace } from '../../memory/index.ts';
import type { HeldMemory } from '../held-gradient.ts';
import type { Service } from './office.ts';

export class KeptMemory implements HeldMemory {
  readonly #space: SharedSpace;
  readonly #service: Service;
  readonly #ofWorkers = new Map<number, Set<Segment>>();
  #bytes = 0;

  constructor(space: SharedSpace, service: Service) {
    this.#space = space;
    this.#service = service;
  }

  /** For a request of the worker. */
  keep(worker: number, segment: Segment): void {
    const { maxBytes, namespace } = this.#service;
    if (!this.#hasRoom(segment.byteLength)) {
      segment.close();
      throw new UsageError(
        'OUT_OF_SHARED_MEMORY',
        `worker ${worker} has more rows on their way than the ${maxBytes} bytes of namespace '${namespace}'; await answers, or ask for a larger quota`,
        { worker, namespace, expected: maxBytes },
      );
    }
    this.#bytes += segment.byteLength;
    const kept = this.#ofWorkers.get(worker) ?? new Set();
    this.#ofWorkers.set(worker, kept.add(segment));
  }

  /** It outlives the worker, and is given back by `close`, because it is being sent. */
  disown(worker: number, segment: Segment): { close(): void } {
    this.#ofWorkers.get(worker)?.delete(segment);
    return { close: () => this.drop(worker, segment) };
  }

  drop(worker: number, segment: Segment): void {
    this.#ofWorkers.get(worker)?.delete(segment);
    this.free(segment);
  }

  /** Everything of a worker that is gone. */
  dropAll(worker: number): void {
    for (const segment of this.#ofWorkers.get(worker) ?? []) this.drop(worker, segment);
    this.#ofWorkers.delete(worker);
  }

  /** For a gradient that is held. */
  allocate(bytes: number): Segment {
    const { maxBytes, namespace } = this.#service;
    if (!this.#hasRoom(bytes)) {
      throw new UsageError(
        'OUT_OF_SHARED_MEMORY',
        `gradients of ${bytes} bytes more cannot be held within the ${maxBytes} bytes of namespace '${namespace}'; ask for a larger quota`,
        { namespace, expected: maxBytes, actual: this.#bytes + bytes },
      );
    }
    const segment = this.#space.allocate(bytes);
    this.#bytes += segment.byteLength;
    return segment;
  }

  free(segment: Segment): void {
    this.#bytes -= segment.byteLength;
    segment.close();
  }

  close(): void {
    for (const segments of this.#ofWorkers.values()) for (const segment of segments) segment.close();
    this.#ofWorkers.clear();
  }

  #hasRoom(bytes: number): boolean {
    return this.#bytes + bytes <= this.#service.maxBytes;
  }
}
