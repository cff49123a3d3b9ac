/**
 * A store within one process: its workers are asynchronous functions of the same thread, its server one core. For
 * trying a training loop without a cluster, for several devices of one process, and as the plainest form of the
 * contract. Not a way to use more processors. Invariant: it does what stores with servers do, since the same core
 * serves it.
 */
import { checkStoreKey, keyName, keyText, PeerError, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { Kernels } from '../kernels/index.ts';
import type { OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import { cutIntoChunks } from '../plan/index.ts';
import { optimizerRule, ServerCore } from '../server/index.ts';
import type { Combine, Consistency, PushReply, RowsMode, Updater } from '../server/index.ts';
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

export interface LocalStoreOptions {
  /** Workers that share the store. Default 1. */
  readonly workers?: number | undefined;
  /** When pushes take effect. Default synchronous. */
  readonly consistency?: Consistency | undefined;
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /** Whether rows without a gradient are left alone or get what dense updates would give them. Default 'lazy'. */
  readonly rows?: RowsMode | undefined;
  /**
   * What becomes of pushes before `setOptimizer`: the value is the combined push, or the sum of all. Default
   * 'assign'.
   */
  readonly updater?: Updater | undefined;
  /** What becomes of a gradient that is not finite. Default 'refuse'. */
  readonly nonFinite?: 'refuse' | 'skip' | 'accept' | undefined;
  /** Longest piece that is updated at once, in bytes, a multiple of 64. Default 32 KB. */
  readonly chunkBytes?: number | undefined;
  /** Memory of the values; regions in it are used where they lie. Default: a new space. */
  readonly space?: SharedSpace | undefined;
}

/** The stores of all workers, one for each. */
export function createLocalStores(options: LocalStoreOptions = {}): KVStore[] {
  const { workers = 1 } = options;
  if (!(Number.isInteger(workers) && workers > 0)) {
    throw new UsageError('INVALID_ARGUMENT', `workers is ${workers}; give a whole number of 1 or more`, {
      workers,
    });
  }
  const server = new LocalServer(options, workers);
  return Array.from({ length: workers }, (_, rank) => new LocalStore(server, rank));
}

/** What the workers share. */
class LocalServer {
  readonly space: SharedSpace;
  readonly kernels: Kernels;
  readonly core: ServerCore;
  readonly workers: number;
  readonly lengths = new Map<StoreKey, number>();
  readonly isElastic: boolean;
  readonly isSynchronous: boolean;
  readonly #chunkBytes: number | undefined;
  readonly #segments: Segment[] = [];
  readonly #slots = new Map<string, Region<'float32'>>();
  #arrived: { readonly go: () => void; readonly fail: (error: unknown) => void }[] = [];
  /** What is done when the last has come, before anybody goes on. */
  #whenAllHaveCome: (() => void) | undefined;
  #open: number;

  constructor({ space, chunkBytes, ...options }: LocalStoreOptions, workers: number) {
    this.space = space ?? SharedSpace.create();
    this.kernels = Kernels.create(this.space);
    this.workers = workers;
    this.isElastic = options.consistency?.kind === 'elastic';
    this.isSynchronous = (options.consistency?.kind ?? 'synchronous') === 'synchronous';
    this.#open = workers;
    this.#chunkBytes = chunkBytes;
    this.core = new ServerCore({
      ...options,
      kernels: this.kernels,
      slotRegion: (key, slot, length) => this.#slotRegion(`${slot} of ${keyName(key)}`, length),
    });
    for (let worker = 0; worker < workers; worker++) this.core.admit(worker);
  }

  allocate(length: number): Region<'float32'> {
    const segment = this.space.allocate(4 * Math.max(1, length));
    this.#segments.push(segment);
    return segment.allocate('float32', length);
  }

  openKey({ key, value, rowLength, operations }: KeyInit): void {
    const length = value.length;
    const chunks = cutIntoChunks([{ key: keyName(key), length }], this.#chunkBytes);
    const own = this.allocate(length);
    own.view.set(elementsOf(value));
    this.core.open({ name: key, value: own, chunks, rowLength, operations });
    this.lengths.set(key, length);
  }

  /**
   * Resolves for all when the last of those who are still here has come, and what the first of them brought is done.
   */
  meet(act?: () => void): Promise<void> {
    return new Promise((go, fail) => {
      this.#whenAllHaveCome = act ?? this.#whenAllHaveCome;
      this.#arrived.push({ go, fail });
      this.#letGo();
    });
  }

  leave(worker: number): void {
    this.core.release(worker);
    this.#open--;
    this.#letGo();
    if (this.#open > 0) return;
    this.core.close();
    for (const segment of this.#segments.splice(0)) segment.close();
  }

  #letGo(): void {
    if (this.#arrived.length < this.#open) return;
    const act = this.#whenAllHaveCome;
    const arrived = this.#arrived.splice(0);
    this.#whenAllHaveCome = undefined;
    try {
      act?.();
    } catch (error) {
      for (const { fail } of arrived) fail(error);
      return;
    }
    for (const { go } of arrived) go();
  }

  #slotRegion(name: string, length: number): Region<'float32'> {
    const region = this.#slots.get(name) ?? this.allocate(length);
    this.#slots.set(name, region);
    return region;
  }
}

class LocalStore implements KVStore {
  readonly rank: number;
  readonly #server: LocalServer;
  /** The last push of each key. */
  readonly #steps = new Map<StoreKey, number>();
  /** Copies of gradients that lie in plain memory, or sums over devices. */
  readonly #staged = new Map<StoreKey, Region<'float32'>>();
  /** What was pushed last. */
  readonly #pushed = new Map<StoreKey, Region<'float32'>>();
  /** Pushes that wait for others; told when this worker leaves. */
  readonly #waiting = new Set<(error: PeerError) => void>();
  #closed = false;

  constructor(server: LocalServer, rank: number) {
    this.#server = server;
    this.rank = rank;
  }

  get workers(): number {
    return this.#server.workers;
  }

  async init(keys: OneOrMany<KeyInit>): Promise<void> {
    this.#checkOpen();
    for (const { key } of listOf(keys)) checkStoreKey(this.rank, key);
    if (this.rank === 0) for (const key of listOf(keys)) this.#server.openKey(key);
    await this.#server.meet();
  }

  async push(keys: OneOrMany<KeyPush>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    this.#checkOpen();
    for (const { key } of listOf(keys)) checkStoreKey(this.rank, key);
    return Promise.all(listOf(keys).map((one) => this.#push(one, options)));
  }

  pull(keys: OneOrMany<KeyPull>): Promise<readonly KeyStatus[]> {
    return Promise.resolve().then(() => {
      this.#checkOpen();
      for (const { key } of listOf(keys)) checkStoreKey(this.rank, key);
      return listOf(keys).map((one) => this.#pull(one, 0));
    });
  }

  async pushpull(keys: OneOrMany<KeyPushPull>, options: PushOptions = {}): Promise<readonly KeyStatus[]> {
    const list = listOf(keys);
    const pushed = await this.push(list, options);
    return list.map((one, i) => this.#pull(one, pushed[i]!.staleness, this.#moved(one.key)));
  }

  async pushRows(
    key: StoreKey,
    indices: Int32Array,
    rows: Tensor,
    { samples }: PushOptions = {},
  ): Promise<KeyStatus> {
    this.#checkOpen();
    checkStoreKey(this.rank, key);
    const { space } = this.#server;
    const segment = space.allocate(4 * (indices.length + rows.length) + 2 * 64);
    try {
      const own = segment.allocate('int32', indices.length);
      const values = segment.allocate('float32', rows.length);
      own.view.set(indices);
      values.view.set(elementsOf(rows));
      const push = { worker: this.rank, key, step: this.#nextStep(key), samples, indices: own, rows: values };
      return await this.#taken(key, (reply) => this.#server.core.pushRows(push, reply));
    } finally {
      segment.close();
    }
  }

  pullRows(key: StoreKey, indices: Int32Array, into: Tensor): Promise<KeyStatus> {
    return Promise.resolve().then(() => {
      this.#checkOpen();
      checkStoreKey(this.rank, key);
      const segment = this.#server.space.allocate(4 * (indices.length + into.length) + 2 * 64);
      try {
        const own = segment.allocate('int32', indices.length);
        const rows = segment.allocate('float32', into.length);
        own.view.set(indices);
        const { version } = this.#server.core.pullRows(this.rank, key, own, rows);
        elementsOf(into).set(rows.view);
        return { key, version, staleness: 0 };
      } finally {
        segment.close();
      }
    });
  }

  pushpullRows(...call: Parameters<KVStore['pushpullRows']>): Promise<KeyStatus> {
    return pushThenPullRows(this, ...call);
  }

  async setOptimizer(spec: OptimizerSpec | OwnRuleSpec): Promise<void> {
    this.#checkOpen();
    const { core, kernels } = this.#server;
    if (this.rank === 0) core.setRule(optimizerRule(kernels, spec));
    await this.#server.meet();
  }

  async setLearningRate(lr: number): Promise<void> {
    this.#checkOpen();
    const { core, isSynchronous } = this.#server;
    const set = () => {
      core.checkLearningRate(lr);
      core.setLearningRate(lr);
    };
    if (isSynchronous) await this.#server.meet(this.rank === 0 ? set : undefined);
    else set();
  }

  barrier(): Promise<void> {
    this.#checkOpen();
    return this.#server.meet();
  }

  close(): Promise<void> {
    if (this.#closed) return Promise.resolve();
    this.#closed = true;
    this.#server.leave(this.rank);
    const message = `worker ${this.rank} closed its store while a push of it waited for other workers; await pushes before closing`;
    for (const fail of this.#waiting) fail(new PeerError('CANCELLED', message, { worker: this.rank }));
    this.#waiting.clear();
    return Promise.resolve();
  }

  #push({ key, gradient }: KeyPush, { samples }: PushOptions): Promise<KeyStatus> {
    const worker = this.rank;
    return this.#taken(key, (reply) => {
      const staged = this.#stage(key, gradient);
      this.#pushed.set(key, staged);
      const push = { worker, key, step: this.#nextStep(key), samples, gradient: staged };
      this.#server.core.push(push, reply);
    });
  }

  /** The step is used up only if the server takes the push: who was refused may push again. */
  #taken(key: StoreKey, act: (reply: (reply: PushReply) => void) => void): Promise<KeyStatus> {
    return new Promise((resolve, reject) => {
      let isAnswered = false;
      act(({ version, staleness }) => {
        isAnswered = true;
        this.#waiting.delete(reject);
        resolve({ key, version, staleness });
      });
      if (!isAnswered) this.#waiting.add(reject);
      this.#steps.set(key, this.#nextStep(key));
    });
  }

  #nextStep(key: StoreKey): number {
    return (this.#steps.get(key) ?? 0) + 1;
  }

  /** In elastic mode the answer to a push-pull is the worker's own new weights. */
  #moved(key: StoreKey): Region<'float32'> | undefined {
    return this.#server.isElastic ? this.#pushed.get(key) : undefined;
  }

  #pull({ key, into }: KeyPull, staleness: number, moved?: Region<'float32'>): KeyStatus {
    const { value, version } = this.#server.core.pull(this.rank, key);
    const source = moved ?? value;
    for (const target of listOf(into)) {
      if (target.length !== value.length) throw wrongLength(key, 'pulled into', target.length, value.length);
      if (target !== source) elementsOf(target).set(source.view);
    }
    return { key, version, staleness };
  }

  /** The gradient as one region: as it lies, copied, or summed over the devices. */
  #stage(key: StoreKey, gradient: OneOrMany<Tensor>): Region<'float32'> {
    const tensors = listOf(gradient);
    const [first] = tensors;
    if (!first) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `key ${keyText(key)} was pushed without a gradient; give one or more`,
        {
          key,
        },
      );
    }
    for (const { length } of tensors) {
      if (length !== first.length) throw wrongLength(key, 'pushed from devices with', length, first.length);
    }
    if (tensors.length === 1 && isRegionOf(first, this.#server.space)) return first;
    let staged = this.#staged.get(key);
    if (staged?.length !== first.length) {
      staged = this.#server.allocate(first.length);
      this.#staged.set(key, staged);
    }
    staged.view.set(elementsOf(first));
    for (const tensor of tensors.slice(1)) {
      const elements = elementsOf(tensor);
      for (let i = 0; i < elements.length; i++) staged.view[i]! += elements[i]!;
    }
    return staged;
  }

  #checkOpen(): void {
    if (!this.#closed) return;
    throw new UsageError('INVALID_ARGUMENT', `the store of worker ${this.rank} is closed; create new ones`, {
      worker: this.rank,
    });
  }
}

function wrongLength(key: StoreKey, what: string, actual: number, expected: number): UsageError {
  return new UsageError(
    'SHAPE_MISMATCH',
    `key ${keyText(key)} was ${what} ${actual} elements, expected ${expected}; give tensors of one length`,
    { key, expected, actual },
  );
}

function listOf<T extends object>(one: OneOrMany<T>): readonly T[] {
  return Array.isArray(one) ? (one as readonly T[]) : [one as T];
}

function isRegionOf(tensor: Tensor, space: SharedSpace): tensor is Region<'float32'> {
  return !(tensor instanceof Float32Array) && tensor.space === space;
}

function elementsOf(tensor: Tensor): Float32Array {
  return tensor instanceof Float32Array ? tensor : tensor.view;
}
