/**
 * What a client has on servers and how it deals with them: its first worker pushes and pulls, the
 * others get what came of it (MXNET-MPI, sections 4 and 5). Synchronous: servers add up gradients,
 * and every worker updates by itself. Asynchronous: they update, by the client's gradient at once.
 * Elastic: they have the centre of the clients' weights. What is done in a step is handlers for
 * operations of its program. Invariants: all workers of a client call the same; afterwards they have
 * the same parameters.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { KeyInit, InitialKeyState, RemoteStore } from '../kvstore/index.ts';
import type { Kernels, OptimizerSpec, OwnRuleSpec } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Operation } from '../plan/index.ts';
import type { LaneHandler, ModelMemory } from '../runtime/index.ts';
import { tellAll, type SomeWorkers } from './agreement.ts';
import { Answer } from './answer.ts';
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

/** What handlers need to know of a step. */
export interface ClientStepFacts {
  /** This worker has in its inputs. */
  readonly samples: () => number;
  readonly push: () => ClientPush;
  /** Throws if nothing may be pushed by such a loss. */
  readonly checkLoss: () => void;
  /** Centre and weights have moved towards each other. */
  readonly onAveraged: () => void;
}

/** All dense gradients, with the loss and the states before them, as one key. */
const SUMS = 'loss, states and gradients';

export class ClientServers {
  readonly #options: ClientServersOptions;
  readonly #store: RemoteStore | undefined;
  readonly #tables: readonly ClientTable[];
  /** Where sums come to: they must not overwrite what may have to be sent again. */
  readonly #landing: Region<'float32'> | undefined;
  /** Of this step, on the first worker. */
  #exchanged: Promise<void> = Promise.resolve();
  #turn: Promise<void> = Promise.resolve();

  get kind(): ClientKind {
    return this.#options.kind;
  }

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

  /** Handlers of one program, for what this client does with servers. */
  handlers(step: ClientStepFacts): (operation: Operation) => LaneHandler | undefined {
    const { link } = this.#options;
    return ({ kind: what, parameters = [] }) => {
      switch (what) {
        case 'pull rows': {
          const table = this.#tables.find(({ name }) => name === parameters[0]);
          return table && new Answer(undefined, () => this.#inTurn(() => table.pull(step.samples())));
        }
        case 'push':
          return new Answer(undefined, () => {
            step.checkLoss();
            this.#exchanged = this.#begin(step.push());
            // Who waits for what is pulled hears of what goes wrong.
            return this.#exchanged.catch(() => undefined);
          });
        case 'pull':
          // What fails is told to the other workers first, if there are some.
          return new Answer(undefined, () =>
            link.workers.size === 1 ? this.#exchanged : this.#exchanged.catch(() => undefined),
          );
        case 'broadcast':
          return new Answer(undefined, () => this.#share());
        case 'elastic exchange':
          return new Answer(undefined, () => this.average().then(step.onAveraged));
        default:
          return undefined;
      }
    };
  }

  /** By the first worker; the others hear of it. */
  async #begin(push: ClientPush): Promise<void> {
    const { link, kind } = this.#options;
    if (!link.isFirst) return;
    await (kind === 'sums' ? this.#sum(push) : this.#update(push));
  }

  /**
   * Synchronous: the gradients in the first worker become those of all clients, weighted by samples;
   * fails if one of them is lost.
   */
  async #sum({ samples }: ClientPush): Promise<void> {
    const { memory, kernels, thread, leaders } = this.#options;
    const isSkipped = samples === 0;
    const store = this.#store!;
    const options = { samples: Math.max(1, samples), isSkipped };
    const landing = this.#landing!;
    // Awaited together: a lost server fails all of them at once.
    await Promise.all([
      ...this.#tables.map((table) => table.push(options)),
      store.pushpull({ key: SUMS, gradient: memory.exchanged, into: landing }, options),
    ]);
    // Servers answer without a client whose connection was lost for long: then it does not come here.
    if (leaders && leaders.size > 1) tellAll(thread, [1], 'whether all clients have the sum', leaders);
    kernels.copy(memory.exchanged, landing);
    for (const table of this.#tables) await table.pullSum(isSkipped);
  }

  /**
   * Asynchronous: pushes the client's gradient and brings the parameters as they are then to its
   * first worker, but for tables.
   */
  async #update({ samples, lr }: ClientPush): Promise<void> {
    const options = { samples: Math.max(1, samples), isSkipped: samples === 0, lr };
    const dense = this.#dense();
    await Promise.all([
      ...this.#tables.map((table) => table.push(options)),
      dense.length > 0 ? this.#store!.pushpull(dense, options) : undefined,
    ]);
  }

  /** All workers of the client have what the first one has, or its error. */
  async #share(): Promise<void> {
    const { link, memory, kind } = this.#options;
    await link.lead(() => this.#exchanged);
    if (kind !== 'sums') return link.share(this.#dense().map(({ into }) => into));
    await link.share([memory.exchanged]);
    if (link.workers.size > 1) for (const table of this.#tables) await table.shareSum();
  }

  #dense(): {
    readonly key: string;
    readonly gradient: Region<'float32'>;
    readonly into: Region<'float32'>;
  }[] {
    const { memory } = this.#options;
    return [...memory.gradients].flatMap(([key, place]) =>
      place.kind === 'dense' ? [{ key, gradient: place.region, into: memory.parameters.get(key)! }] : [],
    );
  }

  /** Behind what was begun before: workers of a client make the same calls in the same order. */
  #inTurn(act: () => Promise<void>): Promise<void> {
    const turn = this.#turn.then(act);
    this.#turn = turn.catch(() => undefined);
    return turn;
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
