/**
 * A store on servers as the worker sees it whose thread drives it: the methods of `RemoteStore`,
 * each posted at once, whatever this thread does next. A frozen list of keys is sent once, however
 * often it is pushed or pulled. Nothing is decided here. Invariants: regions of a call stay as they
 * are until it is answered; what was allocated or lent is gone with `close`.
 */
import { randomBytes } from 'node:crypto';
import type { StoreKey } from '../base/index.ts';
import type { AnnouncedSegments } from '../communication/index.ts';
import type { InitialKeyState, RemoteStore } from '../kvstore/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import { segmentPrefix } from '../server/index.ts';
import { isRegion, withParts } from './store-messages.ts';
import type {
  PackedList,
  PackedTensor,
  StoreArguments,
  StoreConnection,
  StoreMethod,
  StoreRequest,
  StoreRequests,
} from './store-messages.ts';

/** What a store needs of its thread. */
export interface StoreCaller {
  readonly space: SharedSpace;
  readonly announced: AnnouncedSegments;
  readonly request: <Name extends StoreRequest>(
    what: Name,
    ask: StoreRequests[Name]['ask'],
  ) => Promise<StoreRequests[Name]['answer']>;
  readonly isGone: () => boolean;
  readonly settle: (mostMs: number) => void;
}

type Calls = {
  readonly [Method in StoreMethod]: (...args: StoreArguments<Method>) => Promise<unknown>;
};

/**
 * A call that knows, once it is answered, when that was in the store's thread; this one may hear of
 * it later.
 */
export type StoreCall<T> = Promise<T> & {
  /** Milliseconds since 1970. */
  endedMs?: number;
};

type Answer<Method extends StoreMethod> = Awaited<ReturnType<RemoteStore[Method]>>;

/** Elements that are brought at once, where not all fit into memory. */
export const PIECE_ELEMENTS = 1024 * 1024;
/** How long `settle` keeps this thread from its event loop. */
const MOST_BLOCKED_MS = 100;

export class ThreadStore implements Calls {
  readonly rank: number;
  readonly workers: number;
  /** Whether all servers use this process's memory in place. */
  readonly sharesMemory: boolean;
  readonly #caller: StoreCaller;
  readonly #number: number;
  /** Of the names of segments that servers on this host may use; undefined if there are none. */
  readonly #prefix: string | undefined;
  readonly #segments: Segment[] = [];
  readonly #values = new Map<StoreKey, Region<'float32'>>();
  readonly #keys = new Map<Region, StoreKey>();
  /** Numbers of frozen lists that the thread has been sent. */
  readonly #lists = new WeakMap<object, number>();
  #nextList = 0;
  /** See `RemoteStore.foundValues`. */
  foundValues = false;
  /** What servers have lent, by name. */
  readonly #adopted = new Map<string, Segment>();
  #closing: Promise<void> | undefined;

  /** Made by `StoreThread.connect`. */
  constructor(
    caller: StoreCaller,
    number: number,
    { worker, workers, access }: StoreConnection,
    { sharesMemory, sharesSome }: StoreRequests['connect']['answer'],
  ) {
    this.#caller = caller;
    this.#number = number;
    this.rank = worker;
    this.workers = workers;
    this.sharesMemory = sharesMemory;
    this.#prefix = sharesSome ? segmentPrefix(access.namespace, access.nonce) : undefined;
  }

  get space(): SharedSpace {
    return this.#caller.space;
  }

  /**
   * Memory that servers on this host read and write in place; tensors elsewhere are copied. Freed
   * by `close`.
   */
  allocate(length: number): Region<'float32'> {
    const bytes = Math.max(64, 4 * length);
    const { space } = this.#caller;
    const segment =
      this.#prefix === undefined
        ? space.allocate(bytes)
        : space.createSegment(`${this.#prefix}${randomBytes(8).toString('hex')}`, bytes, { sweep: false });
    this.#segments.push(segment);
    return segment.allocate('float32', length);
  }

  /** The server's own memory of a value, where one server on this host has all of it. */
  value(key: StoreKey): Region<'float32'> | undefined {
    return this.#values.get(key);
  }

  async init(...args: StoreArguments<'init'>): Promise<void> {
    await this.#call('init', args);
    const [inits] = args;
    const keys = [inits].flat().map(({ key }) => key);
    const { places, found } = await this.#caller.request('values', { store: this.#number, keys });
    this.foundValues = found;
    keys.forEach((key, i) => {
      const place = places[i];
      if (place === undefined) return;
      const segment = this.#adopt(place.range);
      const value = segment.region('float32', place.byteOffset - segment.byteOffset, place.length);
      this.#values.set(key, value);
      this.#keys.set(value, key);
    });
  }

  /**
   * What is brought when it is needed is brought here, piece by piece: only memory can be sent to
   * the thread.
   */
  async initState(...[given]: StoreArguments<'initState'>): Promise<void> {
    const states = [given].flat();
    const placed: InitialKeyState[] = [];
    for (const { key, steps, slots, value } of states) {
      const bySlot = Object.entries(slots).map(
        async ([slot, one]) => [slot, await this.#given(key, one, slot)] as const,
      );
      placed.push({
        ...{ key, steps, slots: Object.fromEntries(await Promise.all(bySlot)) },
        ...(value ? { value: await this.#given(key, value) } : {}),
      });
    }
    await this.#call('initState', [placed]);
  }

  async setOptimizer(...args: StoreArguments<'setOptimizer'>): Promise<void> {
    await this.#call('setOptimizer', args);
  }

  push(...args: StoreArguments<'push'>): StoreCall<Answer<'push'>> {
    return this.#call('push', args);
  }

  pushRows(...args: StoreArguments<'pushRows'>): StoreCall<Answer<'pushRows'>> {
    return this.#call('pushRows', args);
  }

  pull(...args: StoreArguments<'pull'>): StoreCall<Answer<'pull'>> {
    return this.#call('pull', args);
  }

  pullRows(...args: StoreArguments<'pullRows'>): StoreCall<Answer<'pullRows'>> {
    return this.#call('pullRows', args);
  }

  pullHeld(...args: StoreArguments<'pullHeld'>): StoreCall<void> {
    return this.#call('pullHeld', args);
  }

  pullHeldRows(...args: StoreArguments<'pullHeldRows'>): StoreCall<void> {
    return this.#call('pullHeldRows', args);
  }

  apply(...args: StoreArguments<'apply'>): StoreCall<void> {
    return this.#call('apply', args);
  }

  pullElements(...args: StoreArguments<'pullElements'>): StoreCall<void> {
    return this.#call('pullElements', args);
  }

  pushElements(...args: StoreArguments<'pushElements'>): StoreCall<void> {
    return this.#call('pushElements', args);
  }

  /** Into the tensors that are given; they hold all that comes of it. */
  async pullState(...args: StoreArguments<'pullState'>): Promise<void> {
    await this.#call('pullState', args);
  }

  /** The same of one slot. */
  async pullSlot(...args: StoreArguments<'pullSlot'>): Promise<void> {
    await this.#call('pullSlot', args);
  }

  /**
   * Blocks this thread until all calls are answered, or for a tenth of a second: whoever awaits one
   * next need not wait for the event loop, and the event loop does not wait long.
   */
  settle(): void {
    this.#caller.settle(MOST_BLOCKED_MS);
  }

  close(): Promise<void> {
    return (this.#closing ??= this.#close());
  }

  async #close(): Promise<void> {
    const { announced, request, isGone } = this.#caller;
    try {
      if (!isGone()) await request('close', { store: this.#number });
      const segments = this.#segments.flatMap((segment) => announced.withdraw(segment) ?? []);
      // The thread may map other memory in the same place once it is free: first it must not know
      // the old any more.
      if (segments.length > 0) await request('forget', { segments });
    } catch (error) {
      if (!isGone()) throw error;
    } finally {
      for (const segment of [...this.#adopted.values(), ...this.#segments.splice(0)]) segment.close();
      this.#adopted.clear();
    }
  }

  async #given(
    key: StoreKey,
    elements: NonNullable<InitialKeyState['value']>,
    slot?: string,
  ): Promise<NonNullable<InitialKeyState['value']>> {
    if (!('read' in elements)) return elements;
    const { length } = elements;
    if (this.rank === 0) {
      const segment = this.#caller.space.allocate(4 * Math.min(length, PIECE_ELEMENTS) + 64);
      try {
        const room = segment.allocate('float32', Math.min(length, PIECE_ELEMENTS));
        for (let first = 0; first < length; first += PIECE_ELEMENTS) {
          const piece = room.slice(0, Math.min(PIECE_ELEMENTS, length - first));
          elements.read(first, piece.view);
          await this.pushElements(key, first, piece, slot);
        }
      } finally {
        segment.close();
      }
    }
    return { length, isGiven: true };
  }

  #adopt(range: Parameters<SharedSpace['adoptSegment']>[0]): Segment {
    const name = range.name!;
    const segment = this.#adopted.get(name) ?? this.#caller.space.adoptSegment(range);
    this.#adopted.set(name, segment);
    return segment;
  }

  #call<Method extends StoreMethod>(method: Method, args: StoreArguments<Method>): StoreCall<Answer<Method>> {
    const ask = { store: this.#number, method, args: args.map((part) => this.#packedPart(part)) };
    const call: StoreCall<Answer<Method>> = this.#caller.request('call', ask).then(({ result, endedMs }) => {
      call.endedMs = endedMs;
      return result as Answer<Method>;
    });
    return call;
  }

  #packedPart(part: unknown): unknown {
    if (!Array.isArray(part) || !Object.isFrozen(part)) return this.#withPlaces(part);
    const known = this.#lists.get(part);
    if (known !== undefined) return { list: known } satisfies PackedList;
    const list = this.#nextList++;
    this.#lists.set(part, list);
    return { list, entries: this.#withPlaces(part) as readonly unknown[] } satisfies PackedList;
  }

  #withPlaces(part: unknown): unknown {
    return withParts(part, (one) => (isRegion(one) ? this.#packed(one) : undefined));
  }

  #packed(region: Region): PackedTensor {
    const lent = this.#keys.get(region);
    if (lent === undefined) return { region: this.#caller.announced.pack(region) };
    const { dtype, byteOffset, length } = region;
    return { region: { dtype, byteOffset, length, segment: 0 }, lent };
  }
}
