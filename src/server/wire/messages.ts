/**
 * What workers and the cores of a server say to each other, and the checks of every field that
 * comes in. Types and pure functions. Terms: a piece is the part of a key that belongs to one core;
 * a list is a set of pieces that travel together, announced once. Invariant: what a `read` function
 * returns has been checked field by field; whatever is malformed is a `ProtocolFault`: a member is
 * answered by an error, anybody else loses the connection.
 */
import { isStoreKey } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';
import type { KeyOperations } from '../../kernels/index.ts';
import { isNonce } from '../../sockets/index.ts';
import type { Aggregation, Combine } from '../aggregation.ts';
import { isElasticShare } from '../consistency.ts';
import type { Consistency } from '../consistency.ts';
import type { PushReply } from '../contribution.ts';
import { operationsFault } from '../key-operations.ts';
import type { RowsMode } from '../server-core.ts';
import type { Updater } from '../update-rule.ts';
import { MAX_RANGES, rangesOfRuns } from './chunk-runs.ts';
import { check, countOf, countsOf, finiteOf, isCount, listOf, malformed, objectOf } from './fields.ts';
import { readFirstValues } from './first-values.ts';
import type { FirstValues } from './first-values.ts';
import type { Header } from './message-stream.ts';

export const SERVER_PROTOCOL_VERSION = 8;
export const MAX_WORKERS = 65536;
/**
 * Checkpoints that a worker can name to go back to: of those that servers keep, which are a few.
 */
const MAX_GATHERED = 1024;
const LINE_BYTES = 64;
const MAX_ELEMENTS = 2 ** 30;
/**
 * Updates that a worker may say a key has seen: far below what the words hold in which rows
 * remember their last one.
 */
export const MAX_STEPS = 2 ** 30;
/** Also a name of a folder, which must not lead out of where it is. */
const NAMESPACE = /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$/;

/** How a tenant's parameters are trained; the same for all its workers. */
export interface ServiceSettings {
  /** Workers (or clients) whose pushes are waited for at the start. */
  readonly workers: number;
  readonly consistency: Consistency;
  readonly combine: Combine;
  /** 'wide' is for comparison only. */
  readonly aggregation: Aggregation;
  readonly rows: RowsMode;
  /** What becomes of pushes before there is an optimizer. Default 'assign'. */
  readonly updater?: Updater | undefined;
  /**
   * Whether pushes are combined, and take effect by `apply`; for synchronous training. Default
   * false.
   */
  readonly isHeld?: boolean | undefined;
}

export interface Hello {
  /** Of another version only the version is known. */
  readonly version: number;
  readonly namespace: string;
  readonly nonce: string;
}

export interface Proof {
  readonly proof: string;
  readonly worker: number;
  /**
   * Chosen anew by every process, so that a restarted worker is told apart from one that
   * reconnects.
   */
  readonly incarnation: string;
  readonly settings: ServiceSettings;
}

export interface Welcome {
  readonly proof: string;
  /** Another one after a restart, when the server has forgotten everything. */
  readonly run: string;
  /** The ports of all cores of this server, at the address by which the worker has come. */
  readonly ports: readonly number[];
  /** The same for each address at which the server listens. */
  readonly addresses: readonly (readonly number[])[];
  /**
   * A segment and the word in it, by which the worker finds out whether it shares memory with this
   * server.
   */
  readonly beacon: { readonly segment: string; readonly word: number } | undefined;
}

export interface KeyShape {
  readonly key: StoreKey;
  /** Elements. */
  readonly length: number;
  readonly rowLength: number | undefined;
  /** The server makes them; undefined: the first worker brings them. */
  readonly firstValues?: FirstValues | undefined;
  /** What is done around its updates; undefined: nothing. */
  readonly operations?: KeyOperations | undefined;
}

export interface PieceShape {
  /** Which of the keys it is a piece of. */
  readonly key: number;
  /** The elements of the key among which its ranges lie: all, or some rows of a table. */
  readonly start: number;
  readonly length: number;
  /** First element and number of elements, counted from `start`. */
  readonly ranges: readonly (readonly [start: number, length: number])[];
}

/** Where a tensor lies in shared memory: the name of the segment, and the first byte in it. */
export type Place = readonly [segment: string, byteOffset: number];

/** Where the places of rows lie whose indices lie at this byte. */
export function behindIndices(byteOffset: number, count: number): number {
  return Math.ceil((byteOffset + 4 * count) / LINE_BYTES) * LINE_BYTES;
}

export interface ListEntry {
  readonly piece: number;
  /** The whole key's gradient; undefined: it comes in the body. */
  readonly gradient: Place | undefined;
  /** Where the whole key's value goes; undefined: in the body of the reply. */
  readonly into: Place | undefined;
  /** The worker reads the server's own memory: the value goes nowhere. */
  readonly isInPlace: boolean;
}

/** Where rows lie in the memory of a worker on this host, or are to go. */
export interface SharedRows {
  /** Their indices and, behind them on the next cache line, the place of each row in the tensor. */
  readonly at: Place;
  /** A tensor of so many rows. */
  readonly rows: Place;
  readonly rowCount: number;
  /** Of a push that pulls: a tensor of as many rows, which receives them. */
  readonly into?: Place | undefined;
}

export type Request = { readonly id: number } & (
  | {
      readonly op: 'open';
      /** Number of the call, the same on all workers. */
      readonly batch: number;
      readonly keys: readonly KeyShape[];
      /** Those of this core; numbered on from those of earlier calls. */
      readonly pieces: readonly PieceShape[];
      readonly firstPiece: number;
      /** Whether the answer waits until the first values are there, which somebody else brings. */
      readonly awaitsValues: boolean;
    }
  | { readonly op: 'values'; readonly batch: number }
  /** Where the pieces of a batch stand, after going back to a checkpoint. */
  | { readonly op: 'steps'; readonly batch: number }
  | { readonly op: 'list'; readonly list: number; readonly entries: readonly ListEntry[] }
  | {
      readonly op: 'exchange';
      readonly list: number;
      /** Which entries of the list. */
      readonly first: number;
      readonly count: number;
      readonly push: boolean;
      readonly pull: boolean;
      /** Of a pull alone: of the combined gradients that are held, not of the values. */
      readonly fromHeld: boolean;
      /** One for each entry, if it pushes or pulls what is held. */
      readonly steps: readonly number[];
      /** 0, where updates are held: the worker had none, and its gradients weigh nothing. */
      readonly samples: number;
      /** Entries whose values are to be left out. */
      readonly skipped: readonly number[];
      /** Learning rate of pushes that take effect one by one; undefined: the last one. */
      readonly lr: number | undefined;
    }
  | {
      readonly op: 'push-rows';
      readonly piece: number;
      readonly step: number;
      readonly samples: number;
      readonly count: number;
      readonly isSkipped: boolean;
      /** As that of an exchange. */
      readonly lr: number | undefined;
      /**
       * Whether the worker sees the rows as they are then: in the answer, at `into`, or where the
       * server has them.
       */
      readonly pulls: boolean;
      /** undefined: indices and rows are in the body. */
      readonly shared: SharedRows | undefined;
    }
  | {
      readonly op: 'pull-rows';
      readonly piece: number;
      readonly count: number;
      /** Rows of the combined gradient that is held of this step; undefined: of the value. */
      readonly heldStep: number | undefined;
      /** Rows of what the rule, or an average, keeps; undefined: of the value. */
      readonly slot: string | undefined;
      /** undefined: the indices are in the body, the rows in that of the answer. */
      readonly shared: SharedRows | undefined;
    }
  /**
   * Where updates are held: what all workers have pushed takes effect, times `scale`. All of them
   * say it.
   */
  | {
      readonly op: 'apply';
      /** Number of the call, from 1. */
      readonly step: number;
      readonly scale: number;
      /** undefined: the learning rate of the rule. */
      readonly lr: number | undefined;
    }
  /**
   * What the update rule keeps of a piece: the names of its slots, and how many updates the piece
   * has seen.
   */
  | { readonly op: 'state'; readonly piece: number }
  /**
   * Elements of a slot, counted through the ranges of the piece; in the body of the answer, or of
   * the request.
   */
  | {
      readonly op: 'pull-state' | 'push-state';
      readonly piece: number;
      /** undefined: of the value itself. */
      readonly slot: string | undefined;
      readonly first: number;
      readonly count: number;
    }
  /**
   * The piece is as after so many updates: its slots have come. In synchronous training, between
   * two steps.
   */
  | { readonly op: 'set-steps'; readonly piece: number; readonly steps: number }
  /** A segment in which rows will lie. */
  | { readonly op: 'map'; readonly segment: string }
  /** The first worker's counts; the number tells a retry from another call. */
  | { readonly op: 'optimizer'; readonly number: number; readonly spec: unknown }
  /**
   * In synchronous training the first worker's counts, when all have said it; else each one's, at
   * once.
   */
  | { readonly op: 'learning-rate'; readonly number: number; readonly lr: number }
  | { readonly op: 'barrier'; readonly number: number }
  /** Asks for nothing but an answer, by which a worker that waits knows that the core is alive. */
  | { readonly op: 'beat' }
  /**
   * The parameters as they are after a step are to be kept; answered at once or when they are on
   * the disk, with the steps of the checkpoints that are there. `common`: the newest that all
   * servers are known to have; null: none is known; undefined: there are no others.
   */
  | {
      readonly op: 'checkpoint';
      readonly step: number;
      readonly isDurable: boolean;
      readonly common: number | null | undefined;
    }
  /**
   * Answered when all checkpoints that the worker asked for are written; an error if one was not,
   * and it was not told. `asked`: the last step that it was answered for; undefined: none.
   */
  | { readonly op: 'checkpoints-written'; readonly asked: number | undefined }
  /** Something was lost: all workers meet before they go back to a checkpoint. */
  | { readonly op: 'rewind'; readonly attempt: string }
  /** On the first core: `steps` are those that the worker could go back to. */
  | { readonly op: 'gather'; readonly attempt: string; readonly steps: readonly number[] }
  /** To the checkpoint of this step, or to where training is if there is none. */
  | {
      readonly op: 'restore';
      readonly step: number | undefined;
      readonly attempts: Readonly<Record<string, string>>;
    }
  /** With bounded staleness: the worker does not count as the slowest until its next push. */
  | { readonly op: 'pause' }
  | { readonly op: 'bye' }
);

/**
 * What comes of a piece; the third number, where updates are held, is of what the core holds: null
 * if it is not finite.
 */
export type PieceResult = readonly [version: number, staleness: number, sumOfSquares?: number | null];

export function resultOf({ version, staleness, sumOfSquares }: PushReply): PieceResult {
  return sumOfSquares === undefined ? [version, staleness] : [version, staleness, sumOfSquares];
}

export function readHello(header: Header): Hello {
  check(header.kind === 'hello' && isCount(header.version), 'hello', header);
  const { version, namespace, nonce } = header;
  if (version !== SERVER_PROTOCOL_VERSION) return { version, namespace: '', nonce: '' };
  check(isNamespace(namespace) && isNonce(nonce), 'hello', header);
  return { version, namespace, nonce };
}

export function readProof(header: Header): Proof {
  const { proof, worker, incarnation } = header;
  check(header.kind === 'proof' && isNonce(proof) && isNonce(incarnation), 'proof', header);
  check(isCount(worker, MAX_WORKERS - 1), 'proof', header);
  return { proof, worker, incarnation, settings: readSettings(header.settings) };
}

export function readSettings(value: unknown): ServiceSettings {
  const settings = objectOf(value, 'settings');
  const { workers, combine, aggregation, rows, updater = 'assign', isHeld = false } = settings;
  check(isCount(workers, MAX_WORKERS) && workers > 0, 'settings', settings);
  check(combine === 'sum' || combine === 'mean', 'settings', settings);
  check(aggregation === 'tall' || aggregation === 'wide', 'settings', settings);
  check(rows === 'lazy' || rows === 'exact', 'settings', settings);
  check(updater === 'assign' || updater === 'accumulate', 'settings', settings);
  const consistency = readConsistency(settings.consistency);
  check(typeof isHeld === 'boolean', 'settings', settings);
  check(!isHeld || consistency.kind === 'synchronous', 'settings', settings);
  return { workers, consistency, combine, aggregation, rows, updater, isHeld };
}

export function readRequest(header: Header): Request {
  const { id, op } = header;
  check(isCount(id), 'request', header);
  switch (op) {
    case 'open': {
      const { awaitsValues } = header;
      check(typeof awaitsValues === 'boolean', op, header);
      return {
        awaitsValues,
        ...{ id, op, batch: countOf(header, 'batch'), firstPiece: countOf(header, 'firstPiece') },
        keys: listOf(header, 'keys').map(readKey),
        pieces: readPieces(listOf(header, 'pieces')),
      };
    }
    case 'values':
    case 'steps':
      return { id, op, batch: countOf(header, 'batch') };
    case 'list':
      return { id, op, list: countOf(header, 'list'), entries: listOf(header, 'entries').map(readEntry) };
    case 'exchange': {
      const { push, pull, fromHeld = false } = header;
      check(typeof push === 'boolean' && typeof pull === 'boolean', 'exchange', header);
      check(typeof fromHeld === 'boolean' && (!fromHeld || (pull && !push)), 'exchange', header);
      return {
        ...{ id, op, push, pull, fromHeld, list: countOf(header, 'list') },
        first: countOf(header, 'first'),
        count: countOf(header, 'count'),
        steps: countsOf(header, 'steps'),
        skipped: countsOf(header, 'skipped'),
        samples: samplesOf(header),
        lr: rateOf(header),
      };
    }
    case 'push-rows': {
      const { isSkipped, pulls = false } = header;
      check(typeof isSkipped === 'boolean' && typeof pulls === 'boolean', op, header);
      const counts = { piece: countOf(header, 'piece'), step: countOf(header, 'step') };
      return {
        ...{ id, op, ...counts, count: countOf(header, 'count'), samples: samplesOf(header) },
        ...{ isSkipped, pulls, shared: readSharedRows(header.shared), lr: rateOf(header) },
      };
    }
    case 'pull-rows': {
      const { slot } = header;
      check(slot === undefined || typeof slot === 'string', op, header);
      return {
        ...{ id, op, piece: countOf(header, 'piece'), count: countOf(header, 'count'), slot },
        heldStep: header.heldStep === undefined ? undefined : countOf(header, 'heldStep'),
        shared: readSharedRows(header.shared),
      };
    }
    case 'apply': {
      return { id, op, step: countOf(header, 'step'), scale: finiteOf(header, 'scale'), lr: rateOf(header) };
    }
    case 'state':
      return { id, op, piece: countOf(header, 'piece') };
    case 'pull-state':
    case 'push-state': {
      const { slot } = header;
      check(slot === undefined || typeof slot === 'string', op, header);
      const window = { first: countOf(header, 'first'), count: countOf(header, 'count') };
      return { id, op, piece: countOf(header, 'piece'), slot, ...window };
    }
    case 'set-steps': {
      const { steps } = header;
      check(isCount(steps, MAX_STEPS), op, header);
      return { id, op, piece: countOf(header, 'piece'), steps };
    }
    case 'map': {
      const { segment } = header;
      check(typeof segment === 'string', op, header);
      return { id, op, segment };
    }
    case 'optimizer':
      return { id, op, number: countOf(header, 'number'), spec: header.spec };
    case 'learning-rate':
      return { id, op, number: countOf(header, 'number'), lr: finiteOf(header, 'lr') };
    case 'beat':
      return { id, op };
    case 'barrier':
      return { id, op, number: countOf(header, 'number') };
    case 'checkpoint': {
      const { isDurable } = header;
      check(typeof isDurable === 'boolean', op, header);
      const { common } = header;
      const isNone = common === undefined || common === null;
      return {
        ...{ id, op, step: countOf(header, 'step'), isDurable },
        common: isNone ? common : countOf(header, 'common'),
      };
    }
    case 'restore': {
      const step = header.step === undefined ? undefined : countOf(header, 'step');
      const attempts = header.attempts as Record<string, string>;
      check(
        typeof attempts === 'object' && attempts !== null && Object.values(attempts).every(isNonce),
        op,
        header,
      );
      return { id, op, step, attempts };
    }
    case 'rewind':
      check(isNonce(header.attempt), op, header);
      return { id, op, attempt: header.attempt };
    case 'gather': {
      const { attempt, steps } = header;
      check(isNonce(attempt) && Array.isArray(steps) && steps.length <= MAX_GATHERED, op, header);
      check(steps.every(Number.isSafeInteger), op, header);
      return { id, op, attempt, steps: steps as number[] };
    }
    case 'checkpoints-written':
      return { id, op, asked: header.asked === undefined ? undefined : countOf(header, 'asked') };
    case 'pause':
    case 'bye':
      return { id, op };
    default:
      throw malformed('request', header);
  }
}

export function readWelcome(header: Header): Welcome {
  const { proof, ports, run } = header;
  check(header.kind === 'welcome' && isNonce(proof) && typeof run === 'string', 'welcome', header);
  check(arePorts(ports) && ports.length > 0, 'welcome', header);
  const { addresses = [ports] } = header;
  check(Array.isArray(addresses) && addresses.every(arePorts), 'welcome', header);
  if (header.beacon === undefined) return { proof, run, ports, addresses, beacon: undefined };
  const { segment, word } = objectOf(header.beacon, 'beacon');
  check(typeof segment === 'string' && isCount(word), 'beacon', header);
  return { proof, run, ports, addresses, beacon: { segment, word } };
}

function arePorts(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((port) => isCount(port, 65535));
}

function rateOf(header: Header): number | undefined {
  return header.lr === undefined ? undefined : finiteOf(header, 'lr');
}

function readKey(value: unknown): KeyShape {
  const shape = objectOf(value, 'key');
  const { key, length, rowLength } = shape;
  check(isStoreKey(key), 'key', shape);
  check(isCount(length, MAX_ELEMENTS), 'key', shape);
  check(
    rowLength === undefined ||
      (isCount(rowLength, MAX_ELEMENTS) && rowLength > 0 && length % rowLength === 0),
    'key',
    shape,
  );
  const firstValues = readFirstValues(shape.firstValues);
  const { operations } = shape;
  check(operations === undefined || operationsFault(operations) === undefined, 'operations', shape);
  return {
    ...{ key, length, rowLength, ...(firstValues && { firstValues }) },
    ...(operations === undefined ? {} : { operations: operations as KeyOperations }),
  };
}

function readPieces(values: readonly unknown[]): PieceShape[] {
  let left = MAX_RANGES;
  return values.map((value) => {
    const shape = objectOf(value, 'piece');
    const [key, start, length] = [countOf(shape, 'key'), countOf(shape, 'start'), countOf(shape, 'length')];
    const ranges = rangesOfRuns(listOf(shape, 'ranges'), length, left);
    left -= ranges.length;
    return { key, start, length, ranges };
  });
}

function readEntry(value: unknown): ListEntry {
  const entry = objectOf(value, 'entry');
  const { isInPlace } = entry;
  check(typeof isInPlace === 'boolean', 'entry', entry);
  const places = { gradient: readPlace(entry.gradient), into: readPlace(entry.into) };
  return { piece: countOf(entry, 'piece'), ...places, isInPlace };
}

function readPlace(value: unknown): Place | undefined {
  if (value === undefined) return undefined;
  check(Array.isArray(value) && value.length === 2, 'place', value);
  const [segment, byteOffset] = value as unknown[];
  check(typeof segment === 'string' && isCount(byteOffset) && byteOffset % 4 === 0, 'place', value);
  return [segment, byteOffset];
}

function readSharedRows(value: unknown): SharedRows | undefined {
  if (value === undefined) return undefined;
  const shared = objectOf(value, 'rows');
  const [at, rows] = [readPlace(shared.at), readPlace(shared.rows)];
  check(at !== undefined && rows !== undefined, 'rows', shared);
  return { at, rows, rowCount: countOf(shared, 'rowCount'), into: readPlace(shared.into) };
}

function readConsistency(value: unknown): Consistency {
  const consistency = objectOf(value, 'consistency');
  const { kind, staleness, alpha } = consistency;
  if (kind === 'synchronous' || kind === 'asynchronous') return { kind };
  if (kind === 'bounded' && isCount(staleness)) return { kind, staleness };
  if (kind === 'elastic' && typeof alpha === 'number' && isElasticShare(alpha)) return { kind, alpha };
  throw malformed('consistency', consistency);
}

export function isNamespace(value: unknown): value is string {
  return typeof value === 'string' && NAMESPACE.test(value);
}

function samplesOf(header: Header): number {
  const samples = finiteOf(header, 'samples');
  check(samples >= 0, 'samples', header);
  return samples;
}
