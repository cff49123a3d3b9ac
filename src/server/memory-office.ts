/**
 * The memory of a server's tenants: values and slots of keys, gradients on their way, segments of workers on this host. The
 * main thread's end of `cores/office.ts`; it alone allocates what several cores use. Invariants: the same question gets
 * the same memory, whichever core asks; a tenant never has more than its quota; all is given back when it ends.
 */
import { keyText, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import type { Segment } from '../memory/index.ts';
import type { Host } from '../sockets/index.ts';
import { packPlaces, slotsOf } from './cores/key-places.ts';
import type { KeyPlaces } from './cores/key-places.ts';
import type { Answers, Holder, Question, Service, SpaceRange } from './cores/office.ts';
import { averageSlots } from './key-operations.ts';
import type { TenantSpace } from './tenant-space.ts';
import type { KeyShape } from './wire/messages.ts';
import { segmentPrefix } from './wire/segment-names.ts';

const LINE_BYTES = 64;
const MAX_MAPPED = 1024;

export type MemoryQuestion = Extract<Question, { kind: 'keys' | 'staging' | 'map' | 'forget' }>;

interface KeyRecord {
  readonly length: number;
  /**
   * No worker has it: it has segments of its own, which no worker maps, and which are no process's
   * private memory.
   */
  readonly isOnlyHere: boolean;
  readonly value: SpaceRange;
  readonly slots: Record<string, SpaceRange>;
  readonly segment: Segment;
}

/** The memory of one process of a worker. */
interface Holding {
  readonly staging: Map<StoreKey, { readonly range: SpaceRange; readonly segment: Segment }>;
  readonly mapped: Map<string, Segment>;
  /** The cores that use it. */
  readonly cores: Set<number>;
}

export class TenantMemory {
  readonly #space: TenantSpace;
  readonly #service: Service;
  readonly #randomHex: Host['randomHex'];
  readonly #keys = new Map<StoreKey, KeyRecord>();
  /** What was taken for each process of a worker. */
  readonly #holdings = new Map<string, Holding>();
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
        return this.#stage(this.#holdingOf(question), question.keys);
      case 'map':
        return this.#map(this.#holdingOf(question), question.worker, question.segment);
      case 'forget':
        this.#leave(question);
        return null;
    }
  }

  close(): void {
    for (const holding of this.#holdings.values()) this.#giveBack(holding);
    this.#holdings.clear();
    for (const segment of this.#segments) segment.close();
    this.#segments.clear();
  }

  /**
   * Keys that are not there yet get a value; all get the slots that they do not have. Length 0 only asks. If it
   * throws, everything is as it was.
   */
  #openKeys(shapes: readonly KeyShape[], slots: readonly string[]): KeyPlaces {
    const undo: (() => void)[] = [];
    try {
      const fresh = shapes.filter(({ key, length }) => !this.#keys.has(key) && length >= 0);
      const isOnlyHere = (shape: KeyShape) => shape.firstValues !== undefined;
      const others = fresh.filter((shape) => !isOnlyHere(shape));
      if (others.length > 0) this.#allocateValues(others, undo);
      for (const shape of fresh.filter(isOnlyHere)) this.#allocateValues([shape], undo);
      for (const { key, length } of shapes) {
        const known = this.#keys.get(key)!;
        if (length > 0 && known.length !== length)
          throw otherLength(this.#service, key, known.length, length);
      }
      const keys = shapes.map(({ key }) => this.#keys.get(key)!);
      for (const slot of slots) this.#allocateSlots(keys, slot, undo);
      const averages = new Set(shapes.flatMap(({ operations }) => averageSlots(operations)));
      for (const slot of averages) {
        const averaged = keys.filter((_, i) => averageSlots(shapes[i]!.operations).includes(slot));
        this.#allocateSlots(averaged, slot, undo);
      }
    } catch (error) {
      for (const step of undo.reverse()) step();
      throw error;
    }
    const places = shapes.map((shape) => {
      const { value, segment, slots: own } = this.#keys.get(shape.key)!;
      const offsetInSegment = value.byteOffset - segment.byteOffset;
      const wanted = slotsOf(shape, slots);
      return { value, slots: own, wanted, segment: segment.name!, offsetInSegment };
    });
    return packPlaces(places);
  }

  #allocateValues(shapes: readonly KeyShape[], undo: (() => void)[]): void {
    const bytes = shapes.reduce((sum, { length }) => sum + aligned(4 * length), 0);
    const segment = this.#named('values', Math.max(LINE_BYTES, bytes));
    undo.push(() => {
      for (const { key } of shapes) this.#keys.delete(key);
      this.#disown(segment);
    });
    for (const { key, length, firstValues } of shapes) {
      const { byteOffset, byteLength } = segment.allocate('float32', length);
      const isOnlyHere = firstValues !== undefined;
      this.#keys.set(key, { length, isOnlyHere, value: { byteOffset, byteLength }, slots: {}, segment });
    }
  }

  #named(what: string, bytes: number): Segment {
    const { namespace, nonce } = this.#service;
    const name = `${segmentPrefix(namespace, nonce)}${what}-${this.#randomHex(6)}`;
    return this.#own(this.#space.createSegment(name, bytes));
  }

  #allocateSlots(keys: readonly KeyRecord[], name: string, undo: (() => void)[]): void {
    const without = keys.filter(({ slots }) => slots[name] === undefined);
    undo.push(() => {
      for (const { slots } of without) delete slots[name];
    });
    this.#placeSlots(
      without.filter(({ isOnlyHere }) => !isOnlyHere),
      name,
      undo,
      (bytes) => this.#own(this.#space.allocate(bytes)),
    );
    for (const key of without.filter(({ isOnlyHere }) => isOnlyHere)) {
      this.#placeSlots([key], name, undo, (bytes) => this.#named('slots', bytes));
    }
  }

  #placeSlots(
    keys: readonly KeyRecord[],
    name: string,
    undo: (() => void)[],
    allocate: (bytes: number) => Segment,
  ): void {
    const bytes = keys.reduce((sum, { length }) => sum + aligned(4 * length), 0);
    if (bytes === 0) {
      for (const { slots, value } of keys) slots[name] = { ...value, byteLength: 0 };
      return;
    }
    const segment = allocate(bytes);
    undo.push(() => this.#disown(segment));
    for (const { slots, length } of keys) {
      const { byteOffset, byteLength } = segment.allocate('float32', length);
      slots[name] = { byteOffset, byteLength };
    }
  }

  #stage({ staging: own }: Holding, keys: readonly StoreKey[]): readonly SpaceRange[] {
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

  #map({ mapped: own }: Holding, worker: number, name: string): SpaceRange {
    const { namespace, nonce } = this.#service;
    if (!name.startsWith(segmentPrefix(namespace, nonce))) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} named segment '${name}', which is not one of namespace '${namespace}'; allocate it by the store`,
        { worker, segment: name, namespace },
      );
    }
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

  #holdingOf(holder: Holder): Holding {
    const process = processOf(holder);
    const holding: Holding = this.#holdings.get(process) ?? {
      staging: new Map(),
      mapped: new Map(),
      cores: new Set(),
    };
    holding.cores.add(holder.core);
    this.#holdings.set(process, holding);
    return holding;
  }

  #leave(holder: Holder): void {
    const process = processOf(holder);
    const holding = this.#holdings.get(process);
    holding?.cores.delete(holder.core);
    if (holding?.cores.size !== 0) return;
    this.#holdings.delete(process);
    this.#giveBack(holding);
  }

  #giveBack({ staging, mapped }: Holding): void {
    for (const { segment } of staging.values()) this.#disown(segment);
    for (const segment of mapped.values()) segment.close();
  }

  #own(segment: Segment): Segment {
    this.#segments.add(segment);
    return segment;
  }

  #disown(segment: Segment): void {
    if (this.#segments.delete(segment)) segment.close();
  }
}

function processOf({ worker, incarnation }: Holder): string {
  return `${worker} ${incarnation}`;
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
