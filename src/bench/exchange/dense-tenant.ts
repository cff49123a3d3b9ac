/**
 * One model in a worker of `bench exchange`: its store, its gradients, and an exchange of all of it as one list. Gradients lie
 * in memory that servers read in place, and weights are read in the server's own memory where there is one server on this host,
 * so that nothing is copied that need not be. Invariant: gradients never change, so that the weights after any number
 * of exchanges are known.
 */
import { InternalError } from '../../base/index.ts';
import type { KeyPushPull, KVStore } from '../../kvstore/index.ts';
import type { Region } from '../../memory/index.ts';
import {
  checksum,
  CHECKED_EXCHANGES,
  expectedWeights,
  fillGradient,
  formatChecksum,
  hasWeights,
} from './known-exchange.ts';
import type { ModelTensor } from './models.ts';
import { openStore } from './tenant-store.ts';
import type { TenantPlace, TenantStore } from './tenant-store.ts';

/** A tensor in the list that is exchanged. */
interface Entry extends KeyPushPull {
  readonly into: Region<'float32'>;
  /** Where it begins in the model, all tensors counted as one. */
  readonly first: number;
}

const LINE_ELEMENTS = 16;

export class DenseTenant {
  readonly store: KVStore;
  /** Of the weights after the first exchanges. */
  readonly checksum: string;
  readonly #list: readonly Entry[];
  #exchanges = 0;

  private constructor(store: KVStore, list: readonly Entry[], sum: string) {
    this.store = store;
    this.#list = list;
    this.checksum = sum;
    this.#exchanges = CHECKED_EXCHANGES;
  }

  static async open(place: TenantPlace): Promise<DenseTenant> {
    const { run, worker } = place;
    const opened = await openStore(place);
    const { store } = opened;
    const list = allocateList(opened, run.tensors, worker);
    for (let i = 0; i < CHECKED_EXCHANGES; i++) await store.pushpull(list);
    const sum = list.reduce((before, { into }) => checksum(into.view, before), 0);
    const tenant = new DenseTenant(store, list, formatChecksum(sum));
    if (tenant.isRight()) return tenant;
    throw new InternalError(
      'BROKEN_INVARIANT',
      `worker ${worker} has wrong weights after ${CHECKED_EXCHANGES} exchanges; the comparison would be void, please report it`,
      { worker, exchanges: CHECKED_EXCHANGES },
    );
  }

  async exchange(): Promise<void> {
    await this.store.pushpull(this.#list);
    this.#exchanges++;
  }

  isRight(): boolean {
    const expected = expectedWeights(this.store.workers, this.#exchanges);
    return this.#list.every(({ into, first }) => hasWeights(into.view, expected, first));
  }
}

function allocateList(store: TenantStore, tensors: readonly ModelTensor[], worker: number): Entry[] {
  const gradients = allocateTensors(store, tensors);
  // Undefined where the weights are not in the memory of one server that is shared.
  const places = tensors.map(({ key }) => store.value(key));
  const weights = places.includes(undefined) ? allocateTensors(store, tensors) : [];
  let first = 0;
  return tensors.map(({ key, length }, i) => {
    const entry = { key, first, gradient: gradients[i]!, into: weights[i] ?? places[i]! };
    fillGradient(entry.gradient.view, worker, first);
    first += length;
    return entry;
  });
}

/** One after the other in one segment, each from a cache line on. */
function allocateTensors(store: TenantStore, tensors: readonly ModelTensor[]): Region<'float32'>[] {
  const taken = (length: number): number => Math.ceil(length / LINE_ELEMENTS) * LINE_ELEMENTS;
  const whole = store.allocate(tensors.reduce((sum, { length }) => sum + taken(length), 0));
  let start = 0;
  return tensors.map(({ length }) => {
    const region = whole.slice(start, length);
    start += taken(length);
    return region;
  });
}
