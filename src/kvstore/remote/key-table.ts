/**
 * The keys of a store: opening them on all cores, bringing the first values, telling a server of
 * them again, and what this worker knows of each. It pushes and pulls nothing. Invariant: keys are
 * numbered and cut the same on all workers, since each of them does it by the same plan in the same
 * order.
 */
import { checkStoreKey, keyText, UsageError } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../../memory/index.ts';
import { checkOperations } from '../../server/index.ts';
import type { Header, KeyShape } from '../../server/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { KeyInit, SeededKeyInit } from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import { planKeys, stretchesOf } from './key-plan.ts';
import type { PlacedPiece } from './key-plan.ts';
import { openRequests } from './open-requests.ts';
import type { KeyOnCore, OpenRequest } from './open-requests.ts';
import type { ServerLines } from './server-lines.ts';
import { copy } from './tensors.ts';

/** What a core was told when keys were opened. */
type OpenHeader = OpenRequest['cores'][number]['header'] & {
  readonly op: 'open';
  readonly batch: number;
  readonly firstPiece: number;
  readonly awaitsValues: boolean;
};

interface OpenedRequest {
  readonly batch: number;
  readonly request: OpenRequest;
  /** Of each core. */
  readonly firstPieces: readonly number[];
  readonly answers: readonly Header[];
  /** Where the first values of each core lie; undefined: another worker brings them. */
  readonly bodies: readonly ByteRange[][] | undefined;
}

/** What this worker knows of a key. */
export interface KnownKey extends KeyShape {
  readonly pieces: readonly (PlacedPiece & { readonly number: number })[];
  /** The last push that was not refused. */
  step: number;
  /** Settles when all pushes so far are answered. */
  pushes: Promise<unknown>;
  /** Since one of them was refused, none was sent. */
  hasRefused: boolean;
  /** For each core: the first element of the key that its server has memory for. */
  readonly firstElements: readonly number[];
  /** The value in the server's memory, where there is one server on this host. */
  value: Region<'float32'> | undefined;
  /** Settles when the staged copies of the key are free again. */
  busy: Promise<unknown>;
}

export class KeyTable {
  readonly #worker: number;
  readonly #servers: ServerLines;
  readonly #kernels: Kernels;
  readonly #space: SharedSpace;
  readonly #chunkBytes: number | undefined;
  readonly #keys = new Map<StoreKey, KnownKey>();
  readonly #attached = new Map<string, Segment>();
  readonly #piecesOnCore: number[];
  /** What each core that has answered was told when keys were opened, by batch. */
  readonly #opened = new Map<CoreLine, Map<number, OpenHeader>>();
  /** The first worker's values, in case that a server is lost before anything else has them. */
  #first: { readonly batch: number; readonly segment: Segment; readonly bodies: readonly ByteRange[][] }[] =
    [];
  #batches = 0;
  /** Somebody works in the memory of a server. */
  #isLent = false;
  /** Whether the servers had values of keys that this worker brought first ones for. */
  foundValues = false;
  /**
   * Held steps that servers had applied before this worker came; the core that is behind counts.
   */
  appliedBefore: number | undefined;

  constructor(worker: number, servers: ServerLines, kernels: Kernels, chunkBytes: number | undefined) {
    this.#worker = worker;
    this.#servers = servers;
    this.#kernels = kernels;
    this.#space = kernels.space;
    this.#chunkBytes = chunkBytes;
    this.#piecesOnCore = servers.lines.map(() => 0);
  }

  all(): Iterable<KnownKey> {
    return this.#keys.values();
  }

  get(key: StoreKey): KnownKey {
    const known = this.#keys.get(key);
    if (known) return known;
    checkStoreKey(this.#worker, key);
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} used key ${keyText(key)}, which is not there; init it first`,
      { worker: this.#worker, key },
    );
  }

  table(key: StoreKey): KnownKey {
    const known = this.get(key);
    if (known.rowLength !== undefined) return known;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} asked for rows of key ${keyText(key)}, which is no table; open it with a row length`,
      { worker: this.#worker, key },
    );
  }

  /** Resolves when the cores know of the keys; the first values come later. */
  async open(inits: readonly (KeyInit | SeededKeyInit)[]): Promise<readonly Promise<unknown>[]> {
    const named = new Set<StoreKey>();
    const shapes = inits.map((init) => this.#shapeOf(init, named));
    const { servers, coresPerServer, lines } = this.#servers;
    const pieces = planKeys(shapes, { servers, coresPerServer, chunkBytes: this.#chunkBytes });
    const byCore = lines.map((_, core) => pieces.filter((piece) => piece.core === core));
    const stretches = shapes.map((shape, i) =>
      stretchesOf(shape, pieces, i, { servers, coresPerServer }).map(({ first, length }) => ({
        first,
        shape: { ...shape, length, ...firstValuesOf(inits[i]!, first) },
      })),
    );
    const requests = openRequests(stretches, byCore);
    const opened: OpenedRequest[] = [];
    const nextPieces = [...this.#piecesOnCore];
    // One after the other: what a server refuses is not followed by more.
    for (const [i, request] of requests.entries()) {
      const batch = this.#batches + i;
      opened.push(await this.#openRequest(batch, request, inits, nextPieces));
      request.cores.forEach((core, j) => (nextPieces[j]! += core.pieces.length));
    }
    this.#batches += requests.length;
    nextPieces.forEach((count, core) => (this.#piecesOnCore[core] = count));
    for (const one of opened) this.#know(one, inits, shapes, stretches);
    return opened.flatMap(({ batch, answers, bodies }) => {
      // The first worker's values count; others were answered when they were there, or when a
      // checkpoint has them.
      const isFilled = answers.every((one) => one.isFilled === true);
      if (bodies !== undefined && isFilled) this.foundValues = true;
      if (bodies === undefined || isFilled) return [];
      return lines.map((line, core) => line.request({ op: 'values', batch }, bodies[core]));
    });
  }

  async #openRequest(
    batch: number,
    request: OpenRequest,
    inits: readonly (KeyInit | SeededKeyInit)[],
    firstPieces: readonly number[],
  ): Promise<OpenedRequest> {
    const first = [...firstPieces];
    // Kept also where servers have them, which may lose them before there is a checkpoint, or
    // before all have answered.
    const bodies = this.#worker === 0 ? this.#keepFirstValues(batch, inits, request) : undefined;
    const answers = await Promise.all(
      this.#servers.lines.map((line, core) => {
        const numbers = { batch, firstPiece: first[core]!, awaitsValues: this.#worker !== 0 };
        return this.#openOn(line, batch, { op: 'open', ...numbers, ...request.cores[core]!.header });
      }),
    );
    this.appliedBefore ??= least(answers.map(({ applied }) => applied as number | undefined));
    return { batch, request, firstPieces: first, answers, bodies };
  }

  /** From now on its keys can be used. */
  #know(
    { request, firstPieces, answers }: OpenedRequest,
    inits: readonly (KeyInit | SeededKeyInit)[],
    shapes: readonly KeyShape[],
    stretches: readonly (readonly KeyOnCore[])[],
  ): void {
    const { firstKey, keyCount, cores } = request;
    const pieces = Array.from({ length: keyCount }, (): KnownKey['pieces'][number][] => []);
    const steps = Array.from({ length: keyCount }, (): (number | undefined)[] => []);
    for (const [core, own] of cores.entries()) {
      for (const [j, piece] of own.pieces.entries()) {
        pieces[piece.key - firstKey]!.push({ ...piece, number: firstPieces[core]! + j });
        steps[piece.key - firstKey]!.push(stepsOf(answers[core]!)[j]);
      }
    }
    for (let i = 0; i < keyCount; i++) {
      const shape = shapes[firstKey + i]!;
      // What no worker is to hold is not brought into its memory here either.
      const isSeeded = 'seed' in inits[firstKey + i]!;
      const value = isSeeded ? undefined : this.#valueAt(answers[0]!, i, shape.length);
      const idle = { pushes: Promise.resolve(), hasRefused: false, busy: Promise.resolve() };
      const firstElements = stretches[firstKey + i]!.map(({ first }) => first);
      const step = least(steps[i]!);
      this.#keys.set(shape.key, { ...shape, pieces: pieces[i]!, firstElements, step, value, ...idle });
    }
  }

  /** The first values, to a server that has lost them before anything was trained. */
  async sendFirstValuesAgain(line: CoreLine, isUrgent: boolean): Promise<void> {
    const core = this.#servers.lines.indexOf(line);
    const opened = this.#opened.get(line);
    for (const { batch, bodies } of this.#first.filter((one) => opened?.has(one.batch))) {
      await line.request({ op: 'values', batch }, bodies[core], () => undefined, isUrgent);
    }
  }

  /** The servers have kept them. */
  forgetFirstValues(): void {
    for (const { segment } of this.#first.splice(0)) segment.close();
  }

  /**
   * Tells a server that was started again of all keys. False: it has not the values of all, which
   * are its own affair.
   */
  async openAgain(line: CoreLine, isUrgent: boolean): Promise<boolean> {
    let isFilled = true;
    for (const header of this.#opened.get(line)?.values() ?? []) {
      const again = { ...header, awaitsValues: false };
      const opened = await line.request(again, [], () => undefined, isUrgent);
      isFilled &&= opened.isFilled === true;
    }
    return isFilled;
  }

  /** The server's own memory of a value, if it can be had. */
  lend(key: StoreKey): Region<'float32'> | undefined {
    const { value } = this.get(key);
    this.#isLent ||= value !== undefined;
    return value;
  }

  /**
   * The server that had the values in its memory is gone. True: somebody may still read them there.
   */
  leaveValues(): boolean {
    for (const key of this.#keys.values()) key.value = undefined;
    return this.#isLent;
  }

  /** Where the keys stand after going back, as each core answers. */
  async askSteps(): Promise<void> {
    const { lines } = this.#servers;
    const steps = await Promise.all(lines.map((line) => this.#stepsOn(line)));
    for (const key of this.#keys.values()) {
      key.step = least(key.pieces.map(({ core, number }) => steps[core]![number]));
    }
  }

  /** Of its pieces, by their numbers. */
  async #stepsOn(line: CoreLine): Promise<readonly number[]> {
    const steps: number[] = [];
    for (const [batch, { firstPiece }] of this.#opened.get(line) ?? []) {
      const answer = await line.request({ op: 'steps', batch });
      for (const [i, step] of stepsOf(answer).entries()) steps[firstPiece + i] = step;
    }
    return steps;
  }

  close(): void {
    this.forgetFirstValues();
    for (const segment of this.#attached.values()) segment.close();
    this.#attached.clear();
  }

  /** One that is lost between its answer and that of the last core is to be told again. */
  async #openOn(line: CoreLine, batch: number, header: OpenHeader): Promise<Header> {
    const answer = await line.request(header);
    const batches = this.#opened.get(line) ?? new Map<number, OpenHeader>();
    this.#opened.set(line, batches.set(batch, header));
    return answer;
  }

  /** A copy of the first values of a request's keys; returns where those of each core lie. */
  #keepFirstValues(
    batch: number,
    inits: readonly (KeyInit | SeededKeyInit)[],
    { firstKey, keyCount, cores }: OpenRequest,
  ): readonly ByteRange[][] {
    const own = inits.slice(firstKey, firstKey + keyCount);
    const elements = own.reduce((sum, one) => sum + ('seed' in one ? 0 : one.value.length), 0);
    const segment = this.#space.allocate(4 * elements + 64 * (own.length + 1));
    const staged = own.map((one) => {
      if ('seed' in one) return undefined;
      const { value } = one;
      const region = segment.allocate('float32', value.length);
      copy(this.#kernels, region, value);
      return region;
    });
    const bodies = cores.map(({ pieces }) =>
      pieces.flatMap(({ key, start, ranges }) => {
        const value = staged[key - firstKey];
        if (value === undefined) return [];
        return ranges.map(([from, length]) => ({
          byteOffset: value.byteOffset + 4 * (start + from),
          byteLength: 4 * length,
        }));
      }),
    );
    const earlier = this.#first.findIndex((one) => one.batch === batch);
    if (earlier >= 0) this.#first.splice(earlier, 1)[0]!.segment.close();
    this.#first.push({ batch, segment, bodies });
    return bodies;
  }

  /** The place of a value that one server on this host has alone. */
  #valueAt({ places }: Header, key: number, length: number): Region<'float32'> | undefined {
    const { servers, isShared } = this.#servers;
    if (servers > 1 || !isShared[0]) return undefined;
    const [name, byteOffset] = (places as [string, number][])[key]!;
    const segment = this.#attached.get(name) ?? this.#attach(name);
    return segment?.region('float32', byteOffset, length);
  }

  /** Undefined: the server is gone already, as the next request finds out. */
  #attach(name: string): Segment | undefined {
    try {
      const segment = this.#space.attachSegment(name);
      this.#attached.set(name, segment);
      return segment;
    } catch (error) {
      if (error instanceof UsageError && error.code === 'SEGMENT_NOT_FOUND') return undefined;
      throw error;
    }
  }

  #shapeOf(init: KeyInit | SeededKeyInit, named: Set<StoreKey>): KeyShape {
    const { key, rowLength, operations } = init;
    const { length } = 'seed' in init ? init : init.value;
    checkStoreKey(this.#worker, key);
    checkOperations(key, operations);
    const isKnown = this.#keys.has(key) || named.has(key);
    named.add(key);
    if (isKnown) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `key ${keyText(key)} is there already; push to it, or use another name`,
        { key },
      );
    }
    if (rowLength === undefined || (rowLength > 0 && Number.isInteger(length / rowLength))) {
      return { key, length, rowLength, ...(operations && { operations }) };
    }
    throw new UsageError(
      'INVALID_ARGUMENT',
      `key ${keyText(key)} has ${length} elements, which are no rows of ${rowLength}; give the table's row length`,
      { key, length, rowLength },
    );
  }
}

function firstValuesOf(init: KeyInit | SeededKeyInit, first: number): Pick<KeyShape, 'firstValues'> {
  if (!('seed' in init)) return {};
  const { initialiser, seed } = init;
  return { firstValues: { initialiser, seed, first } };
}

function stepsOf({ steps }: Header): readonly number[] {
  return steps as readonly number[];
}

/**
 * Pieces of a key may differ after a crash in the middle of a step: the one that is behind counts.
 */
function least(steps: readonly (number | undefined)[]): number {
  return steps.length === 0 ? 0 : Math.min(...steps.map((step) => step ?? 0));
}
