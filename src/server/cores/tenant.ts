/**
 * What one core of a server holds of one tenant: its pieces of the tenant's keys, its workers and who of them is here,
 * and where they meet. It knows sessions only as somebody to tell. Invariants: nothing in it is reachable without a
 * session of its own namespace; a worker is waited for from the first join on until it says goodbye or its time is up.
 */
import { UsageError } from '../../base/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import { ServerCore } from '../server-core.ts';
import { optimizerRule } from '../update-rule.ts';
import type { KeyShape, PieceShape, ServiceSettings } from '../wire/messages.ts';
import type { KeyMemory, Office, Service, SpaceRange } from './office.ts';

export interface Piece {
  readonly shape: PieceShape;
  readonly key: KeyShape;
  readonly value: Region<'float32'>;
  /** The ranges of the value, as they travel. */
  readonly valueBytes: readonly ByteRange[];
  readonly bytes: number;
}

/** One call of init: keys that were opened together. */
export interface Batch {
  /** What every worker must have said. */
  readonly plan: string;
  readonly keys: ReadonlySet<string>;
  readonly firstPiece: number;
  readonly pieceCount: number;
  memory: readonly KeyMemory[] | undefined;
  /** The first values are there. */
  isFilled: boolean;
  /** Who waits for the memory or for the values. */
  readonly waiting: (() => void)[];
}

interface Presence {
  incarnation: string;
  /** When its connection broke, by `performance.now`; undefined while it is here. */
  lostAtMs: number | undefined;
}

export class Tenant {
  readonly service: Service;
  readonly batches = new Map<number, Batch>();
  readonly pieces = new Map<number, Piece>();
  /** Pieces that were asked for, which are numbered so far. */
  pieceCount = 0;
  readonly #kernels: Kernels;
  readonly #space: SharedSpace;
  readonly #office: Office;
  readonly #presence = new Map<number, Presence>();
  readonly #released = new Set<number>();
  readonly #slots = new Map<string, SpaceRange>();
  /** Memory of requests under way. It outlives a connection: what was pushed counts while the worker is waited for. */
  readonly #kept = new Map<number, Set<Segment>>();
  readonly #meeting = new Map<number, { readonly number: number; readonly go: () => void }>();
  #meetings = 0;
  #slotNames: readonly string[] = [];
  #chunks = 0;
  #settings: ServiceSettings | undefined;
  #core: ServerCore | undefined;

  constructor(service: Service, kernels: Kernels, office: Office) {
    this.service = service;
    this.#kernels = kernels;
    this.#space = kernels.space;
    this.#office = office;
    if (service.settings) this.#begin(service.settings);
  }

  get core(): ServerCore {
    return this.#core!;
  }

  get settings(): ServiceSettings {
    return this.#settings!;
  }

  /** A worker that has proved itself. The first one settles how the tenant trains. */
  enter(worker: number, incarnation: string, settings: ServiceSettings): void {
    if (this.#settings === undefined) this.#begin(settings);
    const [own, theirs] = [JSON.stringify(this.#settings), JSON.stringify(settings)];
    if (own !== theirs) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} wants to train by ${theirs}, the others by ${own}; start all workers with the same settings`,
        { worker, expected: this.#settings, actual: settings },
      );
    }
    this.#presence.set(worker, { incarnation, lostAtMs: undefined });
    this.#released.delete(worker);
    this.core.admit(worker);
  }

  /** Whether the process that is, or was, this worker is the same. */
  isKnown(worker: number, incarnation: string): boolean {
    return this.#presence.get(worker)?.incarnation === incarnation;
  }

  lose(worker: number): void {
    const presence = this.#presence.get(worker);
    if (presence) presence.lostAtMs ??= performance.now();
  }

  /** Nobody waits for the worker any more. */
  release(worker: number): void {
    this.#presence.delete(worker);
    if (this.#released.has(worker)) return;
    this.#released.add(worker);
    this.#meeting.delete(worker);
    this.core.release(worker);
    for (const segment of this.#kept.get(worker) ?? []) segment.close();
    this.#kept.delete(worker);
    this.#letGo();
    this.#office.ask(
      { kind: 'forget', namespace: this.service.namespace, worker },
      () => undefined,
      () => undefined,
    );
  }

  keep(worker: number, segment: Segment): void {
    const kept = this.#kept.get(worker) ?? new Set();
    this.#kept.set(worker, kept.add(segment));
  }

  drop(worker: number, segment: Segment): void {
    this.#kept.get(worker)?.delete(segment);
    segment.close();
  }

  /** Those whose time to come back is up; in milliseconds until the next one, if any. */
  lookAfter(nowMs: number): number {
    let nextMs = Infinity;
    for (const [worker, { lostAtMs }] of this.#presence) {
      if (lostAtMs === undefined) continue;
      const leftMs = lostAtMs + this.service.graceMs - nowMs;
      if (leftMs > 0) nextMs = Math.min(nextMs, leftMs);
      else {
        this.#office.log(
          `worker ${worker} of '${this.service.namespace}' did not come back; it is counted out`,
        );
        this.release(worker);
      }
    }
    return nextMs;
  }

  /** All workers that are still counted meet here; the number tells a retry from the next meeting. */
  meet(worker: number, number: number, go: () => void): void {
    if (number < this.#meetings) return go();
    this.#meeting.set(worker, { number, go });
    this.#letGo();
  }

  /** Opens what a batch was given memory for; values are those in the memory. */
  fill(batch: Batch): void {
    for (let i = batch.firstPiece; i < batch.firstPiece + batch.pieceCount; i++) {
      const { shape, key, value } = this.pieces.get(i)!;
      const chunks = shape.ranges.map(([start, length]) => ({ start, length }));
      this.core.open({ name: String(i), title: key.key, value, chunks, rowLength: key.rowLength });
    }
    batch.isFilled = true;
    for (const go of batch.waiting.splice(0)) go();
  }

  addPieces(
    batch: Batch,
    keys: readonly KeyShape[],
    shapes: readonly PieceShape[],
    memory: readonly KeyMemory[],
  ): void {
    batch.memory = memory;
    for (const { key, slots } of memory) this.#rememberSlots(key, slots);
    shapes.forEach((shape, i) => {
      const value = this.#regionOf(memory[shape.key]!.value).slice(shape.start, shape.length);
      const valueBytes = rangesIn(value, shape);
      const bytes = valueBytes.reduce((sum, { byteLength }) => sum + byteLength, 0);
      this.pieces.set(batch.firstPiece + i, { shape, key: keys[shape.key]!, value, valueBytes, bytes });
    });
  }

  get slotNames(): readonly string[] {
    return this.#slotNames;
  }

  hasKey(key: string): boolean {
    return [...this.batches.values()].some(({ keys }) => keys.has(key));
  }

  /** Chunks are counted before they are made. */
  reserveChunks(worker: number, pieces: readonly PieceShape[]): void {
    const wanted = pieces.reduce((sum, { ranges }) => sum + ranges.length, 0);
    const { maxChunks, namespace } = this.service;
    if (this.#chunks + wanted > maxChunks) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} wants ${wanted} chunks more in namespace '${namespace}', which has ${this.#chunks} of ${maxChunks} on this core; use larger chunks or ask for a larger quota`,
        { worker, namespace, expected: maxChunks, actual: this.#chunks + wanted },
      );
    }
    this.#chunks += wanted;
  }

  /** The update rule from now on, with memory for what it keeps. */
  setOptimizer(spec: unknown, done: () => void, fail: (error: Error) => void): void {
    const rule = optimizerRule(this.#kernels, spec as never);
    const { namespace } = this.service;
    const keys = [...this.batches.values()].flatMap(({ memory }) => memory ?? []).map(({ key }) => key);
    const shapes = keys.map((key) => ({ key, length: 0, rowLength: undefined }));
    this.#office.ask(
      { kind: 'keys', namespace, keys: shapes, slots: rule.slots },
      (memory) => {
        this.#slotNames = rule.slots;
        for (const { key, slots } of memory) this.#rememberSlots(key, slots);
        this.core.setRule(rule);
        done();
      },
      fail,
    );
  }

  close(): void {
    this.#core?.close();
    for (const segments of this.#kept.values()) for (const segment of segments) segment.close();
    this.#kept.clear();
  }

  #begin(settings: ServiceSettings): void {
    this.#settings = settings;
    this.#core = new ServerCore({
      kernels: this.#kernels,
      consistency: settings.consistency,
      combine: settings.combine,
      // Workers look before they push; one that does not only harms its own tenant.
      nonFinite: 'accept',
      slotRegion: (name, slot) => this.#slotRegion(Number(name), slot),
    });
    for (let worker = 0; worker < settings.workers; worker++) this.#core.admit(worker);
  }

  #slotRegion(piece: number, slot: string): Region<'float32'> {
    const { key, shape } = this.pieces.get(piece)!;
    const range = this.#slots.get(`${slot}\0${key.key}`)!;
    return this.#regionOf(range).slice(shape.start, shape.length);
  }

  #rememberSlots(key: string, slots: Readonly<Record<string, SpaceRange>>): void {
    for (const [slot, range] of Object.entries(slots)) this.#slots.set(`${slot}\0${key}`, range);
  }

  #regionOf({ byteOffset, byteLength }: SpaceRange): Region<'float32'> {
    return this.#space.adoptSegment({ byteOffset, byteLength }).region('float32', 0, byteLength / 4);
  }

  #letGo(): void {
    if (this.#meeting.size === 0) return;
    for (let worker = 0; worker < this.settings.workers; worker++) {
      if (!this.#released.has(worker) && !this.#meeting.has(worker)) return;
    }
    for (const worker of this.#presence.keys()) if (!this.#meeting.has(worker)) return;
    const all = [...this.#meeting.values()];
    this.#meeting.clear();
    this.#meetings = Math.max(...all.map(({ number }) => number)) + 1;
    for (const { go } of all) go();
  }
}

/** The ranges of a piece in a tensor of its length. */
export function rangesIn(tensor: Region<'float32'>, { ranges }: PieceShape): ByteRange[] {
  return ranges.map(([start, length]) => ({
    byteOffset: tensor.byteOffset + 4 * start,
    byteLength: 4 * length,
  }));
}
