/**
 * The keys of a store whose workers meet in collectives, and the checks that a worker makes by itself before it meets the
 * others. It moves no values. Invariants: keys have the same numbers on all ranks, since they are added in the same
 * order; a call that a check refuses has sent nothing, so its worker may repeat it while the others wait.
 */
import { checkStoreKey, keyText, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import { KeyMemory } from './collective-key-memory.ts';
import type { KeyRoom } from './collective-key-memory.ts';
import type { KeyInit, StoreTensor as Tensor } from './kv-store.ts';
import { checkLength } from './remote/tensors.ts';

export type NonFinite = 'refuse' | 'skip' | 'accept';

export interface KnownKey {
  readonly name: StoreKey;
  /** From 0, in the order of init. */
  readonly number: number;
  readonly length: number;
  readonly rowLength: number | undefined;
  /** Room for the gradients of one call, of the key's length. */
  readonly sum: () => Region<'float32'>;
  /** Room for the value, of the key's length. */
  readonly value: () => Region<'float32'>;
}

/** A key that is a table. */
export interface Table extends KnownKey {
  readonly rowLength: number;
}

export class Keys {
  readonly #worker: number;
  readonly #memory: KeyMemory;
  readonly #known = new Map<StoreKey, KnownKey>();

  constructor(worker: number, room: KeyRoom) {
    this.#worker = worker;
    this.#memory = new KeyMemory(room);
  }

  find(name: StoreKey): KnownKey | undefined {
    return this.#known.get(name);
  }

  /** Refuses keys that are there, or twice in the list, and tables that are none. */
  checkNew(keys: readonly KeyInit[]): void {
    const worker = this.#worker;
    const named = new Set<StoreKey>();
    for (const { key, value, rowLength } of keys) {
      checkStoreKey(worker, key);
      if (this.#known.has(key) || named.has(key)) {
        throw new UsageError(
          'INVALID_ARGUMENT',
          `worker ${worker}: key ${keyText(key)} is there already; push to it, or use another name`,
          { worker, key },
        );
      }
      named.add(key);
      if (rowLength === undefined || (rowLength > 0 && Number.isInteger(value.length / rowLength))) continue;
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker}: key ${keyText(key)} has ${value.length} elements, which are no rows of ${rowLength}; give the table's row length`,
        { worker, key, length: value.length, rowLength },
      );
    }
  }

  add(keys: readonly KeyInit[]): void {
    const lengths = keys.map(({ value }) => value.length);
    const [sums, values] = [this.#memory.plan(lengths), this.#memory.plan(lengths)];
    keys.forEach(({ key: name, value: { length }, rowLength }, i) => {
      const number = this.#known.size;
      this.#known.set(name, { name, number, length, rowLength, sum: () => sums(i), value: () => values(i) });
    });
  }

  close(): void {
    this.#memory.close();
  }

  get(name: StoreKey): KnownKey {
    const key = this.#known.get(name);
    if (key) return key;
    checkStoreKey(this.#worker, name);
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} used key ${keyText(name)}, which is not there; init it first`,
      { worker: this.#worker, key: name },
    );
  }

  getTable(name: StoreKey): Table {
    const { rowLength, ...key } = this.get(name);
    if (rowLength !== undefined) return { ...key, rowLength };
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} asked for rows of key ${keyText(name)}, which is no table; init it with a row length`,
      { worker: this.#worker, key: name },
    );
  }

  checkGradient({ name, length }: KnownKey, tensors: readonly Tensor[]): void {
    for (const tensor of tensors)
      checkLength(name, `pushed by worker ${this.#worker} with`, tensor.length, length);
    if (tensors.length > 0) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} pushed key ${keyText(name)} without a gradient; give one or more`,
      { worker: this.#worker, key: name },
    );
  }

  checkInto({ name, length }: KnownKey, tensors: readonly Tensor[]): void {
    for (const tensor of tensors)
      checkLength(name, `pulled by worker ${this.#worker} into`, tensor.length, length);
  }

  checkRows({ name, length, rowLength }: Table, indices: Int32Array, rows: Tensor): void {
    const worker = this.#worker;
    if (rows.length < indices.length * rowLength) {
      throw new UsageError(
        'SHAPE_MISMATCH',
        `worker ${worker} gave ${indices.length} indices and ${rows.length} elements for key ${keyText(name)}, whose rows have ${rowLength}; give one row for each index`,
        { worker, key: name, expected: indices.length * rowLength, actual: rows.length },
      );
    }
    const tableRows = length / rowLength;
    const row = indices.find((index) => index < 0 || index >= tableRows);
    if (row === undefined) return;
    throw new UsageError(
      'OUT_OF_BOUNDS',
      `worker ${worker} named row ${row} of key ${keyText(name)}, which has ${tableRows}; give rows from 0 to ${tableRows - 1}`,
      { worker, key: name, row, rows: tableRows },
    );
  }

  checkSamples({ name }: KnownKey, samples: number): void {
    if (samples > 0 && Number.isFinite(samples)) return;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${this.#worker} pushed key ${keyText(name)} with ${samples} samples; give a positive number`,
      { worker: this.#worker, key: name, samples },
    );
  }

  /** Whether the values are to be used. They are looked at here, before they meet those of others: in a sum nobody is to blame. */
  isUsable({ name }: KnownKey, values: Region<'float32'>, kernels: Kernels, nonFinite: NonFinite): boolean {
    if (nonFinite === 'accept' || Number.isFinite(kernels.sumOfSquares(values))) return true;
    const value = values.view.find((one) => !Number.isFinite(one));
    if (value === undefined) return true; // Only the sum of the squares is too large for a number.
    if (nonFinite === 'skip') return false;
    throw new UsageError(
      'NOT_A_NUMBER',
      `worker ${this.#worker} pushed ${value} to key ${keyText(name)}; look for a division by zero or a learning rate that is too high, or let such pushes be skipped`,
      { worker: this.#worker, key: name, value: String(value) },
    );
  }
}
