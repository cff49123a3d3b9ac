/**
 * A process's communication thread, as its caller sees it: the collectives of `collectives/` by the same names and
 * options, run in a thread of their own, so that gradients travel while the caller computes in native code. The
 * thread's side is `command-server.ts`. Invariants: commands are carried out in the order in which they were given;
 * faulty arguments, which collectives otherwise throw, come through the handle; no handle outlives the thread unsettled.
 */
import { randomBytes } from 'node:crypto';
import { EventEmitter } from 'node:events';
import { pack, unpack, UsageError } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import type {
  AllGatherOptions,
  AllReduceOptions,
  AllToAllOptions,
  BroadcastOptions,
  CollectiveOptions,
  GroupCosts,
  MeasureOptions,
  ReduceOptions,
  ReduceScatterOptions,
} from '../collectives/index.ts';
import { bytesPerElement } from '../memory/index.ts';
import type { DType, Region, Segment, SharedSpace } from '../memory/index.ts';
import { AnnouncedSegments } from './announced-segments.ts';
import type { CallOptions, CollectiveName, Report, Requests, ThreadEvents, WorldView } from './messages.ts';
import { OpenOperations } from './open-operations.ts';
import { isMpi, plain } from './options.ts';
import type { CommunicationOptions, MpiCommunicationOptions } from './options.ts';
import type { ThreadHandle, TimedHandle } from './thread-handle.ts';
import { ThreadLink } from './thread-link.ts';

export interface OnGroup {
  /** The id of the group to run in, from `group`. Default: the world. */
  readonly group?: number | undefined;
}

export type CommunicationEvents = ThreadEvents;

/** That of the engine, after which the thread ends an operation by itself. */
const DEFAULT_DEADLINE_MS = 600_000;

interface Joined {
  readonly world: WorldView;
  readonly transport: string;
  readonly inPlace: boolean;
}

export class CommunicationThread {
  readonly space: SharedSpace;
  /**
   * Who left, who waits to be taken in, what stalls, new worlds. Told from the event loop, and while this thread is
   * blocked in `wait`, from there. Stalls that nobody listens to are written to the error output.
   */
  readonly events = new EventEmitter<CommunicationEvents>();
  readonly #link: ThreadLink;
  readonly #operations: OpenOperations;
  readonly #announced: AnnouncedSegments;
  /** What `allocate` gave out, by the place of its region. */
  readonly #segments = new Map<number, Segment>();
  readonly #log: ((line: string) => void) | undefined;
  #joined: Joined = {
    world: { id: 0, rank: 0, size: 0, hosts: [], members: [] },
    transport: '',
    inPlace: false,
  };
  #onJoined: ((error?: TributaryError) => void) | undefined;
  #leaving: Promise<void> | undefined;

  /** Starts the thread and joins the cluster in it; resolves when all members can be reached. */
  static async start(options: CommunicationOptions | MpiCommunicationOptions): Promise<CommunicationThread> {
    const thread = new CommunicationThread(options);
    const signal = isMpi(options) ? undefined : options.signal;
    const giveUp = (): void => {
      if (!thread.#link.end) thread.#link.post({ kind: 'give up joining' });
    };
    thread.#link.hold();
    signal?.addEventListener('abort', giveUp, { once: true });
    if (signal?.aborted) giveUp();
    try {
      await new Promise<void>((resolve, reject) => {
        thread.#onJoined = (error) => (error ? reject(error) : resolve());
      });
      return thread;
    } catch (error) {
      await thread.#link.ended();
      throw error;
    } finally {
      signal?.removeEventListener('abort', giveUp);
      thread.#link.release();
    }
  }

  private constructor(options: CommunicationOptions | MpiCommunicationOptions) {
    this.space = options.space;
    this.#log = isMpi(options) ? undefined : options.log;
    this.#link = new ThreadLink(options.space.memory, plain(options), {
      report: (report) => this.#take(report),
      ended: (why) => {
        this.#onJoined?.(why);
        this.#operations.failAll(why);
      },
    });
    this.#operations = new OpenOperations(this.#link, options.deadlineMs ?? DEFAULT_DEADLINE_MS);
    this.#announced = new AnnouncedSegments(this.space, (command) => this.#link.post(command));
  }

  /** All members; after a loss, those of the last `regroup`. */
  get world(): WorldView {
    return this.#joined.world;
  }

  /** The kind of the transport: 'shared-memory', 'tcp', 'mpi'. */
  get transport(): string {
    return this.#joined.transport;
  }

  /** Combines the regions of all ranks; each rank's regions, one or several of the same length, receive the result. */
  allReduce(regions: Region | readonly Region[], options: AllReduceOptions & OnGroup = {}): TimedHandle {
    const { codec, ...others } = options;
    const vectors = isRegion(regions) ? [regions] : regions;
    if (!codec) return this.#call('allReduce', vectors, others);
    if (!('residual' in codec)) return this.#call('allReduce', vectors, { ...others, codec });
    const { residual, ...packedCodec } = codec;
    const packed = { codec: packedCodec, residual: this.#announced.pack(residual) };
    return this.#call('allReduce', vectors, { ...others, ...packed });
  }

  reduceScatter(input: Region, output: Region, options: ReduceScatterOptions & OnGroup = {}): TimedHandle {
    return this.#call('reduceScatter', [input, output], options);
  }

  allGather(input: Region, output: Region, options: AllGatherOptions & OnGroup = {}): TimedHandle {
    return this.#call('allGather', [input, output], options);
  }

  allToAll(input: Region, output: Region, options: AllToAllOptions & OnGroup = {}): TimedHandle {
    return this.#call('allToAll', [input, output], options);
  }

  broadcast(region: Region, options: BroadcastOptions & OnGroup = {}): TimedHandle {
    return this.#call('broadcast', [region], options);
  }

  reduce(region: Region, options: ReduceOptions & OnGroup = {}): TimedHandle {
    return this.#call('reduce', [region], options);
  }

  barrier(options: CollectiveOptions & OnGroup = {}): TimedHandle {
    return this.#call('barrier', [], options);
  }

  /** This rank is out of data: it contributes nothing to what the others call, until all ranks have joined. */
  join(options: Omit<CollectiveOptions, 'tag'> & OnGroup = {}): TimedHandle {
    return this.#call('join', [], options);
  }

  /** Memory that peers on this host read in place; regions elsewhere are copied. Given back by `free`, or by `close`. */
  allocate<T extends DType>(dtype: T, length: number): Region<T> {
    const bytes = length * bytesPerElement(dtype);
    const segment = this.#joined.inPlace
      ? this.space.createSegment(`region-${process.pid}-${randomBytes(6).toString('hex')}`, bytes)
      : this.space.allocate(bytes);
    const region = segment.allocate(dtype, length);
    this.#segments.set(region.byteOffset, segment);
    return region;
  }

  /**
   * Gives regions of `allocate` back, and has peers let go of them; they must not be used any more. Operations on them have ended here:
   * none ends on a rank before its peers are done with that rank's memory. Once the thread is closed this does nothing.
   */
  async free(...regions: readonly Region[]): Promise<void> {
    if (this.#leaving) return;
    const segments = regions.map((region) => this.#allocated(region));
    const numbers = segments.flatMap((segment) => this.#announced.withdraw(segment) ?? []);
    for (const { byteOffset } of regions) this.#segments.delete(byteOffset);
    try {
      // The thread may put other memory in the same place as soon as it is free: first it must not know the old any more.
      if (numbers.length > 0) await this.#link.request('forget', { segments: numbers });
    } catch (error) {
      if (!this.#link.end) throw error;
    } finally {
      for (const segment of segments) segment.close();
    }
  }

  /** A group of some ranks of the world, in this order; every one of them must ask for the same list. */
  async group(ranks: readonly number[]): Promise<number> {
    return (await this.#link.request('group', { ranks })).id;
  }

  /** Ends a group on this rank; its operations under way fail. */
  async closeGroup(group: number): Promise<void> {
    await this.#link.request('closeGroup', { group });
  }

  /** Forms the world anew from all who live, newcomers included; every living member must ask. */
  async regroup(): Promise<WorldView> {
    const world = await this.#link.request('regroup', {});
    this.#joined = { ...this.#joined, world };
    return world;
  }

  /** What each algorithm costs on a group, if that was measured; `printCosts` makes a text of it. Default the world. */
  costs(group = this.world.id): Promise<GroupCosts | undefined> {
    return this.#link.request('costs', { group });
  }

  /** Measures what each algorithm costs on a group; all its ranks call it together. Default the world. */
  measureCosts(options: Omit<MeasureOptions, 'signal'> & OnGroup = {}): Promise<GroupCosts> {
    const { group = this.world.id, ...others } = options;
    return this.#link.request('measureCosts', { group, options: others });
  }

  /** Finishes what was sent, says goodbye, and ends the thread. Operations under way fail. May be called again. */
  close(): Promise<void> {
    return (this.#leaving ??= this.#leave('close', {}));
  }

  /** Ends the thread at once; the others see this process as lost. */
  abort(error: Error): Promise<void> {
    return (this.#leaving ??= this.#leave('abort', { error: pack(error) }));
  }

  #call<Name extends CollectiveName>(
    collective: Name,
    regions: readonly Region[],
    options: CallOptions[Name] & OnGroup & Pick<CollectiveOptions, 'signal' | 'deadlineMs' | 'isPatient'>,
  ): TimedHandle {
    if (this.#link.end) throw this.#link.end;
    const { signal, group = this.world.id, ...others } = options;
    const packed = regions.map((region) => this.#announced.pack(region));
    const handle = this.#operations.open(collective, options.isPatient ? Infinity : options.deadlineMs);
    const { slot } = handle;
    try {
      // What is left of the options is what the command has: the compiler cannot subtract in generic types.
      const sent = others as unknown as CallOptions[Name];
      this.#link.post({ kind: 'call', collective, slot, group, regions: packed, options: sent });
    } catch (error) {
      this.#operations.discard(handle);
      throw error;
    }
    if (signal) obey(handle, signal);
    return handle;
  }

  #take(report: Exclude<Report, { kind: 'answer' | 'refusal' | 'died' }>): void {
    switch (report.kind) {
      case 'failure':
        return this.#operations.failed(report.slot, unpack(report.error));
      case 'joined':
        this.#joined = report;
        return this.#onJoined?.();
      case 'log':
        return this.#log?.(report.line);
      case 'event':
        return this.#tell(report);
    }
  }

  #tell(report: Extract<Report, { kind: 'event' }>): void {
    if (report.name === 'formed') this.#joined = { ...this.#joined, world: report.event.group };
    if (report.name === 'stalled' && this.events.listenerCount('stalled') === 0) {
      process.stderr.write(`${report.event.text}\n`);
    }
    const emitter: EventEmitter = this.events;
    emitter.emit(report.name, report.event);
  }

  async #leave<Name extends 'close' | 'abort'>(how: Name, ask: Requests[Name]['ask']): Promise<void> {
    try {
      // A thread that is gone has left already.
      if (!this.#link.end) await this.#link.request(how, ask);
    } finally {
      await this.#link.ended();
      for (const segment of this.#segments.values()) segment.close();
      this.#segments.clear();
    }
  }

  #allocated({ byteOffset, dtype, length }: Region): Segment {
    const segment = this.#segments.get(byteOffset);
    if (segment) return segment;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `a region of ${length} ${dtype} was to be freed that this thread did not allocate, or freed before; free what allocate returned, once`,
      { dtype, length },
    );
  }
}

/** The signal is observed here; the thread is sent a request to leave the operation. */
function obey(handle: ThreadHandle, signal: AbortSignal): void {
  if (signal.aborted) return handle.cancel();
  const cancel = (): void => handle.cancel();
  signal.addEventListener('abort', cancel, { once: true });
  handle.onSettled = () => signal.removeEventListener('abort', cancel);
}

function isRegion(regions: Region | readonly Region[]): regions is Region {
  return !Array.isArray(regions);
}
