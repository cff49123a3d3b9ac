/**
 * One admitted connection of one worker to one core: understands its requests, finds the memory
 * they mean, hands them to the tenant and answers. Invariants: it touches its own tenant only; a
 * request that is refused is answered by an error that names what was wrong, and changes nothing;
 * whatever a worker names is looked up, never computed with.
 */

import type { PackedError, TributaryError } from '../../base/index.ts';
import type { ByteRange } from '../../sockets/index.ts';
import type { PushReply } from '../contribution.ts';
import { ProtocolFault } from '../wire/frame.ts';
import type { Header, Incoming, MessageStream, StreamResources, StreamUser } from '../wire/message-stream.ts';
import { countOf } from '../wire/fields.ts';
import { readRequest, resultOf } from '../wire/messages.ts';
import type { PieceResult, Request } from '../wire/messages.ts';
import { checkPlan, planText } from './batch.ts';
import type { Batch } from './batch.ts';
import { CatchUp } from './catch-up.ts';
import type { TenantOffice } from './office.ts';
import { rangesIn } from './piece.ts';
import type { Piece, PreparedEntry } from './piece.ts';
import { atOnceThoughHeld, faultOf, keepsNone, notAsStored, otherPlan, packedForOthers } from './refusals.ts';
import { expectBytes, RowRequests } from './row-requests.ts';
import type { RowRequest } from './row-requests.ts';
import { SessionLists } from './session-lists.ts';
import { StateRequests } from './state-requests.ts';
import type { StateRequest } from './state-requests.ts';
import type { Tenant } from './tenant.ts';
import { RequestsUnderWay } from './tenant-limits.ts';

type RequestOf<Op extends Request['op']> = Extract<Request, { op: Op }>;

/**
 * What answers that are not sent yet may take before no more is read from the connection; see
 * `TenantLimits`, too.
 */
const MAX_UNSENT_BYTES = 2 ** 20;
const NOTHING: readonly ByteRange[] = [];

export class Session implements StreamUser {
  readonly tenant: Tenant;
  readonly worker: number;
  readonly incarnation: string;
  /** Said goodbye: the end of the connection is no loss. */
  hasLeft = false;
  /** Another connection of the same worker has taken its place. */
  isReplaced = false;
  readonly #stream: MessageStream;
  readonly #resources: StreamResources;
  readonly #lists: SessionLists;
  readonly #catchUp: CatchUp;
  readonly #rows: RowRequests;
  readonly #state: StateRequests;
  readonly #isTurnOver: () => boolean;
  /** The rest of a request that takes longer than a turn; true when it is done. */
  #work: (() => boolean) | undefined;
  readonly #underWay: RequestsUnderWay;
  #hasEnded = false;

  /** `isTurnOver`: whether others should be served before more is done. */
  constructor(
    tenant: Tenant,
    identity: { readonly worker: number; readonly incarnation: string },
    stream: MessageStream,
    resources: StreamResources,
    office: TenantOffice,
    isTurnOver: () => boolean,
  ) {
    this.tenant = tenant;
    this.worker = identity.worker;
    this.incarnation = identity.incarnation;
    this.#stream = stream;
    this.#resources = resources;
    this.#isTurnOver = isTurnOver;
    this.#underWay = new RequestsUnderWay(tenant.limits);
    const refuse = (id: number, error: unknown) => this.#refuse(id, error);
    this.#catchUp = new CatchUp({ tenant, refuse, attempt: (...args) => this.#attempt(...args) });
    this.#lists = new SessionLists(identity, {
      ...{ tenant, office, space: resources.space, refuse },
      pieceOf: (number) => this.#pieceOf(number),
      reply: (id) => this.#reply(id, {}),
    });
    this.#rows = new RowRequests({
      ...{ tenant, worker: this.worker, catchUp: this.#catchUp, refuse },
      tensorAt: (place, dtype, length) => this.#lists.tensorAt(place, dtype, length),
      reply: (...args) => this.#reply(...args),
    });
    this.#state = new StateRequests(tenant, this.worker, this.#catchUp, (...args) => this.#reply(...args));
  }

  /** Whether nothing more is to be read from the connection for now. */
  get isPaused(): boolean {
    if (this.#work !== undefined || this.#stream.heldBytes > MAX_UNSENT_BYTES) return true;
    const { limits, work } = this.tenant;
    return work.isBusy || limits.isOverUnsent || this.#stream.isBlocked;
  }

  get hasWork(): boolean {
    return this.#work !== undefined && !this.tenant.work.isBusy;
  }

  /** Does more of what takes longer than a turn. */
  goOn(): void {
    if (this.hasWork && this.#work!()) this.#work = undefined;
  }

  /** The connection is gone: nothing more is done for it, and nobody waits for its answers. */
  end(): void {
    this.#hasEnded = true;
    this.#work = undefined;
    this.#catchUp.end();
    this.#underWay.end();
    for (const batch of this.tenant.batches.values()) {
      batch.waiting = batch.waiting.filter(({ owner }) => owner !== this);
    }
    this.#lists.end();
  }

  receive(header: Header, bodyBytes: number, headerBytes: number): Incoming {
    if (this.hasLeft || this.isReplaced) throw new ProtocolFault('spoke after its goodbye');
    const id = countOf(header, 'id');
    this.#underWay.add(id, headerBytes);
    try {
      this.tenant.limits.checkAsked(this.worker);
      const into = this.#placeOfBody(readRequest(header), bodyBytes);
      return { ...into, done: () => this.#attempt(id, into.done) };
    } catch (error) {
      // The body comes all the same; only then is the next request.
      return { into: undefined, done: () => this.#refuse(id, error) };
    }
  }

  #placeOfBody(request: Request, bodyBytes: number): Incoming {
    switch (request.op) {
      case 'values':
        return this.#placeOfValues(request, bodyBytes);
      case 'exchange':
        return this.#placeOfGradients(request, bodyBytes);
      case 'push-rows':
      case 'pull-rows':
        this.tenant.recovery.check();
        if (request.op === 'push-rows') this.tenant.journal.check();
        if (request.op === 'push-rows' && request.pulls) this.#checkNotHeld();
        return this.#rows.place(request, this.#pieceOf(request.piece), bodyBytes);
      case 'state':
      case 'pull-state':
      case 'push-state':
      case 'set-steps':
        this.tenant.recovery.check();
        return this.#state.place(request, this.#pieceOf(request.piece), bodyBytes);
      default:
        if (bodyBytes > 0) throw new ProtocolFault(`sent a body of ${bodyBytes} bytes with '${request.op}'`);
        return { into: NOTHING, done: () => this.#answer(request) };
    }
  }

  #answer(
    request: Exclude<Request, { op: 'values' | 'exchange' | RowRequest['op'] | StateRequest['op'] }>,
  ): void {
    const { id } = request;
    switch (request.op) {
      case 'open':
        return this.#whenReady(id, () => this.#open(request));
      case 'steps':
        return this.#reply(id, { steps: this.#stepsOf(this.#batchOf(request.batch)) });
      case 'list':
        return this.#lists.add(request);
      case 'apply': {
        const { step, scale, lr } = request;
        return this.#catchUp.beforeApply(id, () => {
          this.tenant.recovery.check();
          this.tenant.core.apply({ worker: this.worker, step, scale, lr });
          this.#reply(id, {});
        });
      }
      case 'map':
        return this.#lists.map(
          [request.segment],
          () => this.#reply(id, {}),
          (error) => this.#refuse(id, error),
        );
      case 'optimizer':
        return this.#whenReady(id, () =>
          this.tenant.optimizers.agree(
            ...([this.worker, request.number, request.spec] as const),
            () => this.#replyLogged(id, {}),
            (error) => this.#refuse(id, error),
          ),
        );
      case 'learning-rate':
        return this.#setLearningRate(request);
      case 'beat':
        return this.#reply(id, { absent: this.tenant.absent });
      case 'barrier':
        return this.#meet(id, 'barrier', String(request.number), () => this.#reply(id, {}));
      case 'checkpoint':
        return this.#whenReady(id, () => this.#checkpoint(request));
      case 'checkpoints-written':
        return this.#whenReady(id, () =>
          this.tenant.checkpoints.settle(
            ...([this.worker, request.asked] as const),
            () => this.#reply(id, {}),
            (error) => this.#refuse(id, error),
          ),
        );
      case 'rewind':
        return this.#whenReady(id, () =>
          this.tenant.recovery.rewind(
            ...([this.worker, request.attempt] as const),
            (checkpoints) => this.#reply(id, { checkpoints }),
            (error) => this.#refuse(id, error),
          ),
        );
      case 'gather':
        return this.tenant.recovery.gather(
          ...([this.worker, request.attempt, request.steps] as const),
          (attempts, step) => this.#reply(id, { attempts, step }),
          (error) => this.#refuse(id, error),
        );
      case 'restore':
        return this.tenant.recovery.restore(
          request.step,
          request.attempts,
          () => this.#reply(id, {}),
          (error) => this.#refuse(id, error),
        );
      case 'pause':
        this.tenant.core.pause(this.worker);
        return this.#reply(id, {});
      case 'bye':
        this.hasLeft = true;
        this.tenant.release(this.worker);
        return this.#reply(id, {});
    }
  }

  /** In synchronous training all workers have made the same steps when the last has come. */
  #setLearningRate({ id, number, lr }: RequestOf<'learning-rate'>): void {
    const { tenant } = this;
    const set = (rate: number) =>
      this.#attempt(id, () => {
        tenant.setLearningRate(rate);
        this.#replyLogged(id, {});
      });
    tenant.recovery.check();
    if (!tenant.isSynchronous) return this.#whenReady(id, () => set(lr));
    this.#meet(id, 'learning rate', `${number} ${lr}`, (tokens) => {
      // It has met the others before, and only the answer was lost.
      if (tokens === undefined) return this.#reply(id, {});
      const [, first] = Object.entries(tokens).sort(([a], [b]) => Number(a) - Number(b))[0]!;
      set(Number(first.split(' ').at(-1)));
    });
  }

  /** When everything that was acknowledged before a restart is there again. */
  #whenReady(id: number, act: () => void): void {
    const go = () => {
      if (this.#hasEnded) return;
      try {
        this.#attempt(id, act);
      } catch (fault) {
        // It may be later than the request, where nobody would take it.
        this.#stream.ended ??= fault as ProtocolFault;
      }
    };
    this.tenant.journal.whenReady(go, (error) => this.#refuse(id, error));
  }

  #meet(
    id: number,
    room: string,
    token: string,
    go: (tokens?: Readonly<Record<string, string>>) => void,
  ): void {
    this.tenant.recovery.check();
    const fail = (error: TributaryError) => this.#refuse(id, error);
    this.tenant.meetings.enter(room, this.worker, { token: `${this.incarnation} ${token}`, go, fail });
  }

  /** In synchronous training between two steps of all workers; otherwise whenever one asks. */
  #checkpoint({ id, step, isDurable, common }: RequestOf<'checkpoint'>): void {
    const { tenant, worker } = this;
    if (tenant.service.logFolder === undefined) throw keepsNone(tenant.service.namespace);
    const fail = (error: TributaryError) => this.#refuse(id, error);
    const take = (meeting?: object, isRepeated = false) =>
      tenant.checkpoints.take(
        { worker, step, isDurable, meeting, isRepeated },
        () => this.#reply(id, { kept: tenant.checkpoints.kept }),
        fail,
      );
    // Only in lock step do all servers go back to one; otherwise old logs would be kept with it.
    if (!tenant.isSynchronous) return take();
    tenant.recovery.check();
    // Before all have met: a worker may know more than the one that comes first.
    tenant.checkpoints.named(common);
    this.#meet(id, `checkpoint ${step}`, String(id), (tokens) => take(tokens, tokens === undefined));
  }

  /** Where each of its pieces stands; none without values. */
  #stepsOf({ isFilled, firstPiece, pieceCount }: Batch): number[] {
    const { core, pieces } = this.tenant;
    const steps: number[] = [];
    for (let i = firstPiece; isFilled && i < firstPiece + pieceCount; i++) {
      if (pieces.has(i)) steps.push(core.nextStep(this.worker, String(i)) - 1);
    }
    return steps;
  }

  #batchOf(number: number): Batch {
    const batch = this.tenant.batches.get(number);
    if (batch?.memory !== undefined) return batch;
    throw new ProtocolFault(`named batch ${number}, which is not open`);
  }

  #open({ id, batch: number, keys, pieces, firstPiece, awaitsValues }: RequestOf<'open'>): void {
    const { tenant, worker } = this;
    // Before anything is done with them that takes time.
    tenant.limits.checkChunks(keys, pieces);
    const known = tenant.batches.get(number);
    const there = (batch: Batch) => this.#whenThere(id, batch, awaitsValues);
    if (known) {
      if (known.plan === planText({ keys, pieces, firstPiece })) return there(known);
      throw known.isRecovered
        ? notAsStored(worker, tenant.service, number)
        : otherPlan(worker, keys[0]?.key ?? '');
    }
    checkPlan({ keys, pieces, firstPiece }, tenant.pieceCount);
    for (const { key } of keys) if (tenant.hasKey(key)) throw otherPlan(worker, key);
    const fail = (error: TributaryError) => this.#refuse(id, error);
    tenant.openBatch(number, { keys, pieces, firstPiece }, worker, there, fail);
  }

  /** Once the batch has memory and, for those who do not bring them themselves, values. */
  #whenThere(id: number, batch: Batch, awaitsValues: boolean): void {
    // Its worker may have been counted out, and must not be waited for again.
    if (this.#hasEnded) return;
    const needsValues = awaitsValues && !this.tenant.recovery.isRewinding;
    const isThere = batch.isFilled || (!needsValues && batch.memory !== undefined);
    if (isThere) return this.#attempt(id, () => this.#sayWhere(id, batch));
    const fail = (error: TributaryError) => this.#refuse(id, error);
    batch.waiting.push({ owner: this, go: () => this.#whenThere(id, batch, awaitsValues), fail });
  }

  #sayWhere(id: number, batch: Batch): void {
    const { core } = this.tenant;
    this.tenant.count(this.worker);
    const steps = this.#stepsOf(batch);
    const places = batch.memory!.map(({ segment, offsetInSegment }) => [segment, offsetInSegment]);
    const { settings } = this.tenant;
    const applied = settings.isHeld ? core.appliedBefore(this.worker) : undefined;
    // The worker counts on from the steps: they must be those that survive.
    this.#replyLogged(id, { isFilled: batch.isFilled, places, steps, applied });
  }

  #placeOfValues({ id, batch: number }: RequestOf<'values'>, bodyBytes: number): Incoming {
    const batch = this.#batchOf(number);
    // A retry whose answer was lost.
    if (batch.isFilled) return { into: undefined, done: () => this.#replyLogged(id, {}) };
    const own = [...this.tenant.piecesIn(batch)].filter(({ key }) => key.firstValues === undefined);
    const into = own.flatMap(({ valueBytes }) => valueBytes);
    expectBytes(bodyBytes, total(own));
    return {
      into,
      done: () => {
        const reply = () => this.#replyLogged(id, {});
        if (batch.isFilled) return reply();
        this.tenant.begin(number, batch, reply, (error) => this.#refuse(id, error));
      },
    };
  }

  #placeOfGradients(request: RequestOf<'exchange'>, bodyBytes: number): Incoming {
    this.tenant.recovery.check();
    const { list, first, count, push, fromHeld, steps } = request;
    // A retry, too: what was refused because it could not be kept must not succeed by being known.
    if (push) this.tenant.journal.check();
    if (push && request.pull) this.#checkNotHeld();
    const all = this.#lists.get(list);
    if (all === undefined || first + count > all.length || ((push || fromHeld) && steps.length !== count)) {
      throw new ProtocolFault(
        `named entries ${first} to ${first + count} of list ${list}, which are not there`,
      );
    }
    const entries = first === 0 && count === all.length ? all : all.slice(first, first + count);
    const into = push ? entries.flatMap(({ staged }) => staged ?? NOTHING) : NOTHING;
    expectBytes(bodyBytes, push ? total(entries.flatMap(({ staged, piece }) => (staged ? [piece] : []))) : 0);
    return { into, done: () => this.#exchange(request, entries) };
  }

  /** A push does not bring new values where it only makes a gradient known. */
  #checkNotHeld(): void {
    if (!this.tenant.settings.isHeld) return;
    throw atOnceThoughHeld(this.worker);
  }

  #exchange(request: RequestOf<'exchange'>, entries: readonly PreparedEntry[]): void {
    const { id, push, pull, fromHeld, steps, samples, skipped, lr } = request;
    const results = new Array<PieceResult | PackedError>(entries.length);
    const left = new Set(skipped);
    let open = entries.length;
    const settle = (i: number, result: PushReply | Error) => {
      results[i] = result instanceof Error ? packedForOthers(result) : resultOf(result);
      const isHanded = pull && !(result instanceof Error);
      const finish = () => {
        if (isHanded) this.#hand(entries[i]!, request);
        if (--open > 0) return;
        const body = pull ? this.#bodyOf(entries, results, request) : NOTHING;
        this.#reply(id, { results: withOneError(results) }, body, undefined, push);
      };
      // Others may have pushed rows since.
      if (isHanded && push) this.#catchUp.before(id, { piece: entries[i]!.name }, finish);
      else finish();
    };
    if (open === 0) return this.#reply(id, { results });
    const one = ({ name, gradient }: PreparedEntry, i: number) => {
      try {
        this.tenant.recovery.check();
        if (!push) {
          // Through the room of the worker's next gradient, which it does not push before it has
          // the answer.
          const { version } = fromHeld
            ? this.tenant.core.pullHeld(this.worker, name, steps[i]!, gradient)
            : this.#pulled(name);
          return settle(i, { version, staleness: 0, duplicate: false });
        }
        const isSkipped = left.has(i);
        this.tenant.takeRate(lr);
        const pushed = { worker: this.worker, key: name, step: steps[i]! };
        this.tenant.core.push(
          { ...pushed, samples, isSkipped, gradient },
          (reply) => settle(i, reply),
          (error) => settle(i, error),
        );
      } catch (error) {
        settle(i, error as Error);
      }
    };
    let next = 0;
    const work = () => {
      do {
        const i = next++;
        const entry = entries[i]!;
        if (fromHeld) one(entry, i);
        else this.#catchUp.before(id, { piece: entry.name }, () => one(entry, i));
      } while (next < entries.length && !this.#isTurnOver() && !this.#hasEnded && !this.tenant.work.isBusy);
      return next === entries.length;
    };
    // Keys do not depend on each other; requests of others may come in between.
    if (!work()) this.#work = work;
  }

  #pulled(name: string): { readonly version: number } {
    return { version: this.tenant.core.pull(this.worker, name).version };
  }

  /**
   * The value, what is held, or in elastic mode the worker's own new weights, to where the worker
   * reads it.
   */
  #hand(entry: PreparedEntry, request: RequestOf<'exchange'>): void {
    if (request.push) this.#pulled(entry.name);
    if (!entry.into) return;
    const from = this.#sourceOf(entry, request);
    const { bytes } = this.#resources;
    from.forEach(({ byteOffset, byteLength }, i) =>
      bytes.copy(entry.into![i]!.byteOffset, byteOffset, byteLength),
    );
  }

  #sourceOf({ gradient, piece }: PreparedEntry, request: RequestOf<'exchange'>): readonly ByteRange[] {
    const isMoved = request.push && this.tenant.settings.consistency.kind === 'elastic';
    return isMoved || request.fromHeld ? rangesIn(gradient, piece.shape) : piece.valueBytes;
  }

  #bodyOf(
    entries: readonly PreparedEntry[],
    results: readonly unknown[],
    request: RequestOf<'exchange'>,
  ): ByteRange[] {
    return entries.flatMap((entry, i) =>
      Array.isArray(results[i]) && !entry.into && !entry.isInPlace ? this.#sourceOf(entry, request) : NOTHING,
    );
  }

  #pieceOf(number: number): Piece {
    const piece = this.tenant.pieces.get(number);
    if (piece) return piece;
    throw new ProtocolFault(`named piece ${number}, which is not on this core`);
  }

  #attempt(id: number, act: () => void): void {
    try {
      act();
    } catch (error) {
      this.#refuse(id, error);
    }
  }

  /** Also what is not of the protocol: a worker that is not told would ask again for ever. */
  #refuse(id: number, error: unknown): void {
    const told = error instanceof ProtocolFault ? faultOf(`worker ${this.worker}`, error) : error;
    this.#reply(id, { error: packedForOthers(told) });
  }

  /** `isLogged`: it acknowledges something that must survive a crash. */
  #reply(
    id: number,
    header: object,
    body: readonly ByteRange[] = NOTHING,
    onSent?: () => void,
    isLogged = false,
  ): void {
    const send = (answer: object, bytes: readonly ByteRange[]) => {
      this.#underWay.answered(id);
      if (this.#stream.ended === undefined) this.#stream.send({ id, ...answer }, bytes, onSent);
      else onSent?.();
    };
    this.tenant.journal.hold(
      () => send(header, body),
      (error) => send({ error: packedForOthers(error) }, NOTHING),
      isLogged,
    );
  }

  #replyLogged(id: number, header: object): void {
    this.#reply(id, header, NOTHING, undefined, true);
  }
}

/** The worker reports the first: all of them would be longer than a message may be. */
function withOneError(
  results: readonly (PieceResult | PackedError)[],
): readonly (PieceResult | PackedError | null)[] {
  const first = results.findIndex((result) => !Array.isArray(result));
  return first < 0
    ? results
    : results.map((result, i) => (Array.isArray(result) || i === first ? result : null));
}

function total(pieces: readonly Piece[]): number {
  return pieces.reduce((sum, { bytes }) => sum + bytes, 0);
}
