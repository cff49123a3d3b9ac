/**
 * Memory that one core of a tenant has taken for requests under way and for gradients that are held. Memory of requests
 * outlives a connection: what was pushed counts while the worker is waited for. Small gradients lie together in slabs,
 * because a space can keep only so many ranges apart. The quota is the business of `TenantSpace`. Invariant: everything
 * that is taken is given back once, at the latest by `close`.
 */
import type { Segment } from '../../memory/index.ts';
import type { HeldMemory } from '../held-gradient.ts';
import type { TenantSpace } from '../tenant-space.ts';

interface Slab {
  readonly segment: Segment;
  usedBytes: number;
  /** Parts of it that are in use. */
  parts: number;
}

const PAGE_BYTES = 65536;
const MAX_SLAB_BYTES = 2 ** 20;
const LINE_BYTES = 64;

export class KeptMemory implements HeldMemory {
  readonly #space: TenantSpace;
  readonly #slabBytes: number;
  readonly #ofWorkers = new Map<number, Set<Segment>>();
  readonly #held = new Set<Segment>();
  readonly #slabs = new Map<Segment, Slab>();
  #slab: Slab | undefined;

  /** `maxBytes`: the quota of the tenant, of which a slab is a small part. */
  constructor(space: TenantSpace, maxBytes: number) {
    this.#space = space;
    const share = Math.floor(maxBytes / 64 / PAGE_BYTES) * PAGE_BYTES;
    this.#slabBytes = Math.min(MAX_SLAB_BYTES, Math.max(PAGE_BYTES, share));
  }

  /** For a request of the worker. */
  take(worker: number, bytes: number): Segment {
    const segment = this.#space.allocate(bytes);
    const kept = this.#ofWorkers.get(worker) ?? new Set();
    this.#ofWorkers.set(worker, kept.add(segment));
    return segment;
  }

  /** It outlives the worker, and is given back by `close`, because it is being sent. */
  disown(worker: number, segment: Segment): { close(): void } {
    this.#ofWorkers.get(worker)?.delete(segment);
    return { close: () => segment.close() };
  }

  drop(worker: number, segment: Segment): void {
    this.#ofWorkers.get(worker)?.delete(segment);
    segment.close();
  }

  /** Everything of a worker that is gone. */
  dropAll(worker: number): void {
    for (const segment of this.#ofWorkers.get(worker) ?? []) segment.close();
    this.#ofWorkers.delete(worker);
  }

  /** For a gradient that is held. */
  allocate(bytes: number): Segment {
    const segment = 4 * bytes > this.#slabBytes ? this.#space.allocate(bytes) : this.#part(bytes);
    this.#held.add(segment);
    return segment;
  }

  free(segment: Segment): void {
    this.#held.delete(segment);
    const slab = this.#slabs.get(segment);
    this.#slabs.delete(segment);
    segment.close();
    if (slab === undefined || --slab.parts > 0 || slab === this.#slab) return;
    slab.segment.close();
  }

  close(): void {
    for (const segments of this.#ofWorkers.values()) for (const segment of segments) segment.close();
    this.#ofWorkers.clear();
    for (const segment of [...this.#held]) this.free(segment);
    this.#slab?.segment.close();
    this.#slab = undefined;
  }

  #part(bytes: number): Segment {
    const wanted = Math.ceil(bytes / LINE_BYTES) * LINE_BYTES;
    let slab = this.#slab;
    if (slab === undefined || slab.usedBytes + wanted > this.#slabBytes) {
      const next = { segment: this.#space.allocate(this.#slabBytes), usedBytes: 0, parts: 0 };
      if (slab?.parts === 0) slab.segment.close();
      this.#slab = slab = next;
    }
    const byteOffset = slab.segment.byteOffset + slab.usedBytes;
    slab.usedBytes += wanted;
    slab.parts++;
    const part = this.#space.adoptSegment({ byteOffset, byteLength: bytes });
    this.#slabs.set(part, slab);
    return part;
  }
}
