/**
 * The store of one worker in racks with a parameter server each (PHub, section 3.4): the rack's server adds up what its workers
 * push; the leader of the rack, its first worker, takes the sum to the leaders of the other racks, by whatever store they
 * share (collectives: each updates its own copy; servers: each has a share of the chunks); it puts the new values into
 * the rack's server, where the workers pull them. Between racks goes one gradient for each rack, not for each worker.
 *
 * Every push is one of all workers of all racks, for each key the same calls in the same order. Pulls are a worker's own
 * affair, but those of a table are of the whole rack: other racks touch other rows, so the leader fetches what is asked
 * for. Each key has a sum, value and gate of its own on the rack's server and waits for no other, so that workers may go
 * through keys in any order. Invariant: what fails on the leader fails on all workers of its rack with the same error.
 */
import { UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { Kernels } from '../kernels/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import type { Consistency } from '../server/index.ts';
import { Keys } from './collective-keys.ts';
import type { KnownKey, NonFinite, Table } from './collective-keys.ts';
import { pushThenPullRows } from './kv-store.ts';
import type {
  KeyInit,
  KeyPull,
  KeyPush,
  KeyPushPull,
  KeyStatus,
  KVStore,
  OneOrMany,
  PushOptions,
  StoreTensor as Tensor,
} from './kv-store.ts';
import { OrderedCalls } from './ordered-calls.ts';
import type { OrderOptions } from './ordered-calls.ts';
import { Gate, GATE_WORDS, gateInits, serverMemory } from './rack-gate.ts';
import type { Passed, Share } from './rack-gate.ts';
import { RackKeys } from './rack-keys.ts';
import type { RackKey } from './rack-keys.ts';
import { putRows, takeNamed, takeRows, tellNamed, uniqueIndices } from './rack-rows.ts';
import type { RemoteStore } from './remote/remote-store.ts';
import { listOf } from './remote/tensors.ts';

export interface RackStoreOptions extends OrderOptions {
  /**
   * The workers of this rack on its one server, without an optimizer and with `updater: 'accumulate'`; closed with this store. Worker 0 of it is the leader,
   * who must be on the server's host. `combine` as `between` has it; `nonFinite` 'skip' if that of this store
   * is, else 'accept', since this store looks itself.
   */
  readonly rack: RemoteStore;
  /**
   * A store whose workers are the leaders of the racks, which holds the values and updates them: by collectives or on servers.
   * On leaders only; closed with this store.
   */
  readonly between?: KVStore | undefined;
  /** This worker's number among the workers of all racks, from 0. Worker 0 leads the first rack. */
  readonly worker: number;
  /** Workers of all racks. */
  readonly workers: number;
  /** As `rack` and `between` have it. Only synchronous: a sum over racks is one of a step. Default synchronous. */
  readonly consistency?: Consistency | undefined;
  /** What becomes of a gradient that is not finite; 'skip' needs stores that skip. Default 'refuse'. */
  readonly nonFinite?: NonFinite | undefined;
  /** Longest wait for the other workers of the rack or for its leader, in milliseconds. Default 600,000. */
  readonly deadlineMs?: number | undefined;
}

/** To be called by all workers of a rack. If it fails, `rack` and `between` are closed. */
export async function createRackStore(options: RackStoreOptions): Promise<KVStore> {
  const { rack, between } = options;
  try {
    checkOptions(options);
    await rack.init(gateInits(''));
    return new RackStore(options);
  } catch (error) {
    await Promise.all([rack.close(), between?.close()]);
    throw error;
  }
}

const NO_SHARE: Share = { samples: 0, used: 0 };

class RackStore implements KVStore {
  readonly rank: number;
  readonly workers: number;
  readonly #rack: RemoteStore;
  readonly #between: KVStore | undefined;
  readonly #nonFinite: NonFinite;
  readonly #kernels: Kernels;
  readonly #keys: Keys;
  readonly #rackKeys: RackKeys;
  readonly #calls: OrderedCalls;
  /** For calls that concern all keys. */
  readonly #turn: Gate;
  /** Known as soon as their init is called: a pull behind it must know what kind of call it is. */
  readonly #tables = new Set<StoreKey>();

  constructor(options: RackStoreOptions) {
    const { rack, worker, deadlineMs = 600_000 } = options;
    this.rank = worker;
    this.workers = options.workers;
    this.#rack = rack;
    this.#between = options.between;
    this.#nonFinite = options.nonFinite ?? 'refuse';
    this.#kernels = Kernels.create(rack.space);
    this.#keys = new Keys(worker, { space: rack.space, isShared: false });
    this.#rackKeys = new RackKeys(this.#kernels, { rack, worker, deadlineMs });
    this.#calls = new OrderedCalls(options, worker, this.#keys);
    const room = rack.allocate(2 * GATE_WORDS);
    this.#turn = new Gate({ rack, worker, deadlineMs, title: 'all keys', suffix: '', room });
  }

  init(keys: OneOrMany<KeyInit>): Promise<void> {
    const list = listOf(keys);
    const between = this.#between;
    for (const { key, rowLength } of list) if (rowLength !== undefined) this.#tables.add(key);
    return this.#calls.init(list, 'init', async () => {
      let values: readonly Tensor[] = list.map(({ value }) => value);
      await this.#forAll(
        between &&
          (async () => {
            await between.init(list);
            // The first worker's values count, in its own rack as in the others.
            values = list.map(({ value }) => new Float32Array(value.length));
            await between.pull(list.map(({ key }, i) => ({ key, into: values[i]! })));
          }),
      );
      await this.#rackKeys.init(list, values);
    });
  }

  push(keys: OneOrMany<KeyPush>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#calls.each(listOf(keys), ({ key, gradient }) =>
      this.#calls.onKey(key, 'push', (known) => this.#push(known, listOf(gradient), options)),
    );
  }

  pull(keys: OneOrMany<KeyPull>): Promise<readonly KeyStatus[]> {
    return this.#calls.each(listOf(keys), ({ key, into }) =>
      this.#tables.has(key)
        ? this.#calls.onKey(key, 'pull', (known) => this.#pullTable(known, into))
        : this.#calls.alone(key, 'pull', (known) => this.#pull(known, into)),
    );
  }

  pushpull(keys: OneOrMany<KeyPushPull>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    return this.#calls.each(listOf(keys), ({ key, gradient, into }) =>
      this.#calls.onKey(key, 'pushpull', async (known) => {
        this.#keys.checkInto(known, listOf(into));
        await this.#push(known, listOf(gradient), options);
        return this.#pull(known, into);
      }),
    );
  }

  pushRows(key: StoreKey, indices: Int32Array, rows: Tensor, options: PushOptions = {}): Promise<KeyStatus> {
    return this.#calls.onKey(key, 'pushRows', () =>
      this.#pushRows(this.#keys.getTable(key), indices, rows, options),
    );
  }

  pullRows(key: StoreKey, indices: Int32Array, into: Tensor): Promise<KeyStatus> {
    return this.#calls.onKey(key, 'pullRows', () => this.#pullRows(this.#keys.getTable(key), indices, into));
  }

  pushpullRows(...call: Parameters<KVStore['pushpullRows']>): Promise<KeyStatus> {
    return pushThenPullRows(this, ...call);
  }

  setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void> {
    const between = this.#between;
    return this.#calls.onOptimizer('setOptimizer', () =>
      this.#forAll(between && (() => between.setOptimizer(spec))),
    );
  }

  setLearningRate(lr: number): Promise<void> {
    const between = this.#between;
    return this.#calls.onOptimizer('setLearningRate', () =>
      this.#forAll(between && (() => between.setLearningRate(lr))),
    );
  }

  barrier(): Promise<void> {
    const between = this.#between;
    return this.#calls.barrier(() => this.#forAll(between && (() => between.barrier())));
  }

  /** The rack continues without a worker that closes, but not without its leader. */
  async close(): Promise<void> {
    if (this.#calls.isClosed) return;
    // All at once: what waits for the rack or for the leaders ends when those stores are closed.
    await Promise.all([this.#calls.close(), this.#rack.close(), this.#between?.close()]);
    this.#keys.close();
  }

  async #push(known: KnownKey, tensors: readonly Tensor[], options: PushOptions): Promise<KeyStatus> {
    const between = this.#between;
    const { name: key } = known;
    const own = this.#rackKeys.get(key);
    const samples = options.samples ?? 1;
    this.#keys.checkGradient(known, tensors);
    this.#keys.checkSamples(known, samples);
    const gradient = this.#rackKeys.stage(key, tensors);
    const isUsable = this.#keys.isUsable(known, gradient, this.#kernels, this.#nonFinite);
    const lead = async (all: Share): Promise<Passed> => {
      const { sum, value } = this.#rackKeys.memoryOf(own);
      // If nobody's can be used, the stores of the leaders are given what they leave out themselves.
      if (all.used === 0) this.#kernels.fill(sum, NaN);
      try {
        const [status] = await between!.pushpull({ key, gradient: sum, into: value }, samplesOf(all));
        return status!;
      } finally {
        this.#kernels.fill(sum, 0);
      }
    };
    const handed = this.#rack.push({ key: own.sum, gradient }, { samples });
    const { version } = await own.gate.pass(shareOf(samples, isUsable), [handed], between && lead);
    own.version = version;
    return statusOf(key, own);
  }

  async #pull(known: KnownKey, into: OneOrMany<Tensor>): Promise<KeyStatus> {
    this.#keys.checkInto(known, listOf(into));
    const own = this.#rackKeys.get(known.name);
    await this.#rack.pull({ key: own.value, into });
    return statusOf(known.name, own);
  }

  async #pullTable(known: KnownKey, into: OneOrMany<Tensor>): Promise<KeyStatus> {
    const between = this.#between;
    const { name: key } = known;
    const own = this.#rackKeys.get(key);
    this.#keys.checkInto(known, listOf(into));
    const lead = async (): Promise<Passed> => {
      const [status] = await between!.pull({ key, into: this.#rackKeys.memoryOf(own).value });
      return status!;
    };
    own.version = (await own.gate.pass(NO_SHARE, [], between && lead)).version;
    return this.#pull(known, into);
  }

  async #pushRows(table: Table, indices: Int32Array, rows: Tensor, options: PushOptions): Promise<KeyStatus> {
    const { name: key, rowLength } = table;
    const own = this.#rackKeys.get(key);
    const samples = options.samples ?? 1;
    this.#keys.checkRows(table, indices, rows);
    this.#keys.checkSamples(table, samples);
    const staged = this.#rackKeys.stage(key, [rows]).slice(0, indices.length * rowLength);
    const isUsable = this.#keys.isUsable(table, staged, this.#kernels, this.#nonFinite);
    const named = isUsable ? uniqueIndices(indices) : new Int32Array(0);
    const handed = this.#rack.pushRows(own.sum, indices, staged, { samples });
    await this.#withNamedRows(table, named, shareOf(samples, isUsable), [handed], (all, share) => {
      const between = this.#between!;
      const rows = takeRows(this.#rackKeys.memoryOf(own).sum.view, all, rowLength);
      if (share.used > 0) return between.pushRows(key, all, rows, samplesOf(share));
      // The stores of the leaders are given what they leave out themselves.
      return between.pushRows(key, Int32Array.of(0), new Float32Array(rowLength).fill(NaN));
    });
    return statusOf(key, own);
  }

  async #pullRows(table: Table, indices: Int32Array, into: Tensor): Promise<KeyStatus> {
    const { name: key, rowLength } = table;
    const own = this.#rackKeys.get(key);
    this.#keys.checkRows(table, indices, into);
    await this.#withNamedRows(table, uniqueIndices(indices), NO_SHARE, [], async (all) => {
      const rows = new Float32Array(all.length * rowLength);
      const status = await this.#between!.pullRows(key, all, rows);
      putRows(this.#rackKeys.memoryOf(own).value.view, all, rows, rowLength);
      return status;
    });
    await this.#rack.pullRows(own.value, indices, into);
    return statusOf(key, own);
  }

  /** One call in which each worker names rows; the leader acts with those of all, ascending and each once. */
  async #withNamedRows(
    table: Table,
    named: Int32Array,
    share: Share,
    handed: readonly Promise<unknown>[],
    act: (indices: Int32Array, all: Share) => Promise<Passed>,
  ): Promise<void> {
    const rack = this.#rack;
    const own = this.#rackKeys.get(table.name);
    const tableRows = table.length / table.rowLength;
    const told: number[] = [];
    let all = NO_SHARE;
    for (let round = 0, isAgain = true; isAgain; round++) {
      const telling = tellNamed(rack, own.named, named, round, tableRows);
      const lead = async (shares: Share): Promise<Passed> => {
        if (round === 0) all = shares;
        const taken = takeNamed(serverMemory(rack, own.named), rack.workers, round, tableRows);
        for (const index of taken.indices) told.push(index);
        if (taken.isAgain) return { version: own.version, isAgain: true };
        return act(uniqueIndices(Int32Array.from(told)), all);
      };
      const passed = await own.gate.pass(
        round === 0 ? share : NO_SHARE,
        round === 0 ? [...handed, telling] : [telling],
        this.#between && lead,
      );
      own.version = passed.version;
      isAgain = passed.isAgain ?? false;
    }
  }

  async #forAll(act: (() => Promise<void>) | undefined): Promise<void> {
    await this.#turn.pass(NO_SHARE, [], act);
  }
}

function statusOf(key: StoreKey, { version }: RackKey): KeyStatus {
  return { key, version, staleness: 0 };
}

function shareOf(samples: number, isUsable: boolean): Share {
  return isUsable ? { samples, used: 1 } : NO_SHARE;
}

/** What a rack weighs in a mean over racks. */
function samplesOf({ samples, used }: Share): PushOptions {
  return used > 0 ? { samples } : {};
}

function checkOptions({ rack, between, worker, workers, consistency }: RackStoreOptions): void {
  const isNumbered = Number.isInteger(workers) && Number.isInteger(worker) && worker >= 0 && worker < workers;
  const isLeader = rack.rank === 0;
  const problem = !isNumbered
    ? 'give its number among the workers of all racks, from 0'
    : isLeader !== (between !== undefined)
      ? `it is worker ${rack.rank} of its rack and was given ${between ? 'a' : 'no'} store between racks; give that store to worker 0 of each rack and to no other`
      : worker === 0 && between?.rank !== 0
        ? 'the first values are its own; let it be worker 0 of its rack and of the store between racks'
        : rack.updater !== 'accumulate'
          ? `pushes to the store of its rack replace its values, and racks need sums; connect it with updater: 'accumulate'`
          : (consistency?.kind ?? 'synchronous') !== 'synchronous'
            ? `its consistency is ${consistency!.kind}, but racks add up whole steps; use synchronous, or servers without racks`
            : undefined;
  if (problem === undefined) return;
  throw new UsageError('INVALID_ARGUMENT', `worker ${worker} of ${workers} in racks: ${problem}`, {
    ...{ worker, workers, rackWorker: rack.rank, between: between?.rank },
    consistency: consistency?.kind,
  });
}
