/**
 * The memory of a server's tenants: values and slots of keys, gradients on their way, segments of workers on this host. The
 * main thread's end of `cores/office.ts`; it alone allocates what several cores use. Invariants: the same question gets
 * the same memory, whichever core asks; a tenant never has more than its quota; all is given back when it ends.
 */
import { keyText, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import type { Segment } from '../memory/index.ts';
import type { Host } from '../sockets/index.ts';
import type { Answers, KeyMemory, Question, Service, SpaceRange } from './cores/office.ts';
import type { TenantSpace } from './tenant-space.ts';
import type { KeyShape } from './wire/messages.ts';
import { segmentPrefix } from './wire/segment-names.ts';

const LINE_BYTES = 64;
const MAX_MAPPED = 1024;

export type MemoryQuestion = Extract<Question, { kind: 'keys' | 'staging' | 'map' | 'forget' }>;

interface KeyRecord {
  readonly length: number;
  readonly value: SpaceRange;
  readonly slots: Record<string, SpaceRange>;
  readonly segment: Segment;
}

export class TenantMemory {
  readonly #space: TenantSpace;
  readonly #service: Service;
  readonly #randomHex: Host['randomHex'];
  readonly #keys = new Map<StoreKey, KeyRecord>();
  /** By worker, what was taken for it. */
  readonly #staging = new Map<
    number,
    Map<StoreKey, { readonly range: SpaceRange; readonly segment: Segment }>
  >();
  readonly #mapped = new Map<number, Map<string, Segment>>();
  /** The cores that use a worker's memory. */
  readonly #users = new Map<number, Set<number>>();
  readonly #segments = new Set<Segment>();

  constructor(space: TenantSpace, service: Service, { randomHex }: Pick<Host, 'randomHex'>) {
    this.#randomHex = randomHex;
    this.#space = space;
    this.#service = service;
  }

  /** Bytes that are taken now. */
  get bytes(): number {
    return this.#space.bytes;
  }

  answer(question: MemoryQuestion): Answers[MemoryQuestion['kind']] {
    switch (question.kind) {
      case 'keys':
        return this.#openKeys(question.keys, question.slots);
      case 'staging':
        this.#use(question);
        return this.#stage(question.worker, question.keys);
      case 'map':
        this.#use(question);
        return this.#map(question.worker, question.segment);
      case 'forget':
        this.#leave(question);
        return null;
    }
  }

  close(): void {
    for (const worker of [...this.#staging.keys(), ...this.#mapped.keys()]) this.#forget(worker);
    for (const segment of this.#segments) segment.close();
    this.#segments.clear();
  }

  /** Keys that are not there yet get a value; all get the slots that they do not have. Length 0 only asks. */
  #openKeys(shapes: readonly KeyShape[], slots: readonly string[]): readonly KeyMemory[] {
    const fresh = shapes.filter(({ key, length }) => !this.#keys.has(key) && length >= 0);
    if (fresh.length > 0) this.#allocateValues(fresh);
    for (const { key, length } of shapes) {
      const known = this.#keys.get(key)!;
      if (length > 0 && known.length !== length) throw otherLength(this.#service, key, known.length, length);
    }
    this.#allocateSlots(
      shapes.map(({ key }) => this.#keys.get(key)!),
      slots,
    );
    return shapes.map(({ key }) => {
      const { value, segment, slots: own } = this.#keys.get(key)!;
      const offsetInSegment = value.byteOffset - segment.byteOffset;
      const wanted = Object.fromEntries(slots.map((slot) => [slot, own[slot]!]));
      return { key, value, slots: wanted, segment: segment.name!, offsetInSegment };
    });
  }

  #allocateValues(shapes: readonly KeyShape[]): void {
    const bytes = shapes.reduce((sum, { length }) => sum + aligned(4 * length), 0);
    const { namespace, nonce } = this.#service;
    const name = `${segmentPrefix(namespace, nonce)}values-${this.#randomHex(6)}`;
    const segment = this.#own(this.#space.createSegment(name, Math.max(LINE_BYTES, bytes)));
    for (const { key, length } of shapes) {
      const { byteOffset, byteLength } = segment.allocate('float32', length);
      this.#keys.set(key, { length, value: { byteOffset, byteLength }, slots: {}, segment });
    }
  }

  #allocateSlots(keys: readonly KeyRecord[], names: readonly string[]): void {
    for (const name of names) {
      const without = keys.filter(({ slots }) => slots[name] === undefined);
      const bytes = without.reduce((sum, { length }) => sum + aligned(4 * length), 0);
      if (bytes === 0) {
        for (const { slots, value } of without) slots[name] = { ...value, byteLength: 0 };
        continue;
      }
      const segment = this.#own(this.#space.allocate(bytes));
      for (const { slots, length } of without) {
        const { byteOffset, byteLength } = segment.allocate('float32', length);
        slots[name] = { byteOffset, byteLength };
      }
    }
  }

  #stage(worker: number, keys: readonly StoreKey[]): readonly SpaceRange[] {
    const own = this.#staging.get(worker) ?? new Map<StoreKey, { range: SpaceRange; segment: Segment }>();
    this.#staging.set(worker, own);
    const missing = keys.filter((key) => !own.has(key));
    const bytes = missing.reduce<number>((sum, key) => sum + aligned(4 * this.#keys.get(key)!.length), 0);
    if (missing.length > 0) {
      const segment = this.#own(this.#space.allocate(Math.max(LINE_BYTES, bytes)));
      for (const key of missing) {
        const { byteOffset, byteLength } = segment.allocate('float32', this.#keys.get(key)!.length);
        own.set(key, { range: { byteOffset, byteLength }, segment });
      }
    }
    return keys.map((key) => own.get(key)!.range);
  }

  #map(worker: number, name: string): SpaceRange {
    const { namespace, nonce } = this.#service;
    if (!name.startsWith(segmentPrefix(namespace, nonce))) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} named segment '${name}', which is not one of namespace '${namespace}'; allocate it by the store`,
        { worker, segment: name, namespace },
      );
    }
    const own = this.#mapped.get(worker) ?? new Map<string, Segment>();
    this.#mapped.set(worker, own);
    let segment = own.get(name);
    if (segment === undefined) {
      if (own.size >= MAX_MAPPED) {
        throw new UsageError(
          'OUT_OF_SHARED_MEMORY',
          `worker ${worker} named more than ${MAX_MAPPED} segments; put tensors together in fewer`,
          { worker, expected: MAX_MAPPED },
        );
      }
      segment = this.#space.attachSegment(name);
      own.set(name, segment);
    }
    return { byteOffset: segment.byteOffset, byteLength: segment.byteLength };
  }

  #use({ worker, core }: { readonly worker: number; readonly core: number }): void {
    const users = this.#users.get(worker) ?? new Set();
    this.#users.set(worker, users.add(core));
  }

  #leave({ worker, core }: { readonly worker: number; readonly core: number }): void {
    const users = this.#users.get(worker);
    users?.delete(core);
    if (users?.size === 0) this.#forget(worker);
  }

  #forget(worker: number): void {
    for (const { segment } of this.#staging.get(worker)?.values() ?? []) {
      if (!this.#segments.delete(segment)) continue;
      segment.close();
    }
    this.#users.delete(worker);
    for (const segment of this.#mapped.get(worker)?.values() ?? []) segment.close();
    this.#staging.delete(worker);
    this.#mapped.delete(worker);
  }

  #own(segment: Segment): Segment {
    this.#segments.add(segment);
    return segment;
  }
}

function aligned(bytes: number): number {
  return Math.ceil(bytes / LINE_BYTES) * LINE_BYTES;
}

function otherLength({ namespace }: Service, key: StoreKey, expected: number, actual: number): UsageError {
  return new UsageError(
    'SHAPE_MISMATCH',
    `key ${keyText(key)} of namespace '${namespace}' has ${expected} elements, not ${actual}; init it the same on all workers, once`,
    { namespace, key, expected, actual },
  );
}
