/**
 * The lists of pieces that one connection has announced, and the segments of its worker in which
 * tensors lie: looked up once, so that an exchange names a list only. What is exchanged is the
 * session's business. Invariants: a tensor lies within a segment that is the worker's own; a list
 * is there as a whole or not at all, and what it counts for ends with the connection.
 */
import type { StoreKey, TributaryError } from '../../base/index.ts';
import type { DType, Region, SharedSpace } from '../../memory/index.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { ListEntry, Place, Request } from '../wire/messages.ts';
import type { SpaceRange, TenantOffice } from './office.ts';
import { rangesIn } from './piece.ts';
import type { Piece, PreparedEntry } from './piece.ts';
import { faultOf } from './refusals.ts';
import type { Tenant } from './tenant.ts';

const MAX_LISTS = 2048;

export interface ListHost {
  readonly tenant: Tenant;
  readonly office: TenantOffice;
  readonly space: SharedSpace;
  /** Throws if it is not on this core. */
  pieceOf(number: number): Piece;
  reply(id: number): void;
  refuse(id: number, error: unknown): void;
}

export class SessionLists {
  readonly #worker: number;
  readonly #incarnation: string;
  readonly #host: ListHost;
  readonly #lists = new Map<number, readonly PreparedEntry[]>();
  readonly #segments = new Map<string, SpaceRange>();
  #hasEnded = false;

  constructor(
    { worker, incarnation }: { readonly worker: number; readonly incarnation: string },
    host: ListHost,
  ) {
    this.#worker = worker;
    this.#incarnation = incarnation;
    this.#host = host;
  }

  get(list: number): readonly PreparedEntry[] | undefined {
    return this.#lists.get(list);
  }

  /** The connection is gone. */
  end(): void {
    this.#hasEnded = true;
    const { limits, work } = this.#host.tenant;
    work.drop(this);
    for (const list of this.#lists.values()) limits.giveBackEntries(list.length);
    this.#lists.clear();
  }

  add({ id, list, entries }: Extract<Request, { op: 'list' }>): void {
    if (this.#lists.size >= MAX_LISTS && !this.#lists.has(list)) {
      throw new ProtocolFault(`announced more than ${MAX_LISTS} lists`);
    }
    const { tenant, office } = this.#host;
    // Before anything is done with them that takes time.
    tenant.limits.checkEntries(this.#worker, this.#moreIn(list, entries));
    const pieces = entries.map(({ piece }) => this.#host.pieceOf(piece));
    const segments = entries.flatMap(({ gradient, into }) => [gradient?.[0], into?.[0]]);
    const staged = [...new Set(entries.flatMap(({ gradient }, i) => (gradient ? [] : [pieces[i]!.key.key])))];
    const fail = (error: TributaryError) => this.#host.refuse(id, error);
    const add = (ranges: readonly SpaceRange[]) => {
      if (this.#hasEnded) return;
      const staging = new Map(staged.map((key, i) => [key, ranges[i]!]));
      const steps = this.#prepared(list, entries, pieces, staging);
      tenant.work.run(steps, () => this.#host.reply(id), fail, this);
    };
    const stage = () => {
      if (staged.length === 0) return add([]);
      office.ask({ kind: 'staging', ...this.#holder, keys: staged }, add, fail);
    };
    this.map([...new Set(segments.filter((name) => name !== undefined))], stage, fail);
  }

  /** Makes the segments of the worker known, one after the other. */
  map(names: readonly string[], done: () => void, fail: (error: TributaryError) => void): void {
    const segment = names.find((name) => !this.#segments.has(name));
    if (segment === undefined) return done();
    const take = (range: SpaceRange) => {
      // The memory of its process may have been given back, and must not be taken again.
      if (this.#hasEnded) return;
      this.#segments.set(segment, range);
      this.map(names, done, fail);
    };
    this.#host.office.ask({ kind: 'map', ...this.#holder, segment }, take, fail);
  }

  tensorAt<T extends DType>([segment, byteOffset]: Place, dtype: T, length: number): Region<T> {
    const range = this.#segments.get(segment);
    if (range === undefined) throw new ProtocolFault(`named segment '${segment}', which is not mapped`);
    return this.#region(range, dtype, byteOffset, length);
  }

  /** Throws if it reaches outside. */
  #region<T extends DType>(range: SpaceRange, dtype: T, byteOffset: number, length: number): Region<T> {
    return this.#host.space.adoptSegment(range).region(dtype, byteOffset, length);
  }

  get #holder() {
    const { service, recovery } = this.#host.tenant;
    const [worker, incarnation] = [this.#worker, this.#incarnation];
    return { namespace: service.namespace, core: recovery.core, worker, incarnation };
  }

  #moreIn(list: number, entries: readonly ListEntry[]): number {
    return entries.length - (this.#lists.get(list)?.length ?? 0);
  }

  *#prepared(
    list: number,
    entries: readonly ListEntry[],
    pieces: readonly Piece[],
    staging: ReadonlyMap<StoreKey, SpaceRange>,
  ): Generator<void, void> {
    const prepared: PreparedEntry[] = [];
    try {
      for (const [i, entry] of entries.entries())
        yield void prepared.push(this.#prepare(entry, pieces[i]!, staging));
    } catch (error) {
      throw error instanceof ProtocolFault ? faultOf(`worker ${this.#worker}`, error) : error;
    }
    this.#host.tenant.limits.reserveEntries(this.#worker, this.#moreIn(list, entries));
    this.#lists.set(list, prepared);
  }

  #prepare(entry: ListEntry, piece: Piece, staging: ReadonlyMap<StoreKey, SpaceRange>): PreparedEntry {
    const { shape, key } = piece;
    const isStaged = entry.gradient === undefined;
    const whole = entry.gradient
      ? this.tensorAt(entry.gradient, 'float32', key.length)
      : this.#region(staging.get(key.key)!, 'float32', 0, key.length);
    const gradient = whole.slice(shape.start, shape.length);
    const target =
      entry.into && this.tensorAt(entry.into, 'float32', key.length).slice(shape.start, shape.length);
    return {
      ...{ name: String(entry.piece), piece, gradient, isInPlace: entry.isInPlace },
      staged: isStaged ? rangesIn(gradient, shape) : undefined,
      into: target && rangesIn(target, shape),
    };
  }
}
