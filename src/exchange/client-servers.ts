/**
 * What a client has on servers and how it deals with them: its first worker pushes and pulls, the
 * others get what came of it (MXNET-MPI, sections 4 and 5). Synchronous: servers add up gradients,
 * and every worker updates by itself. Asynchronous: they update, by the client's gradient at once.
 * Elastic: they have the centre of the clients' weights. Invariants: all workers of a client call
 * the same; afterwards they have the same parameters.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { KeyInit, InitialKeyState, RemoteStore } from '../kvstore/index.ts';
import type { Kernels, OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { ModelMemory } from '../runtime/index.ts';
import type { SomeWorkers } from './agreement.ts';
import type { ClientLink } from './client-link.ts';
import { ClientTable } from './client-table.ts';

export type ClientKind = 'sums' | 'updates' | 'centre';

export interface ClientServersOptions {
  readonly thread: CommunicationThread;
  readonly link: ClientLink;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  readonly kind: ClientKind;
  /** The first workers of all clients, on these. */
  readonly leaders: SomeWorkers | undefined;
}

/** What a training goes on from. */
export interface StartOnServers {
  readonly optimizer: OptimizerSpec | OwnRuleSpec;
  /** Updates that the parameters have behind them. */
  readonly updates: number;
}

export interface ClientPush {
  /** Of the client. 0: it had none, and its push only counts. */
  readonly samples: number;
  readonly lr: number | undefined;
}

/** All dense gradients, with the loss and the states before them, as one key. */
const SUMS = 'loss, states and gradients';

export class ClientServers {
  readonly #options: ClientServersOptions;
  readonly #store: RemoteStore | undefined;
  readonly #tables: readonly ClientTable[];
  /** Where sums come to: they must not overwrite what may have to be sent again. */
  readonly #landing: Region<'float32'> | undefined;

  /** `store`: of the first worker of the client. */
  constructor(options: ClientServersOptions, store: RemoteStore | undefined) {
    this.#options = options;
    this.#store = store;
    const { memory, kind } = options;
    this.#tables =
      kind === 'centre'
        ? []
        : [...memory.gradients].flatMap(([name, place]) =>
            place.kind === 'sparse' ? [new ClientTable(name, place, { ...options, store })] : [],
          );
    if (kind === 'sums') this.#landing = store?.allocate(memory.exchanged.length);
  }

  /**
   * By the first worker of a client: the keys and, from the first of all, their values.
   * `foundValues` says what was there.
   */
  async init({ optimizer }: StartOnServers): Promise<void> {
    const { kind } = this.#options;
    if (kind === 'updates') await this.#store!.setOptimizer(optimizer);
    await this.#store!.init(this.#keys());
  }

  /**
   * By the very first worker, before the others come: servers have the replica's values and state,
   * whatever they had.
   */
  async overwrite({ updates }: StartOnServers): Promise<void> {
    const { memory, kind } = this.#options;
    if (kind === 'sums') return;
    const states = this.#keys().map(({ key, value }): InitialKeyState => {
      const slots = kind === 'updates' ? memory.slots.get(key as string)! : {};
      return { key, steps: updates, slots, value };
    });
    await this.#store!.initState(states);
  }

  /** Synchronous: the gradients in the replica become those of all clients, weighted by samples. */
  async sum({ samples }: ClientPush): Promise<void> {
    const { link, memory, kernels } = this.#options;
    const isSkipped = samples === 0;
    await link.lead(async () => {
      const store = this.#store!;
      const options = { samples: Math.max(1, samples), isSkipped };
      const landing = this.#landing!;
      const tables = this.#tables.map((table) => table.push(options));
      await store.pushpull({ key: SUMS, gradient: memory.exchanged, into: landing }, options);
      kernels.copy(memory.exchanged, landing);
      await Promise.all(tables);
      for (const table of this.#tables) await table.pullSum(isSkipped);
    });
    await link.share([memory.exchanged]);
    if (link.workers.size > 1) for (const table of this.#tables) await table.shareSum();
  }

  /** Asynchronous: what the batch in the inputs needs of tables. */
  async prepare(batch: number): Promise<void> {
    for (const table of this.#tables) await table.pull(batch);
  }

  /**
   * Asynchronous: pushes the client's gradient and brings the parameters as they are then, but for
   * tables.
   */
  async push({ samples, lr }: ClientPush): Promise<void> {
    const { link, memory } = this.#options;
    const dense = [...memory.gradients].flatMap(([key, place]) =>
      place.kind === 'dense' ? [{ key, gradient: place.region, into: memory.parameters.get(key)! }] : [],
    );
    await link.lead(async () => {
      const options = { samples: Math.max(1, samples), isSkipped: samples === 0, lr };
      const tables = this.#tables.map((table) => table.push(options));
      if (dense.length > 0) await this.#store!.pushpull(dense, options);
      await Promise.all(tables);
    });
    await link.share(dense.map(({ into }) => into));
  }

  /** Elastic: centre and weights move towards each other. */
  async average(): Promise<void> {
    const { link } = this.#options;
    const keys = this.#keys();
    await link.lead(() =>
      this.#store!.pushpull(keys.map(({ key, value }) => ({ key, gradient: value, into: value }))),
    );
    await link.share(keys.map(({ value }) => value as Region<'float32'>));
  }

  /**
   * The servers' values come into the replica, of all workers of the client or of the first
   * `alone`.
   */
  async pull({ alone = false, withState = false } = {}): Promise<void> {
    const { link, memory, kind } = this.#options;
    if (kind === 'sums') return;
    const keys = this.#keys();
    const act = async () => {
      await this.#store!.pull(keys.map(({ key, value }) => ({ key, into: value })));
      if (!withState || kind !== 'updates') return;
      for (const { key } of keys) await this.#store!.pullState(key, memory.slots.get(key as string));
    };
    if (alone) return act();
    await link.lead(act);
    await link.share(keys.map(({ value }) => value as Region<'float32'>));
  }

  /** What `pull` overwrites. */
  get values(): readonly Region<'float32'>[] {
    if (this.#options.kind === 'sums') return [];
    return this.#keys().map(({ value }) => value as Region<'float32'>);
  }

  /** Others need not wait for this client. */
  async pause(): Promise<void> {
    await this.#store?.pause();
  }

  async close(): Promise<void> {
    for (const table of this.#tables) await table.close();
    await this.#store?.close();
  }

  async abort(): Promise<void> {
    await this.#store?.close();
  }

  #keys(): KeyInit[] {
    const { memory, kind } = this.#options;
    const parameters = [...memory.gradients].map(([key, place]): KeyInit => {
      const value = memory.parameters.get(key)!;
      return place.kind === 'sparse' ? { key, value, rowLength: place.rowLength } : { key, value };
    });
    if (kind === 'updates') return parameters;
    if (kind === 'sums') {
      const tables = parameters.filter(({ rowLength }) => rowLength !== undefined);
      return [{ key: SUMS, value: memory.exchanged }, ...tables];
    }
    const states = [...memory.states].map(([name, value]) => ({ key: `state ${name}`, value }));
    // Averages of whole weights know no rows.
    return [...parameters.map(({ key, value }) => ({ key, value })), ...states];
  }
}
