/**
 * What a key of a store in racks is on the server of a rack: the sum of a step's gradients, which the leader takes out and
 * clears; the value, which the leader writes and all workers pull; the gate between the two; and for tables a list of
 * the rows that each worker names. It exchanges nothing. Invariant: between two calls the sum is zero.
 */
import { keyText } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { KeyInit, StoreTensor as Tensor } from './kv-store.ts';
import { Gate, GATE_WORDS, gateInits, serverMemory } from './rack-gate.ts';
import type { GateOptions } from './rack-gate.ts';
import { namedRowsInit } from './rack-rows.ts';
import type { RemoteStore } from './remote/remote-store.ts';
import { copy, elementsOf } from './remote/tensors.ts';

export interface RackKey {
  readonly gate: Gate;
  /** Names on the rack's server. */
  readonly sum: string;
  readonly value: string;
  readonly named: string;
  /** Updates that the key has seen. */
  version: number;
}

/** The server's memory of a key, on the leader. */
export interface LeaderMemory {
  readonly sum: Region<'float32'>;
  readonly value: Region<'float32'>;
}

export class RackKeys {
  readonly #rack: RemoteStore;
  readonly #kernels: Kernels;
  readonly #gates: Omit<GateOptions, 'title' | 'suffix' | 'room'>;
  readonly #keys = new Map<StoreKey, RackKey>();
  readonly #staged = new Map<StoreKey, Region<'float32'>>();

  constructor(kernels: Kernels, gates: Omit<GateOptions, 'title' | 'suffix' | 'room'>) {
    this.#rack = gates.rack;
    this.#kernels = kernels;
    this.#gates = gates;
  }

  /** Values count on the leader only, as those of the rack's first worker. */
  async init(list: readonly KeyInit[], values: readonly Tensor[]): Promise<void> {
    // Keys of any length and kind have names there by their numbers, which are the same on all workers.
    const first = this.#keys.size;
    await this.#rack.init(
      list.flatMap(({ value: { length }, rowLength }, i) => [
        { key: `sum ${first + i}`, value: new Float32Array(length), rowLength },
        { key: `value ${first + i}`, value: values[i]!, rowLength },
        ...gateInits(` ${first + i}`),
        ...(rowLength === undefined
          ? []
          : [namedRowsInit(`named ${first + i}`, length / rowLength, this.#rack.workers)]),
      ]),
    );
    const rooms = this.#rack.allocate(2 * GATE_WORDS * Math.max(1, list.length));
    list.forEach(({ key }, i) => {
      const room = rooms.slice(2 * GATE_WORDS * i, 2 * GATE_WORDS);
      const gate = new Gate({ ...this.#gates, title: `key ${keyText(key)}`, suffix: ` ${first + i}`, room });
      const names = { sum: `sum ${first + i}`, value: `value ${first + i}`, named: `named ${first + i}` };
      this.#keys.set(key, { ...names, gate, version: 0 });
    });
  }

  get(key: StoreKey): RackKey {
    return this.#keys.get(key)!;
  }

  memoryOf({ sum, value }: RackKey): LeaderMemory {
    return { sum: serverMemory(this.#rack, sum), value: serverMemory(this.#rack, value) };
  }

  /** One gradient, in memory that kernels reach: as it lies, or copied and added over the devices. */
  stage(key: StoreKey, tensors: readonly Tensor[]): Region<'float32'> {
    const [first, ...others] = tensors as readonly [Tensor, ...Tensor[]];
    const { space } = this.#rack;
    const isHere = (tensor: Tensor) => !(tensor instanceof Float32Array) && tensor.space === space;
    if (others.length === 0 && isHere(first)) return first as Region<'float32'>;
    const sum = this.#room(key, first.length);
    copy(this.#kernels, sum, first);
    for (const tensor of others) {
      const values = elementsOf(tensor);
      for (let i = 0; i < values.length; i++) sum.view[i]! += values[i]!;
    }
    return sum;
  }

  /** The same for the same key, grown when a call brings more rows. */
  #room(key: StoreKey, length: number): Region<'float32'> {
    const known = this.#staged.get(key);
    if (known && known.length >= length) return known.slice(0, length);
    const room = this.#rack.allocate(length);
    this.#staged.set(key, room);
    return room;
  }
}
