/**
 * Requests to a parameter server as a worker makes them, and what a hostile one makes of them: fields of other kinds and
 * sizes, bits, lengths and ends. Pure but for the random numbers it is given. Invariant: the same seed gives the same bytes.
 */
import type { Random } from '../../src/base/index.ts';
import { encodeHead, PREFIX_BYTES } from '../../src/server/wire/frame.ts';

export interface Frame {
  readonly header: Record<string, unknown>;
  readonly body: Buffer;
}

/** Elements of the dense key and of the table, whose rows have four. */
export const DENSE = 32;
const TABLE = 32;
const ROW = 4;

const NOTHING = Buffer.alloc(0);
const ATTEMPT = 'ab'.repeat(32);
const ENTRIES = [{ piece: 0, isInPlace: false }];

function frame(header: Record<string, unknown>, body: Buffer = NOTHING): Frame {
  return { header, body };
}

/** Opens both keys; said first on every connection. */
export function setup(): Frame[] {
  const keys = [
    { key: 'w', length: DENSE },
    { key: 't', length: TABLE, rowLength: ROW },
  ];
  const pieces = [
    { key: 0, start: 0, length: DENSE, ranges: [[0, 16], [16, 16]] }, // prettier-ignore
    { key: 1, start: 0, length: TABLE, ranges: [[0, TABLE]] },
  ];
  return [
    frame({ op: 'open', batch: 0, keys, pieces, firstPiece: 0, awaitsValues: false }),
    frame({ op: 'values', batch: 0 }, Buffer.alloc(4 * (DENSE + TABLE))),
    frame({ op: 'list', list: 0, entries: ENTRIES }),
  ];
}

/** What a worker says while it trains. */
export function trainingFrames(): Frame[] {
  const rows = Buffer.alloc(8 + 2 * 4 * ROW);
  rows.writeInt32LE(3, 4);
  const exchange = { op: 'exchange', list: 0, first: 0, count: 1, samples: 1, skipped: [] };
  const gradient = Buffer.alloc(4 * DENSE, 1);
  return [
    ...setup(),
    frame({ ...exchange, push: true, pull: true, steps: [1] }, gradient),
    frame({ ...exchange, push: true, pull: false, steps: [2] }, gradient),
    frame({ ...exchange, push: false, pull: true, steps: [] }),
    frame({ op: 'push-rows', piece: 1, step: 1, samples: 1, count: 2, isSkipped: false }, rows),
    frame({ op: 'pull-rows', piece: 1, count: 2 }, rows.subarray(0, 8)),
    frame({ op: 'pull-rows', piece: 1, count: 2, heldStep: 1 }, rows.subarray(0, 8)),
    frame({ ...exchange, push: false, pull: true, fromHeld: true, steps: [1] }),
    frame({ op: 'apply', step: 1, scale: 0.5, lr: 0.1 }),
    frame({ op: 'optimizer', number: 0, spec: { name: 'sgd', lr: 0.1, momentum: 0.9 } }),
    frame({ op: 'state', piece: 1 }),
    frame({ op: 'pull-state', piece: 1, slot: 'momentum_buffer', first: 4, count: 8 }),
    frame(
      { op: 'push-state', piece: 0, slot: 'momentum_buffer', first: 8, count: 16 },
      gradient.subarray(64),
    ),
    frame({ op: 'set-steps', piece: 1, steps: 3 }),
    frame({ op: 'barrier', number: 0 }),
    frame({ op: 'checkpoint', step: 1, isDurable: false }),
    frame({ op: 'checkpoint', step: 2, isDurable: true }),
    frame({ op: 'map', segment: 'of nobody' }),
    frame({ op: 'rewind', attempt: ATTEMPT }),
    frame({ op: 'gather', attempt: ATTEMPT, steps: [1, 2] }),
    frame({ op: 'restore', step: 1, attempts: { 0: ATTEMPT } }),
    frame({ op: 'restore', attempts: { 0: ATTEMPT } }),
    frame({ op: 'bye' }),
  ];
}

const ODD: readonly unknown[] = [
  ...[0, 1, 2, 3, 4, 7, 8, 31, 32, 33, 255, 1023, 65_535, 2 ** 31 - 1, 2 ** 32, 2 ** 40, 2 ** 53, 1e308],
  ...[-1, 0.5, -0, null, true, false, '', 'w', 't', '0', '__proto__', 'constructor', [], [0], [[0, 1]], {}],
  ...[[0, 0], [[0, 32]], [[0, 16], [0, 16]], [-1], [1, 2, 3], { length: 3 }, { name: 'adam' }, ['', 0]], // prettier-ignore
];
/** Of requests without a body, those that are worth making often. */
const BODILESS: ReadonlySet<unknown> = new Set([
  ...['apply', 'checkpoint', 'list', 'optimizer', 'pull-state', 'set-steps'],
]);
/** Each is a segment of its own, and many of them make every further one slow. */
const MAX_BATCHES = 40;
const OPS = [
  ...['open', 'values', 'list', 'exchange', 'push-rows', 'pull-rows', 'apply', 'optimizer', 'barrier', 'bye'],
  ...['state', 'pull-state', 'push-state', 'set-steps', 'checkpoint', 'map', 'rewind', 'gather', 'restore'],
];

export class Mutations {
  readonly #random: Random;
  readonly #frames = trainingFrames();
  #batch = 1;

  constructor(random: Random) {
    this.#random = random;
  }

  /** A mutated frame whose lengths are right, so that others can follow it. */
  framed(id: number): Uint8Array {
    const fate = this.#below(100);
    // Most must be understood, or the server would close before it has read the next.
    if (fate < 97) {
      const { header, body } = this.#oneOf(
        this.#frames.filter(
          ({ header, body }) => body.length > 0 || BODILESS.has(header.op) || header.fromHeld === true,
        ),
      );
      return this.#encode({ id, ...this.#another(header) }, this.#noise(body));
    }
    const { header, body } = this.#oneOf(this.#frames);
    if (fate < 99) return this.#encode({ id, ...this.#withOddField(header) }, this.#fitting(header, body));
    if (this.#below(2) === 0) return this.#encode({ id, ...header, op: this.#oneOf(OPS) }, body);
    const bytes = Buffer.from(this.#encode({ id, ...header }, body));
    for (let i = this.#below(4); i >= 0; i--) {
      bytes[PREFIX_BYTES + this.#below(bytes.length - PREFIX_BYTES)]! ^= 1 << this.#below(8);
    }
    return bytes;
  }

  /** A frame that says wrongly where it ends, or does not begin as one. */
  broken(id: number): Uint8Array {
    const { header, body } = this.#oneOf(this.#frames);
    const bytes = Buffer.from(this.#encode({ id, ...header }, body));
    switch (this.#below(5)) {
      case 0:
        bytes.writeUInt32LE(this.#oneOf([0, 1, 17, 2 ** 16, 2 ** 26, 2 ** 32 - 1]), 4);
        return bytes;
      case 1:
        bytes.writeBigUInt64LE(this.#oneOf([0n, 1n, 64n, 2n ** 20n, 2n ** 32n, 2n ** 64n - 1n]), 8);
        return bytes;
      case 2:
        return bytes.subarray(0, this.#below(bytes.length));
      case 3:
        return bytes.map(() => this.#below(256));
      default:
        return Buffer.concat([bytes.subarray(0, this.#below(bytes.length)), bytes]);
    }
  }

  #encode(header: object, body: Buffer): Uint8Array {
    return Buffer.concat([encodeHead(header, body.length), body]);
  }

  /** The same request about another step, which may be the right one. */
  #another(header: Record<string, unknown>): Record<string, unknown> {
    const step = this.#below(8);
    const samples = this.#oneOf([1, 1, 2, 1e-30, 1e300, 0]);
    if (header.op === 'apply') return { ...header, step, scale: this.#oneOf([0, 1, -1, 1e-300, 1e300]) };
    if (header.op === 'checkpoint') return { ...header, step, isDurable: this.#below(2) === 0 };
    if (header.op === 'list') return { ...header, list: this.#below(4), entries: this.#entries() };
    if (header.op === 'set-steps') return { ...header, steps: this.#oneOf([0, step, 2 ** 30]) };
    if (header.op === 'pull-state') return { ...header, first: 4 * step, count: this.#oneOf([0, 1, 4]) };
    if (header.op === 'push-state') return { ...header, first: this.#below(17) };
    if (header.op === 'push-rows') return { ...header, step, samples, isSkipped: this.#below(2) === 0 };
    if (header.heldStep !== undefined) return { ...header, heldStep: step };
    if (header.op !== 'exchange') return header;
    return { ...header, steps: [step], samples, skipped: this.#oneOf([[], [0], [5, 5]]) };
  }

  /** Pieces of the tenant again and again, with places that are nobody's. */
  #entries(): readonly object[] {
    return Array.from({ length: this.#below(4) }, () => ({
      ...{ piece: this.#below(2), isInPlace: this.#below(2) === 0 },
      ...(this.#below(16) === 0 ? { into: ['of nobody', 64 * this.#below(4)] } : {}),
    }));
  }

  /** Bodies of the right length: gradients of anything, indices in and out of the table. */
  #noise(body: Buffer): Buffer {
    const copy = Buffer.from(body);
    if (copy.length === 0) return copy;
    for (let i = this.#below(6); i >= 0; i--) copy[this.#below(copy.length)] = this.#below(256);
    return copy;
  }

  /** Mostly the body that belongs to the request, so that it is the field which is looked at. */
  #fitting(header: Record<string, unknown>, body: Buffer): Buffer {
    if (this.#below(8) > 0 || header.op === 'barrier') return body;
    return Buffer.alloc(this.#oneOf([0, 1, 4, 8, 64, 128, 256, 4096]), this.#below(256));
  }

  #withOddField(header: Record<string, unknown>): Record<string, unknown> {
    const copy = structuredClone(header);
    // New keys and batches too, until the quota is reached.
    if (copy.op === 'open' && this.#batch < MAX_BATCHES && this.#below(4) === 0) {
      const batch = this.#batch++;
      const length = this.#oneOf([0, 1, 16, 1000, 2 ** 20, 2 ** 30]);
      const ranges = length === 0 ? [] : [[0, length]];
      const pieces = [{ key: 0, start: 0, length, ranges }];
      return { ...copy, batch, keys: [{ key: `k${batch}`, length }], pieces, firstPiece: 2 + this.#below(9) };
    }
    let at: Record<string, unknown> = copy;
    for (let depth = 0; depth < 4; depth++) {
      const name = this.#oneOf(Object.keys(at));
      const inner = at[name];
      if (depth < 3 && typeof inner === 'object' && inner !== null && Object.keys(inner).length > 0) {
        if (this.#below(3) > 0) {
          at = inner as Record<string, unknown>;
          continue;
        }
      }
      if (this.#below(6) === 0 && !Array.isArray(at)) delete at[name];
      else at[name] = this.#oneOf(ODD);
      break;
    }
    return copy;
  }

  #below(limit: number): number {
    return this.#random.below(limit);
  }

  #oneOf<T>(values: readonly T[]): T {
    return values[this.#below(values.length)]!;
  }
}
