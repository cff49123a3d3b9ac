/**
 * Gradients by parameter servers, as in a step, but into keys of a trial: all messages and updates of
 * a step happen, and nothing of them comes back to the model. Which routes are tried, and how long a
 * step took, is the business of others. Invariants: reads gradients and writes no parameter, no
 * state and no optimizer state; all workers make the same calls.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { SeededKeyInit } from '../kvstore/index.ts';
import type { Region } from '../memory/index.ts';
import type { GradientPlace, ModelMemory, SparsePlace } from '../runtime/index.ts';
import { aggregatesLocally, LocalAggregation } from './local-aggregation.ts';
import type { ThreadStore } from './thread-store.ts';

export interface TrialServersOptions {
  readonly thread: CommunicationThread;
  /** Of a trial; whoever opened it closes it. */
  readonly store: ThreadStore;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** Whether rows that nobody touched have updates to catch up with when they are looked at. */
  readonly hasExactRows: boolean;
  /** Whether the workers of a machine add up rows first. */
  readonly localAggregation: boolean;
}

/** Values that are pulled, and rows of tables with the numbers that the last step looked up. */
interface Landing {
  readonly values: Region<'float32'>;
  readonly isRead: boolean;
  rows: Int32Array;
}

const ZEROS = { kind: 'constant', value: 0 } as const;

/** Opened once for all routes that are tried; `use` says which of its keys are on servers. */
export class TrialServers {
  readonly #options: TrialServersOptions;
  readonly #landings = new Map<string, Landing>();
  #names: ReadonlySet<string> = new Set();
  #groups: readonly (readonly string[])[] = [];
  #local: LocalAggregation | undefined;
  #samples = 0;
  #pushes: Promise<unknown>[] = [];
  #applied: Promise<unknown> = Promise.resolve();

  /** `names`: all that some of the routes have on servers. Servers make the values: nothing is sent. */
  static async open(options: TrialServersOptions, names: Iterable<string>): Promise<TrialServers> {
    const { store, memory } = options;
    const trial = new TrialServers(options);
    const keys = [...names];
    await store.init(keys.map((key) => zeros(key, memory.gradients.get(key)!)));
    for (const key of keys) trial.#landings.set(key, trial.#landingOf(key));
    return trial;
  }

  private constructor(options: TrialServersOptions) {
    this.#options = options;
  }

  /** From the next step on. */
  async use(names: ReadonlySet<string>, groups: readonly (readonly string[])[]): Promise<void> {
    const { thread, kernels, memory, localAggregation } = this.#options;
    await this.#local?.close();
    this.#names = names;
    this.#groups = groups;
    const tables = [...names].flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'sparse' ? [[name, place] as const] : [];
    });
    const isLocal = localAggregation && tables.length > 0 && aggregatesLocally(thread);
    this.#local = isLocal ? await LocalAggregation.open(thread, kernels, new Map(tables)) : undefined;
  }

  /** Fetches what the step needs, as many rows as the step before looked up. */
  async prepare(): Promise<void> {
    const { store } = this.#options;
    const pulled: Promise<unknown>[] = [this.#applied];
    const whole: { readonly key: string; readonly into: Region<'float32'> }[] = [];
    for (const key of this.#names) {
      const { values, isRead, rows } = this.#landings.get(key)!;
      const place = this.#placeOf(key);
      if (isRead) continue;
      if (place.kind === 'dense') whole.push({ key, into: values });
      else pulled.push(store.pullRows(key, rows, values.slice(0, rows.length * place.rowLength)));
    }
    if (whole.length > 0) pulled.push(store.pull(whole));
    store.settle();
    await Promise.all(pulled);
  }

  begin(samples: number): void {
    this.#samples = samples;
  }

  /** The gradients of a group are there. */
  start(group: number): void {
    const { store } = this.#options;
    const samples = this.#samples;
    const own = this.#groups[group]!.filter((name) => this.#names.has(name));
    const dense = own.flatMap((key) => {
      const place = this.#placeOf(key);
      return place.kind === 'dense' ? [{ key, gradient: place.region }] : [];
    });
    if (dense.length > 0) this.#pushes.push(store.push(dense, { samples }));
    for (const key of own) {
      const place = this.#placeOf(key);
      if (place.kind === 'dense') continue;
      this.#landings.get(key)!.rows = place.plan.indices.view.slice(0, place.count);
      if (this.#local) this.#local.begin(key, samples);
      else this.#pushRows(key, place, samples);
    }
    const isLast = group === this.#groups.length - 1;
    for (const { name, samples: combined } of this.#local?.advance(isLast) ?? []) {
      this.#pushRows(name, this.#placeOf(name) as SparsePlace, combined);
    }
  }

  async finish(): Promise<void> {
    if (this.#names.size === 0) return;
    this.#options.store.settle();
    await Promise.all(this.#pushes.splice(0));
  }

  /** Asked for when this returns, as in a run. */
  apply(): void {
    if (this.#names.size === 0) return;
    this.#applied = this.#options.store.apply();
    this.#applied.catch(() => undefined);
  }

  async close(): Promise<void> {
    await this.#applied;
    await this.#local?.close();
  }

  #pushRows(key: string, { plan, rows, count, rowLength }: SparsePlace, samples: number): void {
    const indices = plan.indices.view.slice(0, count);
    const push = this.#options.store.pushRows(key, indices, rows.slice(0, count * rowLength), { samples });
    push.catch(() => undefined);
    this.#pushes.push(push);
  }

  #placeOf(name: string): GradientPlace {
    return this.#options.memory.gradients.get(name)!;
  }

  #landingOf(key: string): Landing {
    const { store, hasExactRows } = this.#options;
    const place = this.#placeOf(key);
    const isInPlace = store.value(key) !== undefined;
    const isRead = isInPlace && (place.kind === 'dense' || !hasExactRows);
    const length = place.kind === 'dense' ? place.region.length : place.positions.length * place.rowLength;
    return { values: store.allocate(isRead ? 0 : length), isRead, rows: new Int32Array(0) };
  }
}

function zeros(key: string, place: GradientPlace): SeededKeyInit {
  const common = { key, initialiser: ZEROS, seed: 0 };
  if (place.kind === 'dense') return { ...common, length: place.region.length };
  const { tableRows, rowLength } = place;
  return { ...common, length: tableRows * rowLength, rowLength };
}
