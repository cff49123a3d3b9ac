/**
 * What one core of a server holds of one tenant: its pieces of the tenant's keys, its workers and who of them is here,
 * and where they meet. It knows sessions only as somebody to tell. Invariants: nothing in it is reachable without a
 * session of its own namespace; a worker is waited for from the first join on until it says goodbye or its time is up.
 */
import { asTributaryError, keyText, UsageError } from '../../base/index.ts';
import type { StoreKey, TributaryError } from '../../base/index.ts';
import type { Kernels, OwnRules } from '../../kernels/index.ts';
import type { Region } from '../../memory/index.ts';
import type { Host, SpaceBytes } from '../../sockets/index.ts';
import type { ValuesRecord } from '../durability/index.ts';
import { ServerCore } from '../server-core.ts';
import { TenantSpace } from '../tenant-space.ts';
import { optimizerRule } from '../update-rule.ts';
import type { UpdateRule } from '../update-rule.ts';
import type { TenantCensus } from '../wire/administration.ts';
import type { KeyShape, PieceShape, ServiceSettings } from '../wire/messages.ts';
import { Attendance } from './attendance.ts';
import { planText } from './batch.ts';
import type { Batch, BatchPlan } from './batch.ts';
import { CoreCheckpoints } from './core-checkpoints.ts';
import { Journal } from './journal.ts';
import type { StoredBatch } from './journal.ts';
import { KeptMemory } from './kept-memory.ts';
import { LongWork } from './long-work.ts';
import { Meetings } from './meetings.ts';
import { OptimizerMeeting } from './optimizer-meeting.ts';
import { placesOf, slotName } from './key-places.ts';
import type { KeyMemory, KeyPlaces } from './key-places.ts';
import type { Service, SpaceRange, TenantOffice } from './office.ts';
import { rangesIn } from './piece.ts';
import type { Piece } from './piece.ts';
import { PushReplay } from './push-replay.ts';
import { Recovery } from './recovery.ts';
import { awayTooLong, otherSettings, otherWorkers, outdated, rateOfPush } from './refusals.ts';
import { SeededValues } from './seeded-values.ts';
import { piecesOf } from './snapshot.ts';
import type { CoreSnapshot } from './snapshot.ts';
import type { Task } from './task-sequence.ts';
import { checkProgress, TenantLimits } from './tenant-limits.ts';

export class Tenant {
  readonly service: Service;
  readonly space: TenantSpace;
  readonly meetings = new Meetings(() => this.#attendance?.counted ?? []);
  readonly recovery: Recovery;
  readonly journal: Journal;
  readonly checkpoints: CoreCheckpoints;
  readonly limits: TenantLimits;
  /** Goes on in its next turn, or in this one if there is time left. */
  readonly later: (go: () => void) => void;
  readonly work: LongWork;
  /** What requests under way and held gradients take. */
  readonly kept: KeptMemory;
  readonly batches = new Map<number, Batch>();
  /** Of all batches. */
  readonly #keys = new Set<StoreKey>();
  readonly pieces = new Map<number, Piece>();
  /** Pieces that were asked for, which are numbered so far. */
  pieceCount = 0;
  readonly #kernels: Kernels;
  readonly #rules: OwnRules | undefined;
  readonly #office: TenantOffice;
  readonly #host: Host;
  readonly #slots = new Map<string, SpaceRange>();
  #slotNames: readonly string[] = [];
  #optimizer: unknown = null;
  readonly replay = new PushReplay(this);
  readonly optimizers = new OptimizerMeeting(this);
  readonly #seeded: SeededValues;
  #settings: ServiceSettings | undefined;
  #core: ServerCore | undefined;
  #attendance: Attendance | undefined;
  /** The checkpoint that other cores give their parts of, before this one knows how the tenant trains. */
  #joined: number | undefined;

  constructor(
    service: Service,
    kernels: Kernels,
    office: TenantOffice,
    bytes: SpaceBytes,
    core: number,
    host: Host,
    later: (go: () => void) => void,
    isTurnOver: () => boolean,
    rules?: OwnRules,
  ) {
    this.service = service;
    this.#rules = rules;
    this.later = later;
    this.space = new TenantSpace(kernels.space, service);
    this.limits = new TenantLimits(service, this.space);
    this.work = new LongWork(isTurnOver);
    this.#seeded = new SeededValues(later, isTurnOver);
    this.kept = new KeptMemory(this.space, service.maxBytes);
    this.#kernels = kernels;
    this.#office = office;
    this.#host = host;
    this.recovery = new Recovery(this, office, bytes, core);
    this.journal = new Journal(this, office, core, host.files);
    this.checkpoints = new CoreCheckpoints(service.namespace, this.recovery);
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
    const { namespace, workers = settings.workers } = this.service;
    if (settings.workers !== workers) throw otherWorkers(worker, namespace, workers, settings.workers);
    if (this.#settings === undefined) this.#begin(settings);
    const refusal = otherSettings(worker, namespace, this.settings, settings);
    if (refusal) throw refusal;
    if (this.#attendance!.isOutdated(worker, incarnation)) throw outdated(worker);
    if (this.isSynchronous && this.#attendance!.isLate(worker, incarnation))
      throw awayTooLong(worker, this.service.graceMs);
    const isNew = !this.#attendance!.isKnown(worker);
    this.#checkProgress(worker, this.#attendance!.known + (isNew ? 1 : 0), this.pieceCount);
    if (this.#attendance!.isLost(worker)) this.#logOfLost(`worker ${worker} of '${namespace}' is back`);
    const arrival = this.#attendance!.enter(worker, incarnation);
    // It goes on where it was: nobody has waited for its pushes, and each is applied once as before.
    if (arrival === 'late') return this.count(worker);
    if (arrival !== 'replaced') return;
    this.recovery.forget(worker);
    this.meetings.leave(worker);
    if (!this.isSynchronous || this.service.lostWorkers !== 'wait') return this.#countOut(worker);
    // Before there are values there is nothing to go back to; the worker stays counted all the same.
    const isUnderWay = [...this.batches.values()].some(({ isFilled }) => isFilled);
    if (isUnderWay) this.recovery.begin(`worker ${worker} was started again`);
  }

  get isSynchronous(): boolean {
    return this.settings.consistency.kind === 'synchronous';
  }

  /** The worker takes part from its next push on; one that comes later than the others does not before. */
  count(worker: number): void {
    if (this.#attendance!.isCounted(worker)) return;
    this.#attendance!.count(worker);
    this.core.admit(worker);
  }

  /** Another core gives its part of a checkpoint: so does this one, as soon as it can. */
  joinCheckpoint(step: number): void {
    if (this.#settings === undefined) this.#joined = step;
    // In lock step all workers ask all cores, and go back if one of them does not.
    else if (!this.isSynchronous) {
      this.journal.whenReady(
        () => this.checkpoints.join(step),
        (why) => this.recovery.refuse(step, why),
      );
    }
  }

  lose(worker: number): void {
    if (this.#attendance!.lose(worker, this.#host.clock.nowMs())) {
      this.#logOfLost(
        `worker ${worker} of '${this.service.namespace}' is lost: its connection has ended; the others wait until it is started again under its number`,
      );
    }
    // If it comes back it asks again; its place must not be taken by what it said before it died.
    this.recovery.lose(worker);
    this.meetings.leave(worker);
  }

  /** The first `MAX_ABSENT` of those that the others wait for and that are not connected; undefined: none. */
  get absent(): readonly number[] | undefined {
    const workers = this.#waitsForPushes ? this.#attendance!.absent(MAX_ABSENT) : [];
    return workers.length > 0 ? workers : undefined;
  }

  /** Otherwise they take effect at once. */
  get #waitsForPushes(): boolean {
    const { kind } = this.settings.consistency;
    return kind === 'synchronous' || kind === 'bounded';
  }

  /** By one core for all; where lost workers are counted out, that is logged. */
  #logOfLost(line: string): void {
    if (this.recovery.core !== 0 || this.service.lostWorkers !== 'wait' || !this.#waitsForPushes) return;
    this.#office.log(line);
  }

  /** For those who administrate the server. */
  get census(): TenantCensus {
    return {
      serial: this.service.serial,
      workers: this.#settings?.workers ?? this.service.workers ?? null,
      mode: this.#settings?.consistency.kind ?? null,
      connected: this.#attendance?.here ?? 0,
      steps: this.#core?.mostUpdates ?? 0,
    };
  }

  /** Nobody waits for the worker any more. */
  release(worker: number): void {
    if (!this.#attendance!.release(worker)) return;
    this.#countOut(worker);
  }

  /** The last process that came as the worker. */
  incarnationOf(worker: number): string | undefined {
    return this.#attendance?.incarnationOf(worker);
  }

  /** Nothing of the process is under way any more: its memory can be given back. */
  forget(worker: number, incarnation: string): void {
    const holder = { core: this.recovery.core, worker, incarnation };
    this.#office.ask({ kind: 'forget', namespace: this.service.namespace, ...holder }, ignore, ignore);
  }

  #countOut(worker: number): void {
    this.#attendance!.release(worker);
    this.recovery.forget(worker);
    this.core.release(worker);
    this.kept.dropAll(worker);
    this.meetings.leave(worker);
  }

  /** Counts out those whose time to come back is up; returns the milliseconds until the next one's is. */
  lookAfter(nowMs: number): number {
    if (this.#attendance === undefined || this.work.isBusy) return Infinity;
    const { workers, nextMs } = this.#attendance.overdue(nowMs);
    const { lostWorkers, graceMs } = this.service;
    if (this.isSynchronous && lostWorkers === 'rewind') {
      if (workers.length > 0)
        this.recovery.begin(`worker ${workers.join(', ')} was lost and did not come back in ${graceMs} ms`);
      return nextMs;
    }
    for (const worker of workers) {
      this.#office.log(
        `worker ${worker} of '${this.service.namespace}' did not come back and is counted out; training continues without it`,
      );
      this.#attendance.countOut(worker);
      this.release(worker);
      const incarnation = this.incarnationOf(worker);
      if (incarnation !== undefined) this.forget(worker, incarnation);
    }
    return nextMs;
  }

  *openPieces(): Iterable<[number, Piece]> {
    for (const { isFilled, firstPiece, pieceCount } of this.batches.values()) {
      for (let i = firstPiece; isFilled && i < firstPiece + pieceCount; i++) yield [i, this.pieces.get(i)!];
    }
  }

  /** Values and rule come back with the checkpoint: who waits for them at its start must not be missing from the meeting. */
  letStart(): void {
    for (const { memory, waiting } of this.batches.values()) {
      if (memory) for (const { go } of waiting.splice(0)) go();
    }
    this.optimizers.letGo();
  }

  /** The keys whose values are about to be put back need no first ones. */
  *fillRestored(snapshot: CoreSnapshot): Generator<void, void> {
    const pieces = new Set<number>();
    for (const { piece } of piecesOf(snapshot)) yield void pieces.add(piece);
    for (const batch of this.batches.values()) {
      const isRestored = batch.pieceCount === 0 || pieces.has(batch.firstPiece);
      if (batch.memory && !batch.isFilled && isRestored) yield* this.#fill(batch);
    }
  }

  /** Nobody waits for a worker that has pushed and is gone, or for ever for one that left before the restart. */
  endReplay(): void {
    const isRecovered = [...this.batches.values()].some((batch) => batch.isRecovered);
    if (isRecovered) this.#attendance!.loseUnseen(this.#host.clock.nowMs());
    for (const worker of this.replay.end())
      if (!this.#attendance!.isCounted(worker)) this.core.release(worker);
  }

  /** What a checkpoint keeps of the batches that have values. */
  storedBatches(): readonly StoredBatch[] {
    return [...this.batches].flatMap(([batch, { isFilled, plan }]) => (isFilled ? [{ batch, plan }] : []));
  }

  /** Keys that were there before the server was started again, with these values; none: they are put back later. */
  *openAgain({ batch: number, plan, values: [values] }: ValuesRecord): Generator<Task, void> {
    const [keys, pieces, firstPiece] = JSON.parse(plan) as [KeyShape[], PieceShape[], number];
    let batch: Batch | undefined;
    yield (done, fail) => {
      const opened = (one: Batch) => {
        batch = one;
        done();
      };
      this.openBatch(number, { keys, pieces, firstPiece }, undefined, opened, fail);
    };
    yield (done, fail) => this.work.run(this.#refill(batch!, values), done, fail);
  }

  *#refill(batch: Batch, values: Float32Array | undefined): Generator<void, void> {
    let at = 0;
    for (const { shape, value } of this.piecesIn(batch)) {
      for (const [start, length] of values ? shape.ranges : []) {
        value.view.set(values!.subarray(at, at + length), start);
        at += length;
      }
      yield;
    }
    yield* this.#fill(batch);
  }

  /** Takes memory for keys; `done` as soon as it is there. `worker`: who asked; undefined: they were there before. */
  openBatch(
    number: number,
    { keys, pieces, firstPiece }: BatchPlan,
    worker: number | undefined,
    done: (batch: Batch) => void,
    fail: (error: TributaryError) => void,
  ): void {
    this.#checkProgress(worker, this.#attendance!.known, this.pieceCount + pieces.length);
    this.limits.reserveChunks(keys, pieces);
    const batch: Batch = {
      keys: new Set(keys.map(({ key }) => key)),
      plan: planText({ keys, pieces, firstPiece }),
      ...{ firstPiece, pieceCount: pieces.length, isRecovered: worker === undefined },
      ...{ memory: undefined, isFilled: false, waiting: [] },
    };
    this.batches.set(number, batch);
    for (const key of batch.keys) this.#keys.add(key);
    this.pieceCount += pieces.length;
    const slots = this.#slotNames;
    this.#office.ask(
      { kind: 'keys', namespace: this.service.namespace, keys, slots },
      (places) =>
        this.work.run(
          this.#addPieces(batch, { keys, pieces, firstPiece }, places, slots),
          () => {
            done(batch);
            for (const { go } of batch.waiting.splice(0)) go();
          },
          fail,
        ),
      (error) => {
        this.batches.delete(number);
        for (const key of batch.keys) this.#keys.delete(key);
        this.limits.giveBackChunks(keys, pieces);
        // Numbers of a batch that came after it stay as they are.
        if (this.pieceCount === firstPiece + pieces.length) this.pieceCount = firstPiece;
        fail(error);
        for (const waiting of batch.waiting.splice(0)) waiting.fail(error);
      },
    );
  }

  /** The first values of a batch are in its memory, or are made there: they count as soon as they are safe from a crash. */
  begin(number: number, batch: Batch, done: () => void, fail: (error: TributaryError) => void): void {
    this.#seeded.fill(batch, this.piecesIn(batch), { done, fail }, (begun, failed) =>
      this.work.run(this.#begun(number, batch), begun, failed),
    );
  }

  *#begun(number: number, batch: Batch): Generator<void, void> {
    let isOpen = false;
    try {
      const { plan } = batch;
      // What would be refused after it was logged would be refused again by every restart.
      yield* this.#openPieces(batch);
      isOpen = true;
      const values = [...this.piecesIn(batch)].flatMap(({ shape, value }) =>
        shape.ranges.map(([start, length]) => value.view.subarray(start, start + length)),
      );
      this.journal.log({ kind: 'values', batch: number, plan, values });
    } catch (error) {
      if (isOpen) this.#closePieces(batch);
      for (const { fail } of batch.waiting.splice(0)) fail(asTributaryError(error));
      throw error;
    }
    this.#filled(batch);
  }

  /** Opens what a batch was given memory for; values are those in the memory. */
  *#fill(batch: Batch): Generator<void, void> {
    yield* this.#openPieces(batch);
    this.#filled(batch);
  }

  /** All of them, or none. */
  *#openPieces(batch: Batch): Generator<void, void> {
    let number = batch.firstPiece;
    try {
      for (const { shape, key, value } of this.piecesIn(batch)) {
        const chunks = shape.ranges.map(([start, length]) => ({ start, length }));
        const { rowLength, operations } = key;
        this.core.open({ name: String(number++), title: key.key, value, chunks, rowLength, operations });
        yield;
      }
    } catch (error) {
      this.#closePieces(batch);
      throw error;
    }
  }

  #closePieces({ firstPiece, pieceCount }: Batch): void {
    for (let i = firstPiece; i < firstPiece + pieceCount; i++) this.core.discard(String(i));
  }

  #filled(batch: Batch): void {
    batch.isFilled = true;
    for (const { go } of batch.waiting.splice(0)) go();
  }

  /** Those of a batch that has memory. */
  *piecesIn({ firstPiece, pieceCount }: Batch): Iterable<Piece> {
    for (let i = firstPiece; i < firstPiece + pieceCount; i++) yield this.pieces.get(i)!;
  }

  *#addPieces(
    batch: Batch,
    { keys, pieces, firstPiece }: BatchPlan,
    places: KeyPlaces,
    slots: readonly string[],
  ): Generator<void, void> {
    const memory: KeyMemory[] = [];
    for (const one of placesOf(places, keys, slots)) {
      memory.push(one);
      yield this.#rememberSlots(one);
    }
    for (const [i, shape] of pieces.entries()) {
      const value = this.#regionOf(memory[shape.key]!.value).slice(shape.start, shape.length);
      const valueBytes = rangesIn(value, shape);
      const bytes = valueBytes.reduce((sum, { byteLength }) => sum + byteLength, 0);
      this.pieces.set(firstPiece + i, { shape, key: keys[shape.key]!, value, valueBytes, bytes });
      yield;
    }
    batch.memory = memory;
  }

  /** What it was set to last, for checkpoints. */
  get optimizer(): unknown {
    return this.#optimizer;
  }

  get slotNames(): readonly string[] {
    return this.#slotNames;
  }

  hasKey(key: StoreKey): boolean {
    return this.#keys.has(key);
  }

  /** Everything else of the optimizer stays. */
  setLearningRate(lr: number): void {
    this.core.checkLearningRate(lr);
    const spec = { ...(this.#optimizer as object), lr };
    this.journal.log({ kind: 'optimizer', spec });
    this.core.setLearningRate(lr);
    this.#optimizer = spec;
  }

  /** The rate of a push that takes effect by itself. One by which it was made before need not be logged again. */
  takeRate(lr: number | undefined): void {
    if (lr === undefined || lr === (this.#optimizer as { readonly lr?: number } | null)?.lr) return;
    if (this.isSynchronous) throw rateOfPush(this.service.namespace);
    this.setLearningRate(lr);
  }

  /** The update rule from now on, with memory for what it keeps. */
  setOptimizer(
    spec: unknown,
    done: () => void,
    fail: (error: TributaryError) => void,
    isLogged = false,
  ): void {
    const rule = optimizerRule(this.#kernels, spec as never, this.#rules);
    const opening = [...this.batches.values()].find(({ memory }) => memory === undefined);
    if (opening) {
      const go = () => {
        try {
          this.setOptimizer(spec, done, fail, isLogged);
        } catch (error) {
          fail(asTributaryError(error));
        }
      };
      return void opening.waiting.push({ owner: this, go, fail });
    }
    const set = (memory: Iterable<KeyMemory>) =>
      this.work.run(this.#ruleSet(rule, spec, memory, isLogged), done, fail);
    const keys = [...this.batches.values()].flatMap(({ memory }) => memory ?? []).map(({ key }) => key);
    // Other numbers of the same rule need no memory: they count at once.
    if (keys.every((key) => rule.slots.every((slot) => this.#slots.has(slotName(slot, key))))) return set([]);
    const shapes = keys.map((key) => ({ key, length: 0, rowLength: undefined }));
    this.#office.ask(
      { kind: 'keys', namespace: this.service.namespace, keys: shapes, slots: rule.slots },
      (places) => set(placesOf(places, shapes, rule.slots)),
      fail,
    );
  }

  *#ruleSet(
    rule: UpdateRule,
    spec: unknown,
    memory: Iterable<KeyMemory>,
    isLogged: boolean,
  ): Generator<void, void> {
    // What rows have missed is made up for by the rule before.
    yield* this.core.catchUpAll();
    for (const one of memory) yield this.#rememberSlots(one);
    // Pushes that are logged after it are replayed by it.
    if (isLogged) this.journal.log({ kind: 'optimizer', spec });
    this.#slotNames = rule.slots;
    yield* this.core.setRuleInSteps(rule);
    this.#optimizer = spec;
    if (!isLogged) this.optimizers.isRecovered = true;
  }

  close(): void {
    this.#seeded.close();
    this.work.close();
    this.recovery.close();
    this.#core?.close();
    this.journal.close();
    this.kept.close();
    this.limits.close();
  }

  #begin(settings: ServiceSettings): void {
    this.#settings = settings;
    this.#core = new ServerCore({
      kernels: this.#kernels,
      consistency: settings.consistency,
      combine: settings.combine,
      aggregation: settings.aggregation,
      rows: settings.rows,
      updater: settings.updater,
      isHeld: settings.isHeld,
      heldMemory: this.kept,
      scratch: this.space,
      // Workers look before they push; one that does not harms its own tenant only.
      nonFinite: 'accept',
      beforePush: (key, ...push) => this.journal.logPush(String(key), ...push),
      slotRegion: (name, slot) => this.#slotRegion(Number(name), slot),
    });
    this.#attendance = new Attendance(this.service, settings.workers);
    for (const worker of this.#attendance.counted) this.#core.admit(worker);
    if (this.#joined !== undefined) this.joinCheckpoint(this.#joined);
  }

  /** Every piece remembers every worker that was ever here or is waited for, so that nothing counts twice. */
  #checkProgress(worker: number | undefined, known: number, pieces: number): void {
    const workers = Math.max(known, this.#attendance!.countedSize);
    checkProgress(this.service.namespace, worker, workers, pieces);
  }

  #slotRegion(piece: number, slot: string): Region<'float32'> {
    const { key, shape } = this.pieces.get(piece)!;
    const range = this.#slots.get(slotName(slot, key.key));
    if (range === undefined) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `the optimizer was set while key ${keyText(key.key)} was being opened; set it before or after`,
        { key: key.key },
      );
    }
    return this.#regionOf(range).slice(shape.start, shape.length);
  }

  #rememberSlots({ key, slots }: KeyMemory): void {
    for (const [slot, range] of Object.entries(slots)) this.#slots.set(slotName(slot, key), range);
  }

  #regionOf({ byteOffset, byteLength }: SpaceRange): Region<'float32'> {
    return this.space.adoptSegment({ byteOffset, byteLength }).region('float32', 0, byteLength / 4);
  }
}

const ignore = () => undefined;

const MAX_ABSENT = 8;
