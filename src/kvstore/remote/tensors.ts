/**
 * The memory between a user's tensors and the wire: regions that servers can read in place, copies of what lies elsewhere,
 * sums over the devices of a worker. It sends nothing. Invariant: a region that it hands out for a key stays the same, so
 * that servers learn of it once.
 */
import { keyName, keyText, UsageError } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import type { Place } from '../../server/index.ts';
import type { Host } from '../../sockets/index.ts';
import type { OneOrMany, StoreTensor as Tensor } from '../kv-store.ts';

export class StoreMemory {
  readonly space: SharedSpace;
  readonly #kernels: Kernels;
  readonly #prefix: string;
  readonly #isShared: boolean;
  readonly #randomHex: Host['randomHex'];
  readonly #segments: Segment[] = [];
  readonly #named = new Map<string, Region<'float32'>>();

  /** `isShared`: servers on this host map what is allocated here. */
  constructor(kernels: Kernels, prefix: string, isShared: boolean, { randomHex }: Pick<Host, 'randomHex'>) {
    this.#randomHex = randomHex;
    this.space = kernels.space;
    this.#kernels = kernels;
    this.#prefix = prefix;
    this.#isShared = isShared;
  }

  allocate(length: number): Region<'float32'> {
    return this.segment(Math.max(64, 4 * length)).allocate('float32', length);
  }

  /** Freed by `close`. */
  segment(bytes: number): Segment {
    const name = `${this.#prefix}${this.#randomHex(8)}`;
    const segment = this.#isShared
      ? this.space.createSegment(name, bytes, { sweep: false })
      : this.space.allocate(bytes);
    this.#segments.push(segment);
    return segment;
  }

  /** The same region for the same purpose. */
  named(purpose: string, length: number): Region<'float32'> {
    let region = this.#named.get(purpose);
    if (region === undefined) this.#named.set(purpose, (region = this.allocate(length)));
    return region;
  }

  /** Whether servers can use the tensor where it lies. */
  isUsable(tensor: Tensor): tensor is Region<'float32'> {
    if (tensor instanceof Float32Array || tensor.space !== this.space) return false;
    return !this.#isShared || (this.space.segmentAt(tensor)?.name?.startsWith(this.#prefix) ?? false);
  }

  /** Where a usable region lies, as servers on this host find it. */
  placeOf(region: Region): Place {
    const segment = this.space.segmentAt(region)!;
    return [segment.name!, segment.offsetOf(region)];
  }

  /** One gradient for a key: as it lies, copied, or added over the devices. */
  gather(key: StoreKey, tensors: readonly Tensor[], length: number): Region<'float32'> {
    const [first] = tensors;
    if (first === undefined) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `key ${keyText(key)} was pushed without a gradient; give one or more`,
        { key },
      );
    }
    for (const tensor of tensors) checkLength(key, 'pushed with', tensor.length, length);
    if (tensors.length === 1 && this.isUsable(first)) return first;
    const sum = this.named(`gradient of ${keyName(key)}`, length);
    copy(this.#kernels, sum, first);
    const others = tensors.slice(1).map((tensor, i) => {
      if (!(tensor instanceof Float32Array) && tensor.space === this.space) return tensor;
      const staged = this.named(`gradient ${i + 1} of ${keyName(key)}`, length);
      staged.view.set(elementsOf(tensor));
      return staged;
    });
    if (others.length > 0) this.#kernels.sum(sum, [sum, ...others]);
    return sum;
  }

  close(): void {
    for (const segment of this.#segments.splice(0)) segment.close();
    this.#named.clear();
  }
}

export function copy(kernels: Kernels, target: Region<'float32'>, source: Tensor): void {
  if (source instanceof Float32Array || source.space !== target.space) target.view.set(elementsOf(source));
  else if (source.byteOffset !== target.byteOffset) kernels.copy(target, source);
}

export function checkLength(key: StoreKey, what: string, actual: number, expected: number): void {
  if (actual === expected) return;
  throw new UsageError(
    'SHAPE_MISMATCH',
    `key ${keyText(key)} was ${what} ${actual} elements, expected ${expected}; give tensors of the key's length`,
    { key, expected, actual },
  );
}

export function listOf<T extends object>(one: OneOrMany<T>): readonly T[] {
  return Array.isArray(one) ? (one as readonly T[]) : [one as T];
}

export function elementsOf(tensor: Tensor): Float32Array {
  return tensor instanceof Float32Array ? tensor : tensor.view;
}
