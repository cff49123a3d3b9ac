/**
 * A worker's store whose parameters are on servers, in this host or others (PHub; MXNET-MPI's dist
 * types). Every worker plans for itself which core has which piece of a key and talks to all of
 * them. On one host gradients are read where they lie and values can be read in the server's own
 * memory; between hosts they travel. Invariants: calls of a worker are sent in the order in which
 * they were made; a gradient that is refused changes nothing on any core.
 */
import type { PeerError, StoreKey, UsageError } from '../../base/index.ts';
import { Kernels } from '../../kernels/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../../kernels/index.ts';
import { SharedSpace } from '../../memory/index.ts';
import type { Region } from '../../memory/index.ts';
import { segmentPrefix, StreamResources } from '../../server/index.ts';
import type { Header, Updater } from '../../server/index.ts';
import { systemHost, TlsTunnel } from '../../sockets/index.ts';
import type { Host } from '../../sockets/index.ts';
import type {
  KeyInit,
  KeyPull,
  KeyPush,
  KeyPushPull,
  OneOrMany,
  RecoverableStore,
  SeededKeyInit,
  StoreTensor as Tensor,
} from '../kv-store.ts';
import type { CoreLine } from './core-line.ts';
import { ExchangeLists } from './exchange-lists.ts';
import { entryOf, handOver, usesNoStaging } from './exchanged-tensors.ts';
import { HeldSteps } from './held-steps.ts';
import type { ApplyOptions, RemoteKeyStatus } from './held-steps.ts';
import { KeyTable } from './key-table.ts';
import type { KnownKey } from './key-table.ts';
import { linePumpOf } from './line-pump.ts';
import { StateExchange } from './optimizer-state.ts';
import type { InitialKeyState, KeyState } from './optimizer-state.ts';
import { allAnswered, countPush, refusalsSettled } from './push-answers.ts';
import { StoreRecovery } from './recovery.ts';
import { RowExchange } from './rows.ts';
import { ServerLines } from './server-lines.ts';
import { StoreCheckpoints } from './store-checkpoints.ts';
import { alreadyClosed, closedMeanwhile, inPlaceOfValue, notFinite, wrongCall } from './store-faults.ts';
import {
  checkApply,
  checkOptions,
  checkRate,
  checkRateOfPush,
  mayShare,
  samplesOf,
  settingsOf,
} from './store-options.ts';
import type { RemotePushOptions, RemoteStoreOptions } from './store-options.ts';
import { checkLength, elementsOf, listOf, StoreMemory } from './tensors.ts';

export type { RemoteStoreOptions } from './store-options.ts';

export class RemoteStore implements RecoverableStore {
  readonly rank: number;
  readonly workers: number;
  /** Pushes whose values were left out because they were not finite. */
  skipped = 0;
  readonly #options: RemoteStoreOptions;
  readonly #host: Host;
  readonly #kernels: Kernels;
  readonly #resources: StreamResources;
  readonly #lines: ServerLines;
  readonly #memory: StoreMemory;
  readonly #lists: ExchangeLists;
  readonly #rows: RowExchange;
  readonly #state: StateExchange;
  readonly #tunnel: TlsTunnel | undefined;
  readonly #keys: KeyTable;
  readonly #recovery: StoreRecovery;
  readonly #checkpoints: StoreCheckpoints;
  readonly #isSynchronous: boolean;
  /** Where updates are held. */
  readonly #held: HeldSteps | undefined;
  #optimizers = 0;
  #meetings = 0;
  /** Settles when everything that was called so far has been sent. */
  #sending: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(
    options: RemoteStoreOptions,
    kernels: Kernels,
    resources: StreamResources,
    lines: ServerLines,
    tunnel: TlsTunnel | undefined,
    host: Host,
  ) {
    this.#host = host;
    const { access, worker, workers } = options;
    this.rank = worker;
    this.workers = workers;
    this.#options = options;
    this.#kernels = kernels;
    this.#resources = resources;
    this.#lines = lines;
    this.#tunnel = tunnel;
    this.#memory = new StoreMemory(
      kernels,
      segmentPrefix(access.namespace, access.nonce),
      lines.isShared.includes(true),
      host,
    );
    this.#lists = new ExchangeLists(lines.lines, this.#memory, lines.isShared);
    this.#rows = new RowExchange(worker, lines.lines, lines.isShared, this.#memory, kernels);
    this.#keys = new KeyTable(options.worker, lines, kernels, options.chunkBytes);
    if (options.held) this.#held = new HeldSteps(worker, this.#keys, options.rows ?? 'lazy');
    const isSynchronous = (options.consistency?.kind ?? 'synchronous') === 'synchronous';
    this.#isSynchronous = isSynchronous;
    this.#state = new StateExchange({ worker, lines: lines.lines, space: kernels.space, isSynchronous });
    const told = [this.#lists, this.#rows];
    this.#checkpoints = new StoreCheckpoints({
      ...{ lines: lines.lines, namespace: access.namespace },
      isShared: isSynchronous && lines.servers > 1,
      onMet: () => this.#recovery.hasMet(),
    });
    this.#recovery = new StoreRecovery({
      ...{ worker, lines: lines.lines, keys: this.#keys, told, isSynchronous, host },
      checkpoints: this.#checkpoints,
    });
  }

  /**
   * Resolves when all cores of all servers have let this worker in. `host`: the machine it runs on.
   * Default: this one.
   */
  static async connect(options: RemoteStoreOptions, host: Host = systemHost): Promise<RemoteStore> {
    checkOptions(options);
    const { access, worker, tls } = options;
    const kernels = options.kernels ?? Kernels.create(options.space ?? SharedSpace.create());
    const { space } = kernels;
    const resources = new StreamResources(space, host.libc);
    const tunnel = tls && (await TlsTunnel.open(tls, TUNNEL_LIMITS));
    let store: RemoteStore | undefined;
    try {
      const lines = await ServerLines.open(
        options.servers,
        {
          ...{ host, pump: linePumpOf(host, options.kernels?.space), access, worker, resources },
          incarnation: host.randomHex(32),
          settings: settingsOf(options),
          reconnectTimeoutMs: options.reconnectTimeoutMs ?? RECONNECT_MS,
          refusedTimeoutMs: options.refusedTimeoutMs,
          requestTimeoutMs: options.requestTimeoutMs ?? DAY_MS,
          log: options.log ?? ((line) => void process.stderr.write(`${line}\n`)),
          // Nothing can restart before the store is there: until then there is nothing to be told
          // again.
          onRestart: (line) => (store ? store.#recovery.onRestart(line) : Promise.resolve()),
        },
        tunnel,
        (server) => mayShare(options.sharedMemory, server),
      );
      store = new RemoteStore(options, kernels, resources, lines, tunnel, host);
      void tunnel?.lost.then((error) => lines.close(error));
      return store;
    } catch (error) {
      await tunnel?.close();
      resources.close();
      throw error;
    }
  }

  /** What becomes of pushes before there is an optimizer. */
  get updater(): Updater {
    return this.#options.updater ?? 'assign';
  }

  /** Whether keys that this worker opened had values already, those of an earlier training; only the first worker knows. */
  get foundValues(): boolean {
    return this.#keys.foundValues;
  }

  /** Whether all servers use this process's memory in place. */
  get sharesMemory(): boolean {
    return !this.#lines.isShared.includes(false);
  }

  /** Whether any of them does. */
  get sharesSome(): boolean {
    return this.#lines.isShared.includes(true);
  }

  get space(): SharedSpace {
    return this.#memory.space;
  }

  /**
   * Memory that servers on this host read and write in place; tensors elsewhere are copied. Freed
   * by `close`.
   */
  allocate(length: number): Region<'float32'> {
    this.#checkOpen();
    return this.#memory.allocate(length);
  }

  /**
   * The server's own memory of a value, where one server on this host has all of it. Pulling into
   * it moves nothing: it is what it is. Between a push and its answer it changes.
   */
  value(key: StoreKey): Region<'float32'> | undefined {
    return this.#keys.lend(key);
  }

  /** Keys with a seed take no memory here: every server makes the values that it has. */
  init(keys: OneOrMany<KeyInit | SeededKeyInit>): Promise<void> {
    return this.#answered(() => this.#keys.open(listOf(keys))).then(() => undefined);
  }

  push(keys: OneOrMany<KeyPush>, options: RemotePushOptions = {}): Promise<readonly RemoteKeyStatus[]> {
    return this.#exchange(listOf(keys), options, true, false);
  }

  pull(keys: OneOrMany<KeyPull>): Promise<readonly RemoteKeyStatus[]> {
    return this.#exchange(listOf(keys), {}, false, true);
  }

  pushpull(
    keys: OneOrMany<KeyPushPull>,
    options: RemotePushOptions = {},
  ): Promise<readonly RemoteKeyStatus[]> {
    return this.#held
      ? Promise.reject(this.#wrongCall('pushpull'))
      : this.#exchange(listOf(keys), options, true, true);
  }

  pushRows(
    key: StoreKey,
    indices: Int32Array,
    rows: Tensor,
    options: RemotePushOptions = {},
  ): Promise<RemoteKeyStatus> {
    return this.#pushRows(key, indices, rows, undefined, options);
  }

  /** Into `value(key)`: nothing moves, because the rows are where they are read. */
  pushpullRows(
    key: StoreKey,
    indices: Int32Array,
    rows: Tensor,
    into: Tensor,
    options: RemotePushOptions = {},
  ): Promise<RemoteKeyStatus> {
    if (this.#held) return Promise.reject(this.#wrongCall('pushpullRows'));
    return this.#pushRows(key, indices, rows, into, options);
  }

  /**
   * Where updates are held: what all workers have pushed since the last call takes effect, times
   * `scale`, and pulls that follow see it. Every worker calls it once for each step with the same
   * numbers; those of the first to call are used. Keys that nobody pushed are left alone; rows of
   * tables, where they are exact, get what a gradient of zeros would do. One that is refused because
   * pushes are missing is repeated, with the same numbers, when they were made.
   */
  async apply({ scale = 1, lr }: ApplyOptions = {}): Promise<void> {
    await this.#answered(async () => {
      const held = this.#held;
      if (held === undefined) throw this.#wrongCall('apply');
      checkApply(this.rank, scale, lr);
      await held.answered();
      this.#recovery.check();
      held.checkNoneRefused();
      this.#recovery.hasBegun();
      const { step, settle } = held.next();
      const request = { op: 'apply', step, scale, lr };
      return [settle(allAnswered(this.#lines.lines.map((line) => line.request(request))))];
    });
  }

  /**
   * Where updates are held: the combined gradients of keys that this worker has pushed and not
   * applied yet, the very numbers that an update with scale 1 uses, when all workers have pushed
   * them. They stay held. Other workers may have applied them.
   */
  async pullHeld(keys: OneOrMany<KeyPull>): Promise<void> {
    if (this.#held === undefined) throw this.#wrongCall('pullHeld');
    await this.#exchange(listOf(keys), {}, false, true, true);
  }

  /** The same of rows, in the order of the indices; zeros where nobody pushed a row. */
  async pullHeldRows(key: StoreKey, indices: Int32Array, into: Tensor): Promise<void> {
    await this.#answered(async () => {
      const held = this.#held;
      if (held === undefined) throw this.#wrongCall('pullHeldRows');
      const known = this.#keys.table(key);
      checkLength(key, 'pulled into', into.length, indices.length * known.rowLength!);
      this.#checkNotValue(known, into);
      await held.combined([known]);
      this.#recovery.check();
      const { answer } = await this.#rows.pull({ known, indices, into, heldStep: known.step });
      held.looked(answer);
      return [answer];
    });
  }

  #pushRows(
    key: StoreKey,
    indices: Int32Array,
    rows: Tensor,
    into: Tensor | undefined,
    options: RemotePushOptions,
  ): Promise<RemoteKeyStatus> {
    return this.#answered(async () => {
      const known = this.#keys.table(key);
      checkLength(key, 'pushed with', rows.length, indices.length * known.rowLength!);
      const isInPlace = into !== undefined && into === known.value;
      if (into && !isInPlace) checkLength(key, 'pulled into', into.length, indices.length * known.rowLength!);
      this.#held?.check([known]);
      await refusalsSettled([known]);
      checkRateOfPush(key, this.#options, options);
      const isSkipped = options.isSkipped === true || !this.#isUsable(known, rows);
      const { answer } = await this.#rows.push({
        ...{ known, indices, rows, into: isInPlace ? undefined : into, pulls: into !== undefined },
        ...{ isSkipped, step: known.step + 1, lr: options.lr },
        samples: samplesOf(key, this.rank, options, this.#held !== undefined),
      });
      countPush([known], answer);
      this.#held?.pushed([known], answer);
      this.#recovery.hasBegun();
      return [answer];
    }).then(([status]) => status!);
  }

  /** `slot`: rows of what the optimizer, or an average, keeps, by its name in a `KeyState`. */
  pullRows(key: StoreKey, indices: Int32Array, into: Tensor, slot?: string): Promise<RemoteKeyStatus> {
    return this.#answered(async () => {
      const known = this.#keys.table(key);
      checkLength(key, 'pulled into', into.length, indices.length * known.rowLength!);
      const { answer } = await this.#rows.pull({ known, indices, into, slot });
      return [answer];
    }).then(([status]) => status!);
  }

  async setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void> {
    await this.#answered(() => {
      const number = this.#optimizers++;
      this.#recovery.setOptimizer(number, spec);
      return Promise.resolve(
        this.#lines.lines.map((line) => line.request({ op: 'optimizer', number, spec })),
      );
    });
  }

  /**
   * Calls that follow wait until all servers have it, so that none of them makes an update at
   * another rate than the others.
   */
  setLearningRate(lr: number): Promise<void> {
    return this.#inOrder(async () => {
      this.#recovery.check();
      checkRate(this.rank, lr);
      const request = { op: 'learning-rate', number: this.#meetings++, lr };
      await Promise.all(this.#lines.lines.map((line) => this.#meetAt(line, request)));
      this.#recovery.setLearningRate(lr);
    });
  }

  /**
   * What the optimizer keeps of a key on the servers, as one device would have it after as many
   * steps: rows of tables that are exact get the updates first that they missed. To be called
   * between two steps, when what was pushed is answered and applied; calls that follow wait.
   * `into`: a tensor for each slot. Default: new ones in plain memory.
   */
  pullState(key: StoreKey, into?: KeyState['slots']): Promise<KeyState> {
    return this.#inOrder(async () => {
      this.#recovery.check();
      return this.#state.fetch(this.#keys.get(key), into);
    });
  }

  /** One slot of that, or an average, by its name in a `KeyState`. */
  pullSlot(key: StoreKey, slot: string, into: Tensor): Promise<void> {
    return this.#inOrder(async () => {
      this.#recovery.check();
      await this.#state.fetchSlot(this.#keys.get(key), slot, into);
    });
  }

  /**
   * Elements of a table, or of a slot that the optimizer keeps of it, from `first` on, for whoever
   * has no memory for all of them; with all updates that rows had missed. To be called as
   * `pullState` is. `into`: in the store's space.
   */
  pullElements(key: StoreKey, first: number, into: Region<'float32'>, slot?: string): Promise<void> {
    return this.#inOrder(async () => {
      this.#recovery.check();
      await this.#state.read(this.#keys.table(key), slot, first, into);
    });
  }

  /** The other way round, by the first worker alone, before an `initState` that says that they were given. */
  pushElements(key: StoreKey, first: number, from: Region<'float32'>, slot?: string): Promise<void> {
    return this.#inOrder(async () => {
      this.#recovery.check();
      await this.#state.write(this.#keys.table(key), slot, first, from);
    });
  }

  /**
   * Gives keys the optimizer's state after so many steps, to go on from there; values are those of
   * `init`, or of the state. To be called after `init` and `setOptimizer` by all workers, in
   * synchronous training: the slots of the first worker count, and `steps` must be the same. Done
   * when all have come. In other training by the first worker alone, before the others connect.
   */
  initState(states: OneOrMany<InitialKeyState>): Promise<void> {
    return this.#inOrder(async () => {
      this.#recovery.check();
      const all = listOf(states).map((state) => ({ known: this.#keys.get(state.key), state }));
      this.#recovery.hasBegun();
      if (!this.#isSynchronous) return this.#state.giveAlone(all);
      await this.#state.give(all, () => this.#meet());
    });
  }

  /**
   * Keeps the parameters as they are after a step, in the background. In synchronous training all
   * workers call it between the same two steps. `isDurable`: done only when it is on the servers'
   * disks. Otherwise one that was not written is reported by the next call, whose own checkpoint is
   * taken all the same, or by `checkpointsWritten`.
   */
  async checkpoint(step: number, { isDurable = false } = {}): Promise<void> {
    await this.#answered(() => Promise.resolve([this.#checkpoints.ask(step, isDurable)]));
  }

  /**
   * Done when all checkpoints that this worker asked for are on the servers' disks; fails if one is
   * not, unless that was reported.
   */
  async checkpointsWritten(): Promise<void> {
    await this.#answered(() => Promise.resolve([this.#checkpoints.written()]));
  }

  /**
   * Goes back, together with all other workers, to the newest checkpoint that all servers have;
   * returns its step, or 0 without any. To be called after `init` and `setOptimizer` by a worker
   * that was started again, and by all after an error with code REWOUND. In asynchronous training
   * nothing is taken back: the servers have all that they acknowledged.
   */
  resume(): Promise<number> {
    return this.#inOrder(async () => {
      const step = await this.#recovery.goBack();
      this.#held?.restart();
      return step;
    });
  }

  /**
   * With bounded staleness: nobody waits for this worker until its next push, as when it has something else to do. Waits
   * of others end.
   */
  async pause(): Promise<void> {
    await this.#answered(() =>
      Promise.resolve(this.#lines.lines.map((line) => line.request({ op: 'pause' }))),
    );
  }

  async barrier(): Promise<void> {
    await this.#answered(() => Promise.resolve([this.#meet()]));
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    const byes = this.#lines.lines.map((line) => line.request({ op: 'bye' }));
    await Promise.race([
      Promise.allSettled(byes),
      new Promise<void>((resolve) => this.#host.clock.after(BYE_MS, resolve)),
    ]);
    this.#lines.close(this.#cancelled());
    await this.#sending.catch(() => undefined);
    await this.#tunnel?.close();
    this.#keys.close();
    this.#state.close();
    this.#memory.close();
    this.#resources.close();
  }

  #meet(): Promise<Header> {
    return this.#meetAt(this.#lines.lines[0]!, { op: 'barrier', number: this.#meetings++ });
  }

  /** Workers have met as soon as one core has answered: that one, if it is lost, is not asked again. */
  async #meetAt(line: CoreLine, request: object): Promise<Header> {
    const answer = await line.request(request);
    this.#recovery.hasMet();
    return answer;
  }

  #exchange(
    keys: readonly (KeyPush | KeyPull | KeyPushPull)[],
    options: RemotePushOptions,
    push: boolean,
    pull: boolean,
    fromHeld = false,
  ): Promise<readonly RemoteKeyStatus[]> {
    return this.#answered(async () => {
      const known = keys.map(({ key }) => this.#keys.get(key));
      const isHeld = push && this.#held !== undefined;
      if (push && keys.length > 0) checkRateOfPush(keys[0]!.key, this.#options, options);
      const samples = push && keys.length > 0 ? samplesOf(keys[0]!.key, this.rank, options, isHeld) : 1;
      if (push) {
        this.#held?.check(known);
        await refusalsSettled(known);
      }
      if (fromHeld) await this.#beforeLook(keys as readonly KeyPull[], known);
      // Copies of an earlier call on the same key may still be on their way.
      const staging = known.filter((_, i) => !usesNoStaging(this.#memory, keys[i]!));
      if (staging.length > 0) await Promise.all(staging.map(({ busy }) => busy));
      const entries = keys.map((one, i) => entryOf(this.#memory, one, known[i]!));
      const skipped = push
        ? entries.flatMap(({ key, gradient }, i) =>
            options.isSkipped !== true && this.#isUsable(key, gradient!) ? [] : [i],
          )
        : [];
      const steps = known.map(({ step }) => (fromHeld ? step : step + 1));
      const call = { push, pull, fromHeld, steps, samples, skipped, isHeld, lr: options.lr };
      const { answers } = await this.#lists.exchange(entries, call);
      if (push) {
        this.#recovery.hasBegun();
        countPush(known, answers);
        this.#held?.pushed(known, answers);
      }
      const whole = answers.then((statuses) => {
        if (pull) keys.forEach((one, i) => handOver(this.#kernels, one as KeyPull, entries[i]!));
        return statuses;
      });
      if (fromHeld) this.#held?.looked(whole);
      const settled = whole.catch(() => undefined);
      for (const key of staging) key.busy = settled;
      return [whole];
    }).then(([statuses]) => statuses!);
  }

  async #beforeLook(keys: readonly KeyPull[], known: readonly KnownKey[]): Promise<void> {
    keys.forEach(({ into }, i) => this.#checkNotValue(known[i]!, ...listOf(into)));
    await this.#held!.combined(known);
    this.#recovery.check();
  }

  /** Other workers read parameters there. */
  #checkNotValue({ key, value }: KnownKey, ...targets: readonly Tensor[]): void {
    if (value === undefined || !targets.includes(value)) return;
    throw inPlaceOfValue(this.rank, key);
  }

  #isUsable({ key, step }: KnownKey, gradient: Tensor): boolean {
    const { nonFinite = 'refuse' } = this.#options;
    if (nonFinite === 'accept' || gradient.length === 0) return true;
    const view = elementsOf(gradient);
    const isRegion = !(gradient instanceof Float32Array) && gradient.space === this.space;
    const isSane = isRegion && Number.isFinite(this.#kernels.sumOfSquares(gradient));
    const at = isSane ? -1 : view.findIndex((value) => !Number.isFinite(value));
    if (at < 0) return true;
    if (nonFinite === 'skip') {
      this.skipped++;
      return false;
    }
    throw notFinite(this.rank, key, step + 1, view[at]!);
  }

  /** Prepares and sends after everything called before; then waits for the answers. */
  async #answered<T>(send: () => Promise<readonly Promise<T>[]>): Promise<readonly T[]> {
    const { answers } = await this.#inOrder(async () => {
      this.#recovery.check();
      return { answers: Promise.all(await send()) };
    });
    return answers;
  }

  async #inOrder<T>(send: () => Promise<T>): Promise<T> {
    this.#checkOpen();
    const sent = this.#sending.then(() => {
      if (this.#closed) throw this.#cancelled();
      return send();
    });
    this.#sending = sent.catch(() => undefined);
    return sent;
  }

  #wrongCall(call: string): UsageError {
    return wrongCall(this.rank, call, this.#held !== undefined);
  }

  #cancelled(): PeerError {
    return closedMeanwhile(this.rank);
  }

  #checkOpen(): void {
    if (this.#closed) throw alreadyClosed(this.rank);
  }
}

const BYE_MS = 1000;
const RECONNECT_MS = 30_000;
const DAY_MS = 86_400_000;

/** For calls only: nobody calls a store. */
const TUNNEL_LIMITS = { handshakeTimeoutMs: 5000, maxPendingHandshakes: 0, log: () => undefined };
