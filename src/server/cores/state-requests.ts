/**
 * Requests for what the update rule keeps of a piece, of one session: it goes out, or comes in, from and to where the rule has
 * it, some elements at a time. It is no checkpoint: which of it is of the same moment is the worker's business, who is told
 * how many updates each answer has seen. Invariant: only slots of the tenant's own pieces are touched, and within them.
 */
import { keyText, UsageError } from '../../base/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Incoming } from '../wire/message-stream.ts';
import type { Request } from '../wire/messages.ts';
import { windowOf } from '../wire/scattered-bytes.ts';
import { rangesIn } from './piece.ts';
import type { Piece } from './piece.ts';
import { expectBytes } from './row-requests.ts';
import type { Tenant } from './tenant.ts';

export type StateRequest = Extract<Request, { op: 'state' | 'pull-state' | 'push-state' | 'set-steps' }>;
type WindowRequest = Extract<StateRequest, { slot: string }>;

type Reply = (id: number, header: object, body?: readonly ByteRange[]) => void;

export class StateRequests {
  readonly #tenant: Tenant;
  readonly #worker: number;
  readonly #reply: Reply;

  constructor(tenant: Tenant, worker: number, reply: Reply) {
    this.#tenant = tenant;
    this.#worker = worker;
    this.#reply = reply;
  }

  place(request: StateRequest, piece: Piece, bodyBytes: number): Incoming {
    expectBytes(bodyBytes, request.op === 'push-state' ? 4 * request.count : 0);
    // Slots stay where they are as long as there is the tenant.
    const into = request.op === 'push-state' ? this.#windowOf(request, piece).bytes : [];
    return { into, done: () => this.#answer(request, piece) };
  }

  #answer(request: StateRequest, piece: Piece): void {
    const { core } = this.#tenant;
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
      case 'push-state':
        return this.#reply(id, {});
      case 'set-steps':
        core.setVersion(this.#worker, String(request.piece), request.steps);
        return this.#reply(id, {});
    }
  }

  #windowOf(
    { op, piece: number, slot, first, count }: WindowRequest,
    piece: Piece,
  ): { readonly bytes: readonly ByteRange[]; readonly version: number } {
    const { key, shape, bytes } = piece;
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
    const region = Object.hasOwn(slots, slot) ? slots[slot] : undefined;
    if (region) return { bytes: windowOf(rangesIn(region, shape), 4 * first, 4 * count), version };
    const kept = Object.keys(slots);
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} named slot '${slot}' of key ${keyText(key.key)}, for which the optimizer keeps ${kept.join(', ') || 'nothing'}; set the same optimizer first`,
      { worker: this.#worker, key: key.key, slot, expected: kept },
    );
  }
}
