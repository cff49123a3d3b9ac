/**
 * Gradients by parameter servers, as operations of a step program, but into keys of a trial: all
 * messages and updates of a step happen, and nothing of them comes back to the model. Which routes are tried, and how long a
 * step took, is the business of others. Invariants: reads gradients and writes no parameter, no
 * state and no optimizer state; all workers make the same calls.
 */
import type { CommunicationThread } from '../communication/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { SeededKeyInit } from '../kvstore/index.ts';
import type { Region } from '../memory/index.ts';
import type { Operation } from '../plan/index.ts';
import type { GradientPlace, LaneHandler, ModelMemory, SparsePlace, StepContext } from '../runtime/index.ts';
import { Answer } from './answer.ts';
import { aggregatesLocally, LocalAggregation } from './local-aggregation.ts';
import type { StoreCall, ThreadStore } from './thread-store.ts';

export interface TrialServersOptions {
  readonly thread: CommunicationThread;
  /** Of a trial; whoever opened it closes it. */
  readonly store: ThreadStore;
  readonly memory: ModelMemory;
  readonly kernels: Kernels;
  /** Whose samples gradients weigh by. */
  readonly step: StepContext;
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
  #local: LocalAggregation | undefined;

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

  /** From the next step on. Returns those that this worker has to fetch. */
  async use(names: ReadonlySet<string>): Promise<ReadonlySet<string>> {
    const { thread, kernels, memory, step, localAggregation } = this.#options;
    await this.#local?.close();
    const tables = [...names].flatMap((name) => {
      const place = memory.gradients.get(name)!;
      return place.kind === 'sparse' ? [[name, place] as const] : [];
    });
    const isLocal = localAggregation && tables.length > 0 && aggregatesLocally(thread);
    this.#local = isLocal ? await LocalAggregation.open(thread, kernels, new Map(tables), step) : undefined;
    return new Set([...names].filter((name) => !this.#landings.get(name)!.isRead));
  }

  /** The gradients of a group are there, of the rows that this worker looked up: the next step pulls as many. */
  noteRows(names: readonly string[]): void {
    for (const name of names) {
      const [place, landing] = [this.#placeOf(name), this.#landings.get(name)];
      if (landing && place.kind === 'sparse') landing.rows = place.plan.indices.view.slice(0, place.count);
    }
  }

  handlerOf({ kind, form, parameters = [] }: Operation): LaneHandler | undefined {
    const { store, step } = this.#options;
    const [name = ''] = parameters;
    switch (kind) {
      case 'pull': {
        const whole = parameters.map((key) => ({ key, into: this.#landings.get(key)!.values }));
        return new Answer(store, () => store.pull(whole));
      }
      case 'pull rows':
        return new Answer(store, () => this.#pullRows(name));
      case 'reduce':
        return form === 'rows of a machine' ? this.#local?.table(name) : undefined;
      case 'push': {
        if (form === 'rows') return new Answer(store, () => this.#pushRows(name));
        const dense = parameters.flatMap((key) => {
          const place = this.#placeOf(key);
          return place.kind === 'dense' ? [{ key, gradient: place.region }] : [];
        });
        return new Answer(store, () => store.push(dense, { samples: step.samples.length }));
      }
      case 'apply':
        return new Answer(store, () => store.apply());
      default:
        return undefined;
    }
  }

  /** After the last operation has ended. */
  async close(): Promise<void> {
    await this.#local?.close();
  }

  #pullRows(key: string): StoreCall<unknown> {
    const { rowLength } = this.#placeOf(key) as SparsePlace;
    const { rows, values } = this.#landings.get(key)!;
    return this.#options.store.pullRows(key, rows, values.slice(0, rows.length * rowLength));
  }

  #pushRows(key: string): StoreCall<unknown> {
    const { plan, rows, count, rowLength } = this.#placeOf(key) as SparsePlace;
    const samples = this.#local?.table(key)?.samples ?? this.#options.step.samples.length;
    const indices = plan.indices.view.slice(0, count);
    return this.#options.store.pushRows(key, indices, rows.slice(0, count * rowLength), { samples });
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
