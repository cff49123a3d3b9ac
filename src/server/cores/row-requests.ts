/**
 * Requests for rows of tables, of one session: where their bytes go or lie, and what becomes of them. Rows may lie in the
 * worker's memory; their indices are copied from there first, because a worker could change them after they were checked.
 * Invariant: the memory of a request lives until it is answered, whatever becomes of the connection.
 */
import { TributaryError, UsageError } from '../../base/index.ts';
import type { DType, Region, Segment, SharedSpace } from '../../memory/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { PushReply } from '../contribution.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Incoming } from '../wire/message-stream.ts';
import { rowsBehind } from '../wire/messages.ts';
import type { Place, Request } from '../wire/messages.ts';
import type { Piece } from './piece.ts';
import type { Tenant } from './tenant.ts';

type RowRequest = Extract<Request, { op: 'push-rows' | 'pull-rows' }>;

export interface RowHost {
  readonly tenant: Tenant;
  readonly worker: number;
  readonly space: SharedSpace;
  /** Throws if it is not the worker's, or reaches outside. */
  tensorAt<T extends DType>(place: Place, dtype: T, length: number): Region<T>;
  reply(id: number, header: object, body?: readonly ByteRange[], onSent?: () => void): void;
  refuse(id: number, error: unknown): void;
}

/** Rows of one request. */
interface RowBuffer {
  /** Our own memory: the indices and, unless they lie with the worker, the rows. */
  readonly segment: Segment;
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  /** The indices as the worker has them. */
  readonly theirs: Region<'int32'> | undefined;
}

export class RowRequests {
  readonly #host: RowHost;

  constructor(host: RowHost) {
    this.#host = host;
  }

  place(request: RowRequest, piece: Piece, bodyBytes: number): Incoming {
    const { at, count, op } = request;
    const rowLength = piece.key.rowLength ?? 1;
    const isPush = op === 'push-rows';
    const bytesOfRows = 4 * count * rowLength;
    expectBytes(bodyBytes, at ? 0 : 4 * count + (isPush ? bytesOfRows : 0));
    this.#checkQuota(piece, count, bytesOfRows);
    const buffer = at ? this.#inPlace(at, count, rowLength) : this.#buffer(count, rowLength);
    const { indices, rows } = buffer;
    const into: ByteRange[] = isPush ? [indices, rows] : [indices];
    return {
      into: at ? [] : into.filter(({ byteLength }) => byteLength > 0),
      done: () => {
        if (buffer.theirs) indices.view.set(buffer.theirs.view);
        if (isPush) this.#push(request, buffer);
        else this.#pull(request, buffer);
      },
      dropped: () => this.#giveBack(buffer),
    };
  }

  #push(
    { id, piece, step, samples, isSkipped }: Extract<RowRequest, { op: 'push-rows' }>,
    buffer: RowBuffer,
  ): void {
    const { tenant, worker } = this.#host;
    const { core, recovery } = tenant;
    const { indices, rows } = buffer;
    const key = String(piece);
    const answer = (result: PushReply | TributaryError) => {
      this.#giveBack(buffer);
      if (result instanceof TributaryError) this.#host.refuse(id, result);
      else this.#host.reply(id, { results: [[result.version, result.staleness]] });
    };
    try {
      if (recovery.isLogging && core.nextStep(worker, key) === step && !isSkipped) {
        recovery.log({ kind: 'rows', worker, key, step, samples, indices: indices.view, rows: rows.view });
      }
      core.pushRows({ worker, key, step, samples, isSkipped, indices, rows }, answer, answer);
    } catch (error) {
      this.#giveBack(buffer);
      throw error;
    }
  }

  #pull({ id, piece }: RowRequest, buffer: RowBuffer): void {
    const { tenant, worker } = this.#host;
    const { segment, indices, rows, theirs } = buffer;
    try {
      const { version } = tenant.core.pullRows(worker, String(piece), indices, rows);
      // A goodbye must not free what is still being sent.
      const sending = tenant.disown(worker, segment);
      const body = theirs || rows.byteLength === 0 ? [] : [rows];
      this.#host.reply(id, { results: [[version, 0]] }, body, () => sending.close());
    } catch (error) {
      this.#giveBack(buffer);
      throw error;
    }
  }

  #buffer(count: number, rowLength: number): RowBuffer {
    const segment = this.#allocate(4 * count * (1 + rowLength) + 2 * 64);
    const indices = segment.allocate('int32', count);
    return { segment, indices, rows: segment.allocate('float32', count * rowLength), theirs: undefined };
  }

  #inPlace([name, byteOffset]: Place, count: number, rowLength: number): RowBuffer {
    const theirs = this.#host.tensorAt([name, byteOffset], 'int32', count);
    const rows = this.#host.tensorAt([name, rowsBehind(byteOffset, count)], 'float32', count * rowLength);
    const segment = this.#allocate(4 * count + 64);
    return { segment, indices: segment.allocate('int32', count), rows, theirs };
  }

  #allocate(bytes: number): Segment {
    const { space, tenant, worker } = this.#host;
    const segment = space.allocate(bytes);
    tenant.keep(worker, segment);
    return segment;
  }

  #giveBack({ segment }: RowBuffer): void {
    this.#host.tenant.drop(this.#host.worker, segment);
  }

  #checkQuota({ key }: Piece, count: number, bytesOfRows: number): void {
    const { tenant, worker } = this.#host;
    const { maxBytes } = tenant.service;
    if (4 * count + bytesOfRows <= maxBytes) return;
    throw new UsageError(
      'OUT_OF_SHARED_MEMORY',
      `worker ${worker} named ${count} rows of key '${key.key}' at once, which is beyond its namespace's ${maxBytes} bytes; push fewer rows or ask for a larger quota`,
      { worker, key: key.key, count },
    );
  }
}

export function expectBytes(actual: number, expected: number): void {
  if (actual === expected) return;
  throw new ProtocolFault(`sent a body of ${actual} bytes where ${expected} were expected`);
}
