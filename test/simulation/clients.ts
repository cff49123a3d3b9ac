/**
 * The clients of a tenant of a simulated run: workers that reduce among themselves by the real TCP transport, engine, group and
 * `ClientStore`, and the launcher that starts all workers of a client at once, and again when one of them is gone. Invariant:
 * workers of different starts never meet.
 */
import { Group } from '../../src/cluster/index.ts';
import { broadcast } from '../../src/collectives/index.ts';
import type { Kernels } from '../../src/kernels/index.ts';
import { createClientStore, RemoteStore } from '../../src/kvstore/index.ts';
import type { RecoverableStore, RemoteStoreOptions } from '../../src/kvstore/index.ts';
import type { Region } from '../../src/memory/index.ts';
import { Progress } from '../../src/progress/index.ts';
import type { Host } from '../../src/sockets/index.ts';
import type { MemberAddress } from '../../src/transport/index.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import type { Scheduler } from './scheduler.ts';
import type { SimThread } from './process.ts';

/** What a tenant trains on: a `RemoteStore`, or the store of a client. */
export interface TrainingStore extends RecoverableStore {
  allocate(length: number): Region<'float32'>;
  /** Where updates are held. */
  apply?(options: { readonly scale: number; readonly lr: number }): Promise<void>;
}

const CONNECT_TIMEOUT_MS = 60_000;
const SECRET = '0123456789abcdef0123456789abcdef';
const MEMORY_BYTES = 64 * 1024;
/** Below those of the store. */
const AGREEMENT_TAG = 7;

/** One start of a client: all of its workers, until they have all ended. */
export class Start {
  readonly size: number;
  readonly #scheduler: Scheduler;
  readonly #title: (rank: number) => string;
  readonly #addresses = new Map<number, MemberAddress>();
  readonly #waiting: (() => void)[] = [];
  readonly #left = new Set<number>();
  #isBroken = false;

  constructor(scheduler: Scheduler, size: number, title: (rank: number) => string) {
    this.#scheduler = scheduler;
    this.size = size;
    this.#title = title;
  }

  /** Settles when all workers have said where they can be reached. */
  meet(
    rank: number,
    thread: SimThread,
    address: MemberAddress['address'],
  ): Promise<readonly MemberAddress[]> {
    this.#addresses.set(rank, { member: rank, title: this.#title(rank), host: `host-${rank}`, address });
    const scheduler = this.#scheduler;
    return new Promise((resolve) => {
      const all = () => Array.from({ length: this.size }, (_, one) => this.#addresses.get(one)!);
      this.#waiting.push(() => scheduler.after(scheduler.between(0.05, 0.5), thread, () => resolve(all())));
      if (this.#addresses.size === this.size) for (const go of this.#waiting) go();
    });
  }

  /** A worker is gone, because it was done or not. */
  leave(rank: number, isDone: boolean): void {
    this.#left.add(rank);
    if (!isDone) this.#isBroken = true;
  }

  /** Nobody is there any more, and not all were done. */
  get isOver(): boolean {
    return this.#isBroken && this.#left.size === this.size;
  }

  /** Nobody waits for those who never say where they are: the launcher ends the others when one is gone before. */
  get hasMet(): boolean {
    return this.#addresses.size === this.size;
  }

  /** Whether a text names one of the workers, or one who is gone. */
  names(text: string, whom: 'any' | 'lost'): boolean {
    if (this.size === 1) return false;
    const ranks = whom === 'any' ? this.#addresses.keys() : this.#left;
    return [...ranks].some((rank) => text.includes(this.#title(rank)));
  }
}

export interface ClientOptions {
  readonly host: Host;
  readonly kernels: Kernels;
  readonly rank: number;
  readonly meet: (address: MemberAddress['address']) => Promise<readonly MemberAddress[]>;
  /** Among the workers of all clients. */
  readonly worker: number;
  readonly workers: number;
  readonly elastic: boolean;
  /** Of the store behind. */
  readonly remote: RemoteStoreOptions;
  readonly note: (what: string) => void;
}

export interface ClientWorker {
  readonly store: TrainingStore;
  /** What the first worker of the client says, on all of them. */
  readonly agree: (what: boolean) => Promise<boolean>;
  /** Leaves in order. */
  readonly close: () => Promise<void>;
}

export async function openClient(options: ClientOptions): Promise<ClientWorker> {
  const { host, kernels, rank, worker, workers, elastic, note } = options;
  const { space } = kernels;
  const transport = await createTcpTransport({ space, secret: SECRET, log: note }, host);
  const members = await options.meet(transport.address);
  note('meets its mates');
  await transport.connect(
    rank,
    members.filter(({ member }) => member !== rank),
    { connectTimeoutMs: CONNECT_TIMEOUT_MS },
  );
  const progress = new Progress(transport, {
    ...{ clock: host.clock, eagerRounds: 0 },
    onStall: ({ text }) => note(`waits: ${text}`),
  });
  const group = new Group(1, members, progress, kernels);
  const behind = rank === 0 ? await RemoteStore.connect(options.remote, host) : undefined;
  const store = createClientStore({
    ...{ group, store: behind, worker, workers, elastic },
    allocate: behind && ((length) => behind.allocate(length)),
  });
  const memory = space.allocate(MEMORY_BYTES);
  const word = memory.allocate('uint8', 1);
  return {
    store: Object.assign(store, { allocate: (length: number) => memory.allocate('float32', length) }),
    agree: async (what) => {
      if (rank === 0) word.view[0] = Number(what);
      await broadcast(group, word, { tag: AGREEMENT_TAG, name: 'what the first worker says' });
      return word.view[0] === 1;
    },
    close: async () => {
      await store.close();
      group.close();
      progress.close();
      await transport.close();
      memory.close();
    },
  };
}
