/**
 * The descriptors of a core's connections, in memory that the main thread sees: descriptors belong to the process, so that
 * those of a thread that died stay open unless somebody else closes them. Invariant: a descriptor is in it exactly as
 * long as the core has it open; 0 is an empty place.
 */
import type { SharedSpace } from '../../memory/index.ts';
import type { SpaceRange } from './office.ts';

/** Fewer than one call of the kernel can look after. */
export const MAX_CONNECTIONS = 8000;

export class ConnectionTable {
  readonly #descriptors: Int32Array;
  readonly #places = new Map<number, number>();
  readonly #free: number[] = [];

  constructor(space: SharedSpace, { byteOffset }: SpaceRange) {
    this.#descriptors = new Int32Array(space.buffer, byteOffset, MAX_CONNECTIONS);
  }

  get isFull(): boolean {
    return this.#places.size >= MAX_CONNECTIONS;
  }

  add(fd: number): void {
    const place = this.#free.pop() ?? this.#places.size;
    this.#places.set(fd, place);
    this.#descriptors[place] = fd;
  }

  /** Before it is closed: the number may be somebody else's right after. */
  remove(fd: number): void {
    const place = this.#places.get(fd);
    if (place === undefined) return;
    this.#places.delete(fd);
    this.#free.push(place);
    this.#descriptors[place] = 0;
  }
}
