/**
 * One core of a parameter server (PHub, section 3.2): takes pushes of the chunks that are its own, combines them, runs the
 * update rule on each chunk while it is in the cache, and answers. It knows no network and no thread: whoever owns
 * the core feeds it. Invariants: nothing is shared with other cores but memory that each touches in its own chunks; a
 * faulty push changes nothing and is answered by an error that names worker and key.
 */
import { keyText, UsageError } from '../base/index.ts';
import type { StoreKey, TributaryError } from '../base/index.ts';
import type { Kernels, Slots } from '../kernels/index.ts';
import type { Region, SharedSpace } from '../memory/index.ts';
import type { Aggregation, Combine } from './aggregation.ts';
import { AppliedSteps } from './applied-steps.ts';
import type { ApplyStep } from './applied-steps.ts';
import { checkCanHold, checkConsistency } from './consistency.ts';
import type { Consistency, WaitingAnswers } from './consistency.ts';
import { inWorkerOrder } from './contribution.ts';
import type {
  Contribution,
  DenseContribution,
  DensePush,
  Push,
  RowsContribution,
  RowsPush,
} from './contribution.ts';
import type { Held, HeldGradient, HeldMemory } from './held-gradient.ts';
import { HeldReader } from './held-reader.ts';
import { checkOperations } from './key-operations.ts';
import { Key, refuseAll } from './key.ts';
import type { KeyOptions, Waiting } from './key.ts';
import { KeyUpdates } from './key-updates.ts';
import {
  askedAgain,
  checkApply,
  checkIndices,
  checkLength,
  checkRows,
  checkSameKind,
  checkWaiting,
  notApplied,
  notHeld,
  notHeldNow,
  rowLengthOf,
  samplesOf,
  slotOf,
  tooEarly,
} from './push-checks.ts';
import type { Updater, UpdateRule } from './update-rule.ts';

export interface ServerCoreOptions {
  readonly kernels: Kernels;
  /** Default synchronous. */
  readonly consistency?: Consistency | undefined;
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /** What becomes of pushes before there is a rule. Default 'assign'. */
  readonly updater?: Updater | undefined;
  /** 'wide' is for comparison: slower, the same result. Default 'tall'. */
  readonly aggregation?: Aggregation | undefined;
  /**
   * What becomes of rows without a gradient: 'lazy' leaves them and their slots alone, 'exact' gives them, when somebody
   * looks at them, what dense updates would have, at a cost that grows with the steps they missed. Default 'lazy'.
   */
  readonly rows?: RowsMode | undefined;
  /**
   * What becomes of a gradient that is not finite: 'refuse' answers with an error, 'skip' counts the push as made but
   * leaves its values out, 'accept' does not look. Default 'refuse'.
   */
  readonly nonFinite?: 'refuse' | 'skip' | 'accept' | undefined;
  /**
   * Whether pushes, once all workers have made them, are only combined and answered by their sum of squares, and take
   * effect by `apply`. For synchronous training. Default false.
   */
  readonly isHeld?: boolean | undefined;
  /** Where what is held is kept. Default: in the kernels' space. */
  readonly heldMemory?: HeldMemory | undefined;
  /** Where memory for sums comes from. Default: the kernels' space. */
  readonly scratch?: Pick<SharedSpace, 'allocate'> | undefined;
  /** Where a slot of a key is kept, a region of the key's length; cores of one server share it. */
  readonly slotRegion: (key: StoreKey, slot: string, length: number) => Region<'float32'>;
  /** Called before a sound new push takes effect by itself; if it throws, the push is refused. Default: nothing. */
  readonly beforePush?: ((key: StoreKey, push: Contribution, isSkipped: boolean) => void) | undefined;
}

type Reply = Waiting['reply'];
type Fail = Waiting['fail'];
const ignore: Fail = () => undefined;

export type RowsMode = 'lazy' | 'exact';

export class ServerCore {
  /** Pushes whose values were left out because they were not finite. */
  skipped = 0;
  readonly #kernels: Kernels;
  readonly #consistency: Consistency;
  readonly #nonFinite: 'refuse' | 'skip' | 'accept';
  readonly #updates: KeyUpdates;
  readonly #beforePush: ServerCoreOptions['beforePush'];
  readonly #isHeld: boolean;
  readonly #heldMemory: HeldMemory;
  readonly #scratch: Pick<SharedSpace, 'allocate'>;
  readonly #reader: HeldReader;
  readonly #applied = new AppliedSteps();
  readonly #keys = new Map<StoreKey, Key>();
  readonly #workers = new Set<number>();
  readonly #answers: WaitingAnswers = { count: 0 };

  constructor(options: ServerCoreOptions) {
    const { kernels, consistency = { kind: 'synchronous' }, combine = 'sum' } = options;
    checkConsistency(consistency);
    if (options.isHeld) checkCanHold(consistency);
    this.#kernels = kernels;
    this.#consistency = consistency;
    this.#nonFinite = options.nonFinite ?? 'refuse';
    this.#updates = new KeyUpdates({
      ...{ kernels, combine, isWide: options.aggregation === 'wide', slotRegion: options.slotRegion },
      updater: options.updater ?? 'assign',
      alpha: consistency.kind === 'elastic' ? consistency.alpha : undefined,
      // Averages of whole weights leave out no rows.
      hasExactRows: options.rows === 'exact' && consistency.kind !== 'elastic',
      scratch: options.scratch ?? kernels.space,
    });
    this.#scratch = options.scratch ?? kernels.space;
    this.#beforePush = options.beforePush;
    this.#isHeld = options.isHeld ?? false;
    this.#heldMemory = options.heldMemory ?? memoryOf(kernels);
    this.#reader = new HeldReader(kernels, this.#scratch);
  }

  /** A worker whose pushes are waited for from now on. */
  admit(worker: number): void {
    if (this.#workers.has(worker)) return;
    this.#workers.add(worker);
    this.#applied.admit(worker);
    if (this.#consistency.kind !== 'bounded') return;
    for (const { clocks, lastSteps } of this.#keys.values()) clocks.admit(worker, lastSteps.get(worker));
  }

  /** A worker that is gone: what it pushed of unfinished steps is dropped, and nobody waits for it any more. */
  release(worker: number): void {
    this.#workers.delete(worker);
    this.#applied.release(worker);
    for (const key of this.#keys.values()) {
      key.waiting.delete(worker);
      key.clocks.release(worker);
      if (this.#isComplete(key)) this.#finish(key);
    }
  }

  /** With bounded staleness: the others do not wait for the worker until it pushes again. */
  pause(worker: number): void {
    this.#checkWorker(worker);
    for (const { clocks } of this.#keys.values()) clocks.release(worker);
  }

  /** Values are those in the region. A key is opened once. */
  open(options: KeyOptions): void {
    checkOperations(options.title ?? options.name, options.operations, this.#consistency);
    if (this.#keys.has(options.name)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `key ${keyText(options.title ?? options.name)} is there already; push to it, or use another name`,
        { key: options.title ?? options.name },
      );
    }
    const staleness = this.#consistency.kind === 'bounded' ? this.#consistency.staleness : Infinity;
    const key = new Key(options, staleness, this.#answers);
    if (staleness !== Infinity) for (const worker of this.#workers) key.clocks.admit(worker);
    this.#updates.openKey(key);
    if (this.#isHeld) key.held = this.#updates.heldOf(this.#heldMemory);
    this.#keys.set(options.name, key);
  }

  /** Takes back `open`, before anybody has used the key. */
  discard(name: StoreKey): void {
    const key = this.#keys.get(name);
    this.#keys.delete(name);
    key?.history?.close();
    key?.held?.close();
  }

  /** From the next update on. Slots that a rule of the same name has already are kept; others start anew. */
  setRule(rule: UpdateRule): void {
    const steps = this.setRuleInSteps(rule);
    while (!steps.next().done);
  }

  /** The same in steps of one key, between which nothing else may be asked. */
  setRuleInSteps(rule: UpdateRule): Generator<void, void> {
    return this.#updates.setRule(rule, this.#keys.values());
  }

  /** Gives rows of a key, all without indices, the updates that they missed, a part with each step. undefined: none. */
  catchUp(name: StoreKey, indices?: Int32Array): Iterator<void, void> | undefined {
    const key = this.#keys.get(name);
    // The next update brings all rows up to date then.
    return key && this.#updates.catchUpInParts(key, key.history?.isFull ? undefined : indices);
  }

  /** The same of all keys; `isForApply`: as far as `apply` needs it, where pushes have caught up already. */
  *catchUpAll(isForApply = false): Generator<void, void> {
    for (const key of this.#keys.values()) {
      if (isForApply && !key.history?.isFull) continue;
      const parts = this.#updates.catchUpInParts(key);
      while (parts && !parts.next().done) yield;
    }
  }

  /** Of the key that has seen the most. */
  get mostUpdates(): number {
    let most = 0;
    for (const { version } of this.#keys.values()) most = Math.max(most, version);
    return most;
  }

  /** What a key has seen, to be kept with its value and slots. */
  progressOf(name: StoreKey): { readonly version: number; readonly lastSteps: Record<string, number> } {
    const key = this.#keys.get(name)!;
    this.#updates.catchUp(key);
    const { version, lastSteps } = key;
    return { version, lastSteps: Object.fromEntries(lastSteps) };
  }

  slotsOf(name: StoreKey): Slots {
    return this.#keys.get(name)!.slots;
  }

  /** What the rule keeps of a key, the slots themselves, with all updates that rows had missed; and how many there were. */
  stateOf(worker: number, name: StoreKey): { readonly slots: Slots; readonly version: number } {
    const key = this.#keyOf({ worker, key: name });
    this.#updates.catchUp(key);
    return { slots: key.slots, version: key.version };
  }

  /** The slots of a key, for the caller to fill. */
  stateToSet(worker: number, name: StoreKey): { readonly slots: Slots; readonly version: number } {
    this.#checkBetweenSteps(worker, this.#keyOf({ worker, key: name }));
    return this.stateOf(worker, name);
  }

  /** The caller has filled the slots of a key, which is now as after so many updates. */
  setVersion(worker: number, name: StoreKey, version: number): void {
    const key = this.#keyOf({ worker, key: name });
    this.#checkBetweenSteps(worker, key);
    this.#updates.catchUp(key);
    this.restore(name, version, {});
  }

  /** Value and slots were put back by the caller; what was pushed and not applied is forgotten. */
  restore(name: StoreKey, version: number, lastSteps: Readonly<Record<string, number>>): void {
    const key = this.#keys.get(name)!;
    key.waiting.clear();
    key.held?.forget();
    key.pulled.clear();
    key.version = version;
    key.history?.restart(version);
    key.lastSteps.clear();
    for (const [worker, step] of Object.entries(lastSteps)) key.lastSteps.set(Number(worker), step);
    key.clocks.restart(key.lastSteps);
  }

  /** Tells everybody whose push waits for others that it will not be applied, and forgets what is held. */
  abandon(error: TributaryError): void {
    this.#applied.restart();
    for (const { waiting, held } of this.#keys.values()) {
      held?.forget();
      const all = [...waiting.values()];
      waiting.clear();
      refuseAll(all, error);
    }
  }

  /** Learning rate from the next update on; undefined for that of the rule. */
  setLearningRate(lr: number | undefined): void {
    if (lr !== undefined) this.checkLearningRate(lr);
    this.#updates.setLearningRate(lr);
  }

  checkLearningRate(lr: number): void {
    const problem =
      this.#consistency.kind === 'elastic'
        ? 'servers in elastic mode average weights and have no learning rate; change that of the optimizer of your own'
        : this.#updates.hasRate
          ? undefined
          : 'there is no optimizer yet; call setOptimizer first';
    if (problem === undefined && typeof lr === 'number' && Number.isFinite(lr) && lr >= 0) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the learning rate cannot be ${String(lr)}: ${problem ?? 'give a finite number of 0 or more'}`,
      { lr: String(lr), consistency: this.#consistency.kind },
    );
  }

  /** `fail` is called if the push, once taken, will not be applied after all. */
  push(push: DensePush, reply: Reply, fail: Fail = ignore): void {
    const key = this.#keyOf(push);
    checkLength(key, push.worker, push.gradient);
    if (this.#isDuplicate(key, push, reply, fail)) return;
    const contribution: DenseContribution = { ...push, samples: samplesOf(push, this.#isHeld) };
    const isSkipped = push.isSkipped ?? false;
    const isUsable =
      isSkipped || key.chunksOf(push.gradient).every((chunk) => this.#isUsable(key, push, chunk));
    this.#take(key, { contribution, isSkipped: isSkipped || !isUsable, reply, fail });
  }

  /** Only the given rows travel, and only they are updated. Indices may repeat. */
  pushRows(push: RowsPush, reply: Reply, fail: Fail = ignore): void {
    const key = this.#keyOf(push);
    const rowLength = rowLengthOf(key, push.worker);
    checkRows(key, push, rowLength);
    if (this.#consistency.kind === 'elastic') {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${push.worker} pushed rows of key ${keyText(key.title)} to a server in elastic mode, which averages whole weights; push them by push`,
        { worker: push.worker, key: key.title },
      );
    }
    checkIndices(key, push.worker, push.indices, rowLength);
    if (this.#isDuplicate(key, push, reply, fail)) return;
    const contribution: RowsContribution = { ...push, samples: samplesOf(push, this.#isHeld) };
    const isSkipped = push.isSkipped ?? false;
    this.#take(key, {
      contribution,
      isSkipped: isSkipped || !this.#isUsable(key, push, push.rows),
      ...{ reply, fail },
    });
  }

  /**
   * Applies what is held of all keys, times `scale`. All workers ask for it with the same numbers: the first one's is done,
   * the others are only compared. A key that nobody pushed is left alone, but for a table whose rows are exact: its rows
   * get, when somebody looks at them, what a gradient of zeros would have done.
   */
  apply(asked: ApplyStep): void {
    this.#checkWorker(asked.worker);
    checkApply(asked, this.#isHeld);
    if (!this.#applied.isNext(asked)) return;
    for (const key of this.#keys.values()) {
      if (key.waiting.size > 0) throw tooEarly(key, asked, this.#workers);
    }
    this.#applied.note(asked);
    try {
      for (const key of this.#keys.values()) this.#updates.applyHeld(key, asked);
    } catch (error) {
      this.#applied.fail(asked, error);
      throw error;
    }
  }

  /** Held steps that were applied before the worker came: it counts on from there. */
  appliedBefore(worker: number): number {
    return this.#applied.before(worker);
  }

  /** Number of the next push of a worker: in synchronous mode that of the next update. */
  nextStep(worker: number, name: StoreKey): number {
    const key = this.#keyOf({ worker, key: name });
    return 1 + (this.#consistency.kind === 'synchronous' ? key.version : (key.lastSteps.get(worker) ?? 0));
  }

  /** The value itself, which the caller copies or reads in place, and how many updates it has seen. */
  pull(worker: number, name: StoreKey): { readonly value: Region<'float32'>; readonly version: number } {
    const key = this.#keyOf({ worker, key: name });
    this.#updates.catchUp(key);
    key.pulled.set(worker, key.version);
    return { value: key.value, version: key.version };
  }

  /**
   * Copies the rows of the given indices, in their order or to the given rows of the target; of the
   * value, or of a slot.
   */
  pullRows(
    worker: number,
    name: StoreKey,
    indices: Region<'int32'>,
    into: Region<'float32'>,
    positions?: Region<'int32'>,
    slot?: string,
  ): { version: number } {
    const key = this.#keyOf({ worker, key: name });
    const rowLength = rowLengthOf(key, worker);
    checkIndices(key, worker, indices, rowLength);
    this.#updates.catchUp(key, indices.view);
    this.#updates.copyRows(key, indices, into, positions, slotOf(key, worker, slot));
    if (slot === undefined) key.pulled.set(worker, key.version);
    return { version: key.version };
  }

  /**
   * Copies the combined gradient of a held step, as an update with scale 1 uses it, to the core's elements of a tensor that
   * is as long as the key. The step stays held; it can be looked at until the worker pushes the next.
   */
  pullHeld(worker: number, name: StoreKey, step: number, into: Region<'float32'>): { version: number } {
    const key = this.#keyOf({ worker, key: name });
    this.#reader.whole(this.#heldOf(key, worker, step), key, into);
    return { version: key.version };
  }

  /** The same of rows, in the order of their indices or to the given rows of the target; zeros where nobody pushed. */
  pullHeldRows(
    worker: number,
    name: StoreKey,
    step: number,
    indices: Region<'int32'>,
    into: Region<'float32'>,
    positions?: Region<'int32'>,
  ): { version: number } {
    const key = this.#keyOf({ worker, key: name });
    checkIndices(key, worker, indices, rowLengthOf(key, worker));
    this.#reader.rows(this.#heldOf(key, worker, step), key, indices, into, positions);
    return { version: key.version };
  }

  close(): void {
    for (const { history, held } of this.#keys.values()) {
      history?.close();
      held?.close();
    }
    this.#updates.close();
    this.#reader.close();
  }

  #take(key: Key, taken: Waiting): void {
    const { contribution, isSkipped, reply } = taken;
    const { worker, step } = contribution;
    if (this.#consistency.kind === 'synchronous') checkSameKind(key, contribution);
    else {
      checkWaiting(key, worker, this.#answers);
      // What was logged must not fail.
      if (!isSkipped) this.#updates.reserve(key, [contribution]);
      this.#beforePush?.(key.name, contribution, isSkipped);
    }
    if (isSkipped) this.skipped++;
    if (this.#consistency.kind === 'synchronous') {
      key.waiting.set(worker, taken);
      if (this.#isComplete(key)) this.#finish(key);
      return;
    }
    const staleness = key.stalenessOf(worker);
    // What was logged counts, also if a rule of users fails, as it would again.
    const failure = isSkipped ? this.#updates.keepRate(key) : this.#updates.applyOrFail(key, [contribution]);
    key.lastSteps.set(worker, step);
    key.version++;
    const { version } = key;
    if ('rows' in contribution && contribution.pulls) key.pulled.set(worker, version);
    key.clocks.done(worker, step, () => {
      if (failure) taken.fail(failure);
      else reply({ version, staleness, duplicate: false });
    });
  }

  #isComplete(key: Key): boolean {
    if (this.#consistency.kind !== 'synchronous' || key.waiting.size === 0) return false;
    for (const worker of this.#workers) if (!key.waiting.has(worker)) return false;
    return true;
  }

  #finish(key: Key): void {
    if (key.held) this.#hold(key, key.held);
    else this.#applyTogether(key);
  }

  /** Combines the pushes of all workers and answers them; whatever goes wrong, nobody is left waiting. */
  #hold(key: Key, held: HeldGradient): void {
    const all = [...key.waiting.values()];
    key.waiting.clear();
    try {
      const used = all.filter(({ isSkipped }) => !isSkipped).map(({ contribution }) => contribution);
      this.#updates.hold(key, held, inWorkerOrder(used));
    } catch (error) {
      held.forget();
      refuseAll(all, error as TributaryError);
      return;
    }
    const answer = { version: key.version, staleness: 0, sumOfSquares: held.sumOfSquares };
    for (const { reply, repeated } of all) {
      reply({ ...answer, duplicate: false });
      repeated?.reply({ ...answer, duplicate: true });
    }
  }

  #applyTogether(key: Key): void {
    const all = [...key.waiting.values()];
    key.waiting.clear();
    const used = all.filter(({ isSkipped }) => !isSkipped).map(({ contribution }) => contribution);
    try {
      if (used.length === 0) this.#updates.keepRate(key);
      else this.#updates.apply(key, inWorkerOrder(used));
    } catch (error) {
      // For want of memory, before anything was changed; nobody is left waiting.
      refuseAll(all, error as TributaryError);
      return;
    }
    key.version++;
    for (const { contribution, reply, repeated } of all) {
      key.lastSteps.set(contribution.worker, contribution.step);
      const answer = { version: key.version, staleness: 0, duplicate: false };
      if ('rows' in contribution && contribution.pulls) key.pulled.set(contribution.worker, key.version);
      reply(answer);
      repeated?.reply({ ...answer, duplicate: true });
    }
  }

  /** True if the push was taken before; it is answered then, or takes the place of the one whose answer was lost. */
  #isDuplicate(key: Key, { worker, step }: Push, reply: Reply, fail: Fail): boolean {
    const isSynchronous = this.#consistency.kind === 'synchronous';
    const last = isSynchronous ? key.version : (key.lastSteps.get(worker) ?? 0);
    const waiting = key.waiting.get(worker);
    if (waiting && step === waiting.contribution.step) {
      // The request before has lost its connection, but may still have memory to give back.
      waiting.repeated?.fail(askedAgain(worker, key, step));
      waiting.repeated = { reply, fail };
      return true;
    }
    const heldStep = key.held?.step;
    if (step <= (heldStep ?? last) && Number.isInteger(step) && step > 0) {
      const sumOfSquares = key.held?.sumOfSquares;
      const answer = () => reply({ version: key.version, staleness: 0, duplicate: true, sumOfSquares });
      if (isSynchronous) answer();
      else key.clocks.done(worker, step, answer);
      return true;
    }
    if (heldStep !== undefined) throw notApplied(worker, key, step);
    if (step === last + 1) return false;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} pushed step ${step} of key ${keyText(key.title)}, expected step ${last + 1}; repeat the pushes before it that were refused, or connect anew if the server has lost them`,
      { worker, key: key.title, expected: last + 1, actual: step },
    );
  }

  /** Of a step that all have pushed, and after which the worker has pushed nothing. */
  #heldOf(key: Key, worker: number, step: number): Held {
    if (key.held === undefined) throw notHeld(worker, 'to look at updates');
    const held = key.waiting.has(worker) ? undefined : key.held.ofStep(step);
    if (held) return held;
    throw notHeldNow(worker, key, step);
  }

  #checkBetweenSteps(worker: number, key: Key): void {
    const { kind } = this.#consistency;
    const isUnderWay = key.waiting.size > 0 || key.held?.step !== undefined;
    if (kind === 'synchronous' ? !isUnderWay : worker === 0) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      kind === 'synchronous'
        ? `worker ${worker} sets the optimizer's state of key ${keyText(key.title)} while its step ${key.version + 1} is under way; do it between two steps of all workers`
        : `worker ${worker} sets the optimizer's state of key ${keyText(key.title)} in ${kind} training, where others go on meanwhile; let worker 0 do it before them`,
      { worker, key: key.title, consistency: kind },
    );
  }

  #isUsable(key: Key, { worker, step }: Push, values: Region<'float32'>): boolean {
    if (this.#nonFinite === 'accept' || Number.isFinite(this.#kernels.sumOfSquares(values))) return true;
    const at = values.view.findIndex((value) => !Number.isFinite(value));
    if (at < 0) return true; // Only the sum of the squares is too large for a number.
    if (this.#nonFinite === 'skip') return false;
    throw new UsageError(
      'NOT_A_NUMBER',
      `worker ${worker} pushed ${values.view[at]} to key ${keyText(key.title)} in step ${step}; look for a division by zero or a learning rate that is too high, or let such pushes be skipped`,
      { worker, key: key.title, step, value: String(values.view[at]) },
    );
  }

  #checkWorker(worker: number): void {
    if (this.#workers.has(worker)) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} is not one of this server's; let it join first`,
      { worker, workers: this.#workers.size },
    );
  }

  #keyOf({ worker, key: name }: { readonly worker: number; readonly key: StoreKey }): Key {
    this.#checkWorker(worker);
    const key = this.#keys.get(name);
    if (key) return key;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} used key ${keyText(name)}, which is not there; init it first`,
      { worker, key: name },
    );
  }
}

function memoryOf({ space }: Kernels): HeldMemory {
  return { allocate: (bytes) => space.allocate(bytes), free: (segment) => segment.close() };
}
