/**
 * Requests for what the update rule keeps of a piece, or for its value, of one session: it goes
 * out, or comes in, from and to where the rule has it, some elements at a time. It is no
 * checkpoint: which of it is of the same moment is the worker's business, who is told how many
 * updates each answer has seen. Invariants: only slots of the tenant's own pieces are touched, and
 * within them; what comes in waits in memory of its own until rows have the updates that they
 * missed.
 */
import type { Segment } from '../../memory/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import { slotOf } from '../push-checks.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Incoming } from '../wire/message-stream.ts';
import type { Request } from '../wire/messages.ts';
import { windowOf } from '../wire/scattered-bytes.ts';
import type { CatchUp } from './catch-up.ts';
import { rangesIn } from './piece.ts';
import type { Piece } from './piece.ts';
import { expectBytes } from './row-requests.ts';
import type { Tenant } from './tenant.ts';

export type StateRequest = Extract<Request, { op: 'state' | 'pull-state' | 'push-state' | 'set-steps' }>;
type WindowRequest = Extract<StateRequest, { op: 'pull-state' | 'push-state' }>;

type Reply = (id: number, header: object, body?: readonly ByteRange[]) => void;

export class StateRequests {
  readonly #tenant: Tenant;
  readonly #worker: number;
  readonly #catchUp: CatchUp;
  readonly #reply: Reply;

  constructor(tenant: Tenant, worker: number, catchUp: CatchUp, reply: Reply) {
    this.#tenant = tenant;
    this.#worker = worker;
    this.#catchUp = catchUp;
    this.#reply = reply;
  }

  place(request: StateRequest, piece: Piece, bodyBytes: number): Incoming {
    const given = request.op === 'push-state' ? 4 * request.count : 0;
    expectBytes(bodyBytes, given);
    if (given === 0) return { into: [], done: () => this.#upToDate(request, piece, undefined) };
    const { kept } = this.#tenant;
    const segment = kept.take(this.#worker, given);
    return {
      into: [{ byteOffset: segment.byteOffset, byteLength: given }],
      done: () => this.#upToDate(request, piece, segment),
      dropped: () => kept.drop(this.#worker, segment),
    };
  }

  #upToDate(request: StateRequest, piece: Piece, given: Segment | undefined): void {
    const drop = () => {
      if (given) this.#tenant.kept.drop(this.#worker, given);
    };
    const answer = () => {
      try {
        this.#tenant.recovery.check();
        this.#answer(request, piece, given);
      } finally {
        drop();
      }
    };
    this.#catchUp.before(request.id, { piece: String(request.piece) }, answer, drop);
  }

  #answer(request: StateRequest, piece: Piece, given: Segment | undefined): void {
    const { core, space } = this.#tenant;
    const { id } = request;
    switch (request.op) {
      case 'state': {
        const { slots, version } = core.stateOf(this.#worker, String(request.piece));
        return this.#reply(id, { version, slots: Object.keys(slots) });
      }
      case 'pull-state': {
        const { bytes, version } = this.#windowOf(request, piece);
        return this.#reply(id, { version }, bytes);
      }
      case 'push-state': {
        const { bytes } = this.#windowOf(request, piece);
        const memory = new Uint8Array(space.buffer);
        let at = given?.byteOffset ?? 0;
        for (const { byteOffset, byteLength } of bytes) {
          memory.copyWithin(byteOffset, at, (at += byteLength));
        }
        return this.#reply(id, {});
      }
      case 'set-steps':
        core.setVersion(this.#worker, String(request.piece), request.steps);
        return this.#reply(id, {});
    }
  }

  #windowOf(
    { op, piece: number, slot, first, count }: WindowRequest,
    piece: Piece,
  ): { readonly bytes: readonly ByteRange[]; readonly version: number } {
    const { key, shape, bytes, value } = piece;
    if (4 * (first + count) > bytes) {
      throw new ProtocolFault(
        `named elements ${first} to ${first + count} of piece ${number}, which has ${bytes / 4}`,
      );
    }
    const { core } = this.#tenant;
    const { slots, version } =
      op === 'push-state'
        ? core.stateToSet(this.#worker, String(number))
        : core.stateOf(this.#worker, String(number));
    const region = slotOf({ slots, value, title: key.key }, this.#worker, slot);
    return { bytes: windowOf(rangesIn(region, shape), 4 * first, 4 * count), version };
  }
}
