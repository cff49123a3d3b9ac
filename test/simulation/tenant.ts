/**
 * A tenant of a simulated run: what its workers do, by the real `RemoteStore` and `runSteps`, and
 * what must hold of its parameters. Two kinds: training in lock step, which must end with the bits
 * of an undisturbed run, and counting, whose gradients are ones, so that values say how often each
 * worker's pushes were applied. Invariant: what a worker says was acknowledged is known here before
 * its next call.
 */
import { createHash } from 'node:crypto';
import { TributaryError } from '../../src/base/index.ts';
import type { Kernels } from '../../src/kernels/index.ts';
import { RemoteStore, runSteps } from '../../src/kvstore/index.ts';
import type { RemoteStoreOptions } from '../../src/kvstore/index.ts';
import type { Consistency, ServiceOptions } from '../../src/server/index.ts';
import type { Host } from '../../src/sockets/index.ts';
import type { MemberAddress } from '../../src/transport/index.ts';
import { openClient } from './clients.ts';
import type { TrainingStore } from './clients.ts';
import { KeptSteps } from './kept-steps.ts';
import { Tally, type Glance } from './tally.ts';

export interface TenantPlan {
  readonly namespace: string;
  readonly kind: 'synchronous' | 'held' | 'asynchronous' | 'bounded' | 'elastic';
  readonly workers: number;
  /** Workers of a client, which face the servers as one. 1: there are no clients. */
  readonly clientSize: number;
  readonly steps: number;
  readonly checkpointEvery: number;
  readonly sharedMemory: boolean;
  /** How many servers it trains on; of several each has a part of every parameter. */
  readonly servers: 1 | 2;
  /** Whether the server has a folder for it. */
  readonly isKept: boolean;
  /** Whether acknowledged pushes survive a power cut. */
  readonly isOnDisk: boolean;
  /** Whether workers go on when a checkpoint was not written. */
  readonly goesOn: boolean;
}

/** Such training must end with the bits of an undisturbed run. */
export function isInLockStep(kind: TenantPlan['kind']): boolean {
  return kind === 'synchronous' || kind === 'held';
}

/** What did not hold. */
export class Violation extends Error {}

export interface WorkerPlace {
  readonly host: Host;
  readonly kernels: Kernels;
  readonly addresses: readonly string[];
  readonly note: (what: string) => void;
  /** Settles when so much virtual time has passed. */
  readonly pause: (ms: number) => Promise<void>;
  readonly nowMs: () => number;
  /** Whether a fault of the machine led to it. */
  readonly isExcused: (error: TributaryError) => boolean;
  /** By server, the names in a folder on its disk. */
  readonly stored: (folder: string) => readonly (readonly string[])[];
  /** Where there are clients: settles when all workers of this one's have said where they can be reached. */
  readonly meet: (address: MemberAddress['address']) => Promise<readonly MemberAddress[]>;
}

/** A worker that has its store. */
interface Working extends WorkerPlace {
  /** What the first worker of the client says, on all of them. */
  readonly agree: (what: boolean) => Promise<boolean>;
}

const LENGTHS = [50, 7];
const [ROWS, ROW_LENGTH] = [6, 3];
const CHUNK_BYTES = 64;
/** Steps from one push of rows to the next. */
const ROWS_EVERY = 3;
/** Steps from one look at what was applied to the next. */
const CHECKED_EVERY = 5;

interface Glances {
  readonly dense: Glance;
  readonly rows: Glance;
}

export class Tenant {
  readonly plan: TenantPlan;
  readonly nonce: string;
  readonly isLockStep: boolean;
  /** Steps of each worker that were acknowledged. */
  readonly acknowledged: number[];
  readonly #dense: Tally;
  readonly #rows: Tally;
  /**
   * The power was cut since it has its folder, and nobody asked that acknowledged pushes survive
   * it.
   */
  wasCut = false;
  isDone = false;
  /** Folders that it has had. */
  #folders = 1;
  /** The one that the server was last started with. */
  #served = 0;
  /** After the last step, by worker. */
  readonly hashes = new Map<number, string>();
  /** Steps that workers have begun, all together. */
  progress = 0;
  onProgress: () => void = () => undefined;
  readonly #pushed = new Set<number>();
  /** How often each worker was started, and has looked since then. */
  readonly #lives: number[] = [];
  readonly #looks = new WeakMap<TrainingStore, number>();
  /** Of clients, by client, life and look. */
  readonly #glances = new Map<string, Glances>();
  /** Where workers of a client have the same weights: those after a step, by client and step. */
  readonly #weights = new Map<string, string>();
  readonly #keptSteps = new KeptSteps({
    onLost: (what) => {
      throw new Violation(`'${this.plan.namespace}': ${what}`);
    },
  });
  /** By worker, when its last two steps ended. */
  readonly #stepped: Moments;
  /** By worker, when its last two checkpoints were answered. */
  readonly #kept: Moments;

  constructor(plan: TenantPlan, nonce: string) {
    this.plan = plan;
    this.nonce = nonce;
    this.isLockStep = isInLockStep(plan.kind);
    this.acknowledged = new Array<number>(plan.workers).fill(0);
    [this.#stepped, this.#kept] = [new Moments(plan.workers), new Moments(plan.workers)];
    this.#dense = new Tally(plan.workers, LENGTHS);
    this.#rows = new Tally(plan.workers, [ROWS * ROW_LENGTH]);
  }

  /**
   * As a server gets it that starts: from then on all is there that was, or nothing in a folder
   * that is new.
   */
  serve(): ServiceOptions {
    const { namespace, isOnDisk, isKept } = this.plan;
    if (this.#served !== this.#folders || !isKept) {
      this.#served = this.#folders;
      this.wasCut = false;
      this.acknowledged.fill(0);
      this.#pushed.clear();
      this.#weights.clear();
      for (const tally of [this.#dense, this.#rows]) tally.beginAnew();
    }
    return {
      ...{ namespace, nonce: this.nonce, folder: isKept ? this.#folder : undefined, graceMs: 1000 },
      lostWorkers: this.isLockStep ? 'wait' : 'release',
      ...{ durability: isOnDisk ? 'disk' : 'process', maxBytes: 64 * 2 ** 20 },
    };
  }

  /** When the worker, or one of its mates, began its last step that ended: what fails for one fails for all. */
  steppedMs(worker: number): number {
    return Math.min(...this.#matesOf(worker).map((mate) => this.#stepped.before(mate)));
  }

  /** When the checkpoint before their last one was answered. */
  keptMs(worker: number): number {
    return Math.min(...this.#matesOf(worker).map((mate) => this.#kept.before(mate)));
  }

  get hasBegunAnew(): boolean {
    return this.#folders > 1;
  }

  get #folder(): string {
    return `/data/${this.plan.namespace}-${this.#folders}`;
  }

  /**
   * Its folder was damaged by a power cut that it did not ask to survive: it begins anew in another
   * one, as the server said. False: it has begun anew since.
   */
  beginAnew({ code, message }: TributaryError): boolean {
    if (code === 'CHECKPOINT_CORRUPT' && !message.includes(this.#folder)) return false;
    // A server that does not know yet still has the one before.
    if (this.#served === this.#folders) this.#folders++;
    return true;
  }

  /** The newest file in that folder is damaged. */
  fileWasDamaged(folder: string): void {
    if (folder === this.#folder) this.#keptSteps.wasDamaged();
  }

  /** Whether its folder is that of the server: before, its workers would train what is given up. */
  get isServed(): boolean {
    return this.#served === this.#folders;
  }

  /**
   * What was acknowledged and is not known to be on the disk may be lost, once, unless it was to
   * survive this.
   */
  powerWasCut(): void {
    if (this.plan.isOnDisk) return;
    this.wasCut = true;
    for (const tally of [this.#dense, this.#rows]) tally.powerWasCut();
  }

  /** The whole life of one process of one worker. */
  async work(worker: number, place: WorkerPlace): Promise<void> {
    const { namespace, workers, clientSize, sharedMemory, kind } = this.plan;
    const { host, kernels, addresses: servers, note, meet } = place;
    const remote: RemoteStoreOptions = {
      ...{ servers, access: { namespace, nonce: this.nonce } },
      ...{ worker: this.#clientOf(worker), workers: workers / clientSize },
      ...{ sharedMemory, chunkBytes: CHUNK_BYTES, kernels },
      ...{ reconnectTimeoutMs: 20_000, requestTimeoutMs: 250_000 },
      ...{ held: kind === 'held', consistency: this.#consistency(), log: () => undefined },
    };
    note('connects');
    this.#lives[worker] = (this.#lives[worker] ?? 0) + 1;
    if (clientSize === 1) {
      const store = await RemoteStore.connect(remote, host);
      await this.#workOn(store, { ...place, agree: (what) => Promise.resolve(what) });
      return store.close();
    }
    const { store, agree, close } = await openClient({
      ...{ host, kernels, rank: worker % clientSize, meet, worker, workers },
      ...{ elastic: kind === 'elastic', remote: { ...remote, nonFinite: 'accept' }, note },
    });
    await this.#workOn(store, { ...place, agree });
    await close();
  }

  async #workOn(store: TrainingStore, working: Working): Promise<void> {
    working.note('is connected');
    if (this.isLockStep) await this.#train(this.#keptSteps.watch(store), working);
    else if (this.plan.kind === 'elastic') await this.#average(store, working);
    else await this.#count(store, working);
  }

  #clientOf(worker: number): number {
    return Math.floor(worker / this.plan.clientSize);
  }

  /** The workers of its client, itself among them. */
  #matesOf(worker: number): readonly number[] {
    const { clientSize } = this.plan;
    return Array.from({ length: clientSize }, (_, rank) => clientSize * this.#clientOf(worker) + rank);
  }

  /** Steps that the worker goes on behind: all of a client behind the one that has come farthest. */
  #begun(worker: number): number {
    return Math.max(...this.#matesOf(worker).map((mate) => this.acknowledged[mate]!));
  }

  #goesOn(): void {
    this.progress++;
    this.onProgress();
  }

  #consistency(): Consistency {
    switch (this.plan.kind) {
      case 'asynchronous':
        return { kind: 'asynchronous' };
      case 'bounded':
        return { kind: 'bounded', staleness: 3 };
      case 'elastic':
        return { kind: 'elastic', alpha: 0.5 };
      default:
        return { kind: 'synchronous' };
    }
  }

  async #train(store: TrainingStore, { note, stored, nowMs, isExcused }: WorkerPlace): Promise<void> {
    const { steps, checkpointEvery, goesOn } = this.plan;
    const { rank } = store;
    const keys = await openKeys(store, 0.5);
    await store.setOptimizer({ name: 'sgd', lr: 0.05, momentum: 0.9 });
    const onProblem = (error: TributaryError): void => {
      if (!isExcused(error)) throw error;
      note(`goes on: ${error.message}`);
    };
    for (;;) {
      try {
        await runSteps(store, {
          ...{ steps, checkpointEvery },
          step: async (step, isFirst) => {
            this.#goesOn();
            this.#checkStored(step, stored);
            await trainStep(store, keys, step, isFirst, this.plan);
            note(`step ${step}`);
            this.#stepped.add(rank, nowMs());
            if (step % checkpointEvery === 0) this.#kept.add(rank, nowMs());
          },
          onRewind: (step) => note(`goes back, was at step ${step}`),
          ...(goesOn ? { onProblem } : {}),
        });
        this.hashes.set(store.rank, await hashOf(store, keys));
        await store.barrier();
        this.isDone = true;
        return;
      } catch (error) {
        // A server was lost after the last step, and others may still need this worker to do it
        // again.
        if (!(error instanceof TributaryError) || error.code !== 'REWOUND') throw error;
        note('goes back after the last step');
      }
    }
  }

  /** Without a checkpoint that all servers have the next loss would cost all that was trained. */
  #checkStored(step: number, stored: WorkerPlace['stored']): void {
    const [first = [], ...others] = stored(this.#folder);
    const isCommon = (name: string): boolean => others.every((names) => names.includes(name));
    if (first.some((name) => name.endsWith('.checkpoint') && isCommon(name))) return;
    throw new Violation(
      `'${this.plan.namespace}', step ${step}: there is no checkpoint in ${this.#folder} to go back to`,
    );
  }

  /** The values count pushes: element e those of worker e modulo the workers. */
  async #count(store: TrainingStore, place: Working): Promise<void> {
    const { workers, steps, checkpointEvery } = this.plan;
    const { rank } = store;
    const keys = await openKeys(store, 0);
    place.note('has its keys');
    await store.setOptimizer({ name: 'sgd', lr: 1 });
    place.note('has its optimizer');
    for (const { gradient } of keys)
      gradient.view.forEach((_, e, all) => (all[e] = e % workers === rank ? 1 : 0));
    const rows = new Float32Array(ROWS * ROW_LENGTH).map((_, e) => (e % workers === rank ? 1 : 0));
    for (let step = this.#begun(rank) + 1; step <= steps; step++) {
      this.#goesOn();
      const pushesRows = (step - 1) % ROWS_EVERY === 0;
      await this.#push(store, keys, place, [
        () => this.#dense.count(rank, store.pushpull(keys)),
        ...(pushesRows ? [() => this.#rows.count(rank, store.pushRows('table', ALL_ROWS, rows))] : []),
      ]);
      this.acknowledged[rank] = step;
      this.#stepped.add(rank, place.nowMs());
      place.note(`push ${step} acknowledged`);
      if (this.#clientOf(rank) === 0 && step % checkpointEvery === 0)
        await this.#keep(store, step, await versionOf(store, keys), place);
      if (step % CHECKED_EVERY === 0) await this.#checkCounts(store, keys);
    }
    await this.#lookOn(rank, place, () => this.#checkCounts(store, keys));
  }

  /**
   * Those that could not be logged are pushed again by the same store, if the worker is one that
   * goes on: when a new log has begun with a checkpoint, where the error asks for that.
   */
  async #push(
    store: TrainingStore,
    keys: Keys,
    { note, pause, isExcused }: WorkerPlace,
    pushes: readonly (() => Promise<unknown>)[],
  ): Promise<void> {
    for (let open = pushes; open.length > 0;) {
      const results = await Promise.allSettled(open.map((push) => push()));
      const errors = results.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []));
      const refused = errors.filter((error): error is TributaryError => isOf(error, 'FILE_NOT_WRITTEN'));
      const other = errors.find((error) => !isOf(error, 'FILE_NOT_WRITTEN'));
      if (other !== undefined) throw other as Error;
      open = open.filter((_, i) => results[i]!.status === 'rejected');
      if (open.length === 0) return;
      for (const error of refused) if (!this.plan.goesOn || !isExcused(error)) throw error;
      note(`pushes again: ${refused[0]!.message}`);
      await pause(200);
      if (!refused.some(({ message }) => message.includes('call checkpoint()'))) continue;
      await this.#beginLogs(store, keys, { note, pause, isExcused });
    }
  }

  async #beginLogs(
    store: TrainingStore,
    keys: Keys,
    { note, pause, isExcused }: Pick<WorkerPlace, 'note' | 'pause' | 'isExcused'>,
  ): Promise<void> {
    for (let later = 0; ;) {
      try {
        return await store.checkpoint(later + (await versionOf(store, keys)), { isDurable: true });
      } catch (error) {
        if (isOf(error, 'CHECKPOINT_NOT_WRITTEN') && error.message.includes('with a later step')) {
          later++;
          continue;
        }
        // Another worker may have begun them meanwhile, at a later version.
        const isOvertaken =
          isOf(error, 'CHECKPOINT_NOT_WRITTEN') && /later steps|of step \d+ before/.test(error.message);
        if (!isOf(error, 'CHECKPOINT_NOT_WRITTEN') || !(isOvertaken || isExcused(error))) throw error;
        note(`has no new log yet: ${error.message}`);
        await pause(200);
      }
    }
  }

  /** Waits for the disk every other time. */
  async #keep(
    store: TrainingStore,
    step: number,
    version: number,
    { note, nowMs, isExcused }: WorkerPlace,
  ): Promise<void> {
    const told = async (written: Promise<void>): Promise<void> => {
      try {
        await written;
      } catch (error) {
        const isProblem = error instanceof TributaryError && error.code === 'CHECKPOINT_NOT_WRITTEN';
        if (!isProblem || !this.plan.goesOn || !isExcused(error)) throw error;
        note(`goes on: ${error.message}`);
      }
    };
    const kept = [this.#dense, this.#rows].map((tally) => tally.checkpoint());
    await told(store.checkpoint(version));
    this.#kept.add(store.rank, nowMs());
    if (step % 2 !== 0) return;
    await told(store.checkpointsWritten().then(() => kept.forEach((isOnDisk) => isOnDisk())));
  }

  /** Looking on shows whether a server was started again, which then needs this worker's help. */
  async #lookOn(rank: number, { pause, nowMs, agree }: Working, look: () => Promise<unknown>): Promise<void> {
    this.#pushed.add(rank);
    const isAlone = () => this.#pushed.size < this.plan.workers;
    // Where its pushes may be lost others would wait for them as long as it stays.
    const mayStay = () => !(this.wasCut && this.plan.kind === 'bounded');
    for (let ms = 50; await agree(isAlone() && mayStay()); ms = Math.min(2 * ms, 2000)) {
      await pause(ms);
      await look();
      this.#stepped.add(rank, nowMs());
    }
    await look();
    this.isDone = !isAlone();
  }

  /** To be called by a worker none of whose pushes is under way. */
  async #checkCounts(store: TrainingStore, keys: Keys): Promise<void> {
    const glances = this.#glancesOf(store);
    const dense = this.#dense.look(store.rank, glances.dense);
    const rows = this.#rows.look(store.rank, glances.rows);
    const table = new Float32Array(ROWS * ROW_LENGTH);
    await Promise.all([
      store.pull(keys.map(({ key, into }) => ({ key, into }))),
      store.pullRows('table', ALL_ROWS, table),
    ]);
    const problem = dense(keys.map(({ into }) => into.view)) ?? rows([table]);
    if (problem !== undefined) throw new Violation(`'${this.plan.namespace}', ${problem}`);
  }

  /** A client pulls once for all its workers, when the first of them may still be the only one that has asked. */
  #glancesOf(store: TrainingStore): Glances {
    const looks = (this.#looks.get(store) ?? 0) + 1;
    this.#looks.set(store, looks);
    const client = Math.floor(store.rank / this.plan.clientSize);
    const name = `${client}/${this.#lives[store.rank]}/${looks}`;
    const glances = this.#glances.get(name) ?? { dense: this.#dense.glance(), rows: this.#rows.glance() };
    if (this.plan.clientSize > 1) this.#glances.set(name, glances);
    return glances;
  }

  /** Elastic averaging: nothing is counted, but every step ends and all stays finite. */
  async #average(store: TrainingStore, place: Working): Promise<void> {
    const { steps, checkpointEvery, namespace } = this.plan;
    const { rank } = store;
    const client = this.#clientOf(rank);
    const keys = await openKeys(store, 0.5);
    for (let step = this.#begun(rank) + 1; step <= steps; step++) {
      this.#goesOn();
      for (const { gradient, into } of keys)
        gradient.view.set(into.view.map((value) => value + 0.01 * (client + 1)));
      await this.#push(store, keys, place, [() => store.pushpull(keys)]);
      this.acknowledged[rank] = step;
      this.#stepped.add(rank, place.nowMs());
      place.note(`average ${step}`);
      for (const { key, into } of keys) {
        if (into.view.every((value) => Number.isFinite(value) && Math.abs(value) < 100)) continue;
        throw new Violation(`'${namespace}', key ${key}: the average is ${into.view.join(' ')}`);
      }
      this.#checkAlike(client, step, keys);
      if (client === 0 && step % checkpointEvery === 0)
        await this.#keep(store, step, await versionOf(store, keys), place);
    }
    await this.#lookOn(rank, place, () => store.pull(keys.map(({ key, into }) => ({ key, into }))));
  }

  #checkAlike(client: number, step: number, keys: Keys): void {
    const [name, weights] = [`${client} ${step}`, keys.map(({ into }) => into.view.join(' ')).join(' ')];
    const known = this.#weights.get(name);
    this.#weights.set(name, weights);
    if (known === undefined || known === weights) return;
    throw new Violation(
      `'${this.plan.namespace}', average ${step}: workers of client ${client} have other weights than each other`,
    );
  }
}

function isOf(error: unknown, code: string): error is TributaryError {
  return error instanceof TributaryError && error.code === code;
}

/** The number of the newest state, by which checkpoints are called. */
async function versionOf(store: TrainingStore, keys: Keys): Promise<number> {
  const [status] = await store.pull(keys.map(({ key, into }) => ({ key, into })));
  return status!.version;
}

/** The last two moments of each worker. */
class Moments {
  readonly #last: number[];
  readonly #before: number[];

  constructor(workers: number) {
    this.#last = new Array<number>(workers).fill(0);
    this.#before = new Array<number>(workers).fill(0);
  }

  add(worker: number, atMs: number): void {
    this.#before[worker] = this.#last[worker]!;
    this.#last[worker] = atMs;
  }

  before(worker: number): number {
    return this.#before[worker]!;
  }
}

type Keys = Awaited<ReturnType<typeof openKeys>>;

const ALL_ROWS = Int32Array.from({ length: ROWS }, (_, i) => i);

async function openKeys(store: TrainingStore, first: number) {
  const keys = LENGTHS.map((length, i) => ({
    ...{ key: `w${i}`, gradient: store.allocate(length), into: store.allocate(length) },
  }));
  for (const { into } of keys) into.view.fill(first);
  await store.init(keys.map(({ key, into }) => ({ key, value: new Float32Array(into.length).fill(first) })));
  // A batch of its own: a server that was started again is told of all.
  const rows = new Float32Array(ROWS * ROW_LENGTH).fill(first);
  await store.init({ key: 'table', value: rows, rowLength: ROW_LENGTH });
  return keys;
}

/**
 * Gradients depend on the parameters: every step that is lost, doubled or done from others changes
 * the result.
 */
async function trainStep(
  store: TrainingStore,
  keys: Keys,
  step: number,
  isFirst: boolean,
  { kind, clientSize }: TenantPlan,
): Promise<void> {
  const isHeld = kind === 'held';
  const pulls = keys.map(({ key, into }) => ({ key, into }));
  if (isFirst || isHeld) await store.pull(pulls);
  for (const { gradient, into } of keys) {
    for (let i = 0; i < gradient.length; i++) {
      gradient.view[i] = (((i * 7 + store.rank * 13 + step * 31) % 17) - 8) / 64 + 0.1 * into.view[i]!;
    }
  }
  const pushes = [
    isHeld ? store.push(keys.map(({ key, gradient }) => ({ key, gradient }))) : store.pushpull(keys),
    step % ROWS_EVERY === 0 ? trainRows(store, step) : Promise.resolve(),
  ];
  // In a client what goes on would be of the step after going back.
  if (clientSize > 1) await Promise.allSettled(pushes);
  await Promise.all(pushes);
  if (isHeld) await store.apply!({ scale: 0.5, lr: 0.05 });
}

async function trainRows(store: TrainingStore, step: number): Promise<void> {
  const touched = Int32Array.from({ length: 4 }, (_, i) => (i * i + 3 * step + 5 * store.rank) % ROWS);
  const rows = new Float32Array(4 * ROW_LENGTH);
  await store.pullRows('table', touched, rows);
  const gradient = rows.map((value, i) => 0.1 * value + (i % 7) / 64);
  await store.pushRows('table', touched, gradient);
}

/** Of the parameters on the servers. */
async function hashOf(store: TrainingStore, keys: Keys): Promise<string> {
  await store.pull(keys.map(({ key, into }) => ({ key, into })));
  const table = new Float32Array(ROWS * ROW_LENGTH);
  await store.pullRows('table', ALL_ROWS, table);
  const hash = createHash('sha256');
  for (const { into } of keys) hash.update(Float32Array.from(into.view));
  return hash.update(table).digest('hex');
}
