/**
 * Requests for rows of tables, of one session: where their bytes go or lie, and what becomes of them. Rows may lie in the
 * worker's memory, anywhere in a tensor; what says which they are is copied from there first, because a worker could
 * change it after it was checked.
 * Invariant: the memory of a request lives until it is answered, whatever becomes of the connection.
 */
import type { TributaryError } from '../../base/index.ts';
import { keyText, UsageError } from '../../base/index.ts';
import type { DType, Region, Segment } from '../../memory/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { PushReply } from '../contribution.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Incoming } from '../wire/message-stream.ts';
import { behindIndices, resultOf } from '../wire/messages.ts';
import type { PieceResult, Place, Request, SharedRows } from '../wire/messages.ts';
import type { CatchUp } from './catch-up.ts';
import type { Piece } from './piece.ts';
import type { Tenant } from './tenant.ts';

export type RowRequest = Extract<Request, { op: 'push-rows' | 'pull-rows' }>;

export interface RowHost {
  readonly tenant: Tenant;
  readonly worker: number;
  readonly catchUp: CatchUp;
  /** Throws if it is not the worker's, or reaches outside. */
  tensorAt<T extends DType>(place: Place, dtype: T, length: number): Region<T>;
  /** `isLogged`: it acknowledges a push. */
  reply(
    id: number,
    header: object,
    body?: readonly ByteRange[],
    onSent?: () => void,
    isLogged?: boolean,
  ): void;
  refuse(id: number, error: unknown): void;
}

/** Rows of one request. */
interface RowBuffer {
  /** Our own memory: the indices and, unless they lie with the worker, the rows. */
  readonly segment: Segment;
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  /** For rows that lie with the worker: which of them belongs to each index. */
  readonly positions: Region<'int32'> | undefined;
  readonly rowLength: number;
  /** Of a push: where the rows that come of it go. */
  readonly answer: Region<'float32'> | undefined;
}

export class RowRequests {
  readonly #host: RowHost;

  constructor(host: RowHost) {
    this.#host = host;
  }

  place(request: RowRequest, piece: Piece, bodyBytes: number): Incoming {
    const { shared, count, op } = request;
    const rowLength = piece.key.rowLength ?? 1;
    const isPush = op === 'push-rows';
    const bytesOfRows = 4 * count * rowLength;
    expectBytes(bodyBytes, shared ? 0 : 4 * count + (isPush ? bytesOfRows : 0));
    this.#checkQuota(piece, count, bytesOfRows);
    const pulls = isPush && request.pulls;
    const buffer = shared ? this.#inPlace(shared, count, rowLength) : this.#buffer(count, rowLength, pulls);
    const { indices, rows } = buffer;
    const into: ByteRange[] = isPush ? [indices, rows] : [indices];
    return {
      into: shared ? [] : into.filter(({ byteLength }) => byteLength > 0),
      done: () => {
        if (isPush) this.#upToDate(request, buffer, () => this.#push(request, buffer));
        else if (request.heldStep !== undefined) this.#pull(request, buffer);
        else this.#upToDate(request, buffer, () => this.#pull(request, buffer));
      },
      dropped: () => this.#giveBack(buffer),
    };
  }

  /** Acts when the rows have what they missed. */
  #upToDate({ id, piece }: RowRequest, buffer: RowBuffer, act: () => void): void {
    const rows = { piece: String(piece), indices: buffer.indices.view };
    this.#host.catchUp.before(id, rows, act, () => this.#giveBack(buffer));
  }

  #push(request: Extract<RowRequest, { op: 'push-rows' }>, buffer: RowBuffer): void {
    const { id, piece, step, samples, isSkipped, pulls, lr } = request;
    const { tenant, worker } = this.#host;
    const { core } = tenant;
    const { indices, rows, positions, answer } = buffer;
    const key = String(piece);
    const refuse = (error: TributaryError) => {
      this.#giveBack(buffer);
      this.#host.refuse(id, error);
    };
    const reply = (pushed: PushReply) => {
      const send = () => this.#reply(id, resultOf(pushed), buffer, answer, true);
      if (!answer || !(pushed.duplicate || isSkipped)) return send();
      // What was applied before, or not at all, has not written its answer.
      this.#upToDate(request, buffer, () => {
        core.pullRows(worker, key, indices, answer, positions);
        send();
      });
    };
    try {
      tenant.recovery.check();
      tenant.takeRate(lr);
      const push = { worker, key, step, samples, isSkipped, indices, rows, positions, answer, pulls };
      core.pushRows(push, reply, refuse);
    } catch (error) {
      this.#giveBack(buffer);
      throw error;
    }
  }

  #pull({ id, piece, heldStep, slot }: Extract<RowRequest, { op: 'pull-rows' }>, buffer: RowBuffer): void {
    const { worker, tenant } = this.#host;
    const { core } = tenant;
    const { indices, rows, positions } = buffer;
    const [key, asked] = [String(piece), [indices, rows, positions] as const];
    try {
      tenant.recovery.check();
      const { version } =
        heldStep === undefined
          ? core.pullRows(worker, key, ...asked, slot)
          : core.pullHeldRows(worker, key, heldStep, ...asked);
      this.#reply(id, [version, 0], buffer, rows, false);
    } catch (error) {
      this.#giveBack(buffer);
      throw error;
    }
  }

  /** `answer`: rows that go back, in the body unless they lie with the worker. */
  #reply(
    id: number,
    result: PieceResult,
    buffer: RowBuffer,
    answer: Region<'float32'> | undefined,
    isLogged: boolean,
  ): void {
    const { segment, positions } = buffer;
    const body = positions || !answer || answer.byteLength === 0 ? [] : [answer];
    // A goodbye must not free what is still being sent.
    const sending = this.#host.tenant.kept.disown(this.#host.worker, segment);
    this.#host.reply(id, { results: [result] }, body, () => sending.close(), isLogged);
  }

  #buffer(count: number, rowLength: number, pulls: boolean): RowBuffer {
    const segment = this.#allocate(4 * count * (1 + rowLength) + 2 * 64);
    const indices = segment.allocate('int32', count);
    const rows = segment.allocate('float32', count * rowLength);
    // Rows have been used when their answer is written.
    return { segment, indices, rows, positions: undefined, rowLength, answer: pulls ? rows : undefined };
  }

  #inPlace(shared: SharedRows, count: number, rowLength: number): RowBuffer {
    const [name, byteOffset] = shared.at;
    const theirs = [byteOffset, behindIndices(byteOffset, count)].map((at) =>
      this.#host.tensorAt([name, at], 'int32', count),
    );
    const rows = this.#host.tensorAt(shared.rows, 'float32', shared.rowCount * rowLength);
    const answer = shared.into && this.#host.tensorAt(shared.into, 'float32', shared.rowCount * rowLength);
    const segment = this.#allocate(8 * count + 2 * 64);
    const [indices, positions] = theirs.map((region) => {
      const own = segment.allocate('int32', count);
      own.view.set(region.view);
      return own;
    });
    const buffer = { segment, indices: indices!, rows, positions, rowLength, answer };
    if (positions!.view.every((row) => row >= 0 && row < shared.rowCount)) return buffer;
    this.#giveBack(buffer);
    throw new ProtocolFault(`named rows of its tensor that are not among its ${shared.rowCount}`);
  }

  #allocate(bytes: number): Segment {
    const { tenant, worker } = this.#host;
    return tenant.kept.take(worker, bytes);
  }

  #giveBack({ segment }: RowBuffer): void {
    this.#host.tenant.kept.drop(this.#host.worker, segment);
  }

  #checkQuota({ key }: Piece, count: number, bytesOfRows: number): void {
    const { tenant, worker } = this.#host;
    const { maxBytes } = tenant.service;
    if (4 * count + bytesOfRows <= maxBytes) return;
    throw new UsageError(
      'OUT_OF_SHARED_MEMORY',
      `worker ${worker} named ${count} rows of key ${keyText(key.key)} at once, which is beyond its namespace's ${maxBytes} bytes; push fewer rows or ask for a larger quota`,
      { worker, key: key.key, count },
    );
  }
}

export function expectBytes(actual: number, expected: number): void {
  if (actual === expected) return;
  throw new ProtocolFault(`sent a body of ${actual} bytes where ${expected} were expected`);
}
