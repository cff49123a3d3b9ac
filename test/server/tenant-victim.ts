/**
 * A tenant that trains while others misbehave: it knows what its parameters must be after every step, to the bit. Invariant:
 * `check` fails if anything but its own pushes has changed a parameter.
 */
import { randomBytes } from 'node:crypto';
import type { RemoteStore } from '../../src/kvstore/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import type { Servers } from '../kvstore/servers.ts';
import { segmentFiles } from '../support/segment-files.ts';

export class Victim {
  readonly access: ServiceAccess;
  readonly store: RemoteStore;
  readonly #values: Float32Array;

  private constructor(access: ServiceAccess, store: RemoteStore, values: Float32Array) {
    this.access = access;
    this.store = store;
    this.#values = values;
  }

  static async open(ground: Servers, length = 5000, namespace?: string): Promise<Victim> {
    const access = ground.createService(namespace === undefined ? {} : { namespace });
    const named = { ...access, namespace: namespace ?? access.namespace };
    const [store] = await ground.connect(1, { access: named, sharedMemory: false });
    const values = Float32Array.from({ length }, (_, i) => i);
    await store!.init({ key: 'theirs', value: values });
    return new Victim(named, store!, values);
  }

  /** So many steps of training. */
  async train(steps: number): Promise<void> {
    const gradient = new Float32Array(this.#values.length).fill(2);
    for (let i = 0; i < steps; i++) {
      await this.store.pushpull({ key: 'theirs', gradient, into: new Float32Array(gradient.length) });
      for (let j = 0; j < gradient.length; j++) this.#values[j]! += 2;
    }
  }

  /** The first elements that are not what they should be: position, value, expected. */
  async damage(): Promise<readonly (readonly number[])[]> {
    const into = new Float32Array(this.#values.length);
    await this.store.pull({ key: 'theirs', into });
    const wrong = [...into].flatMap((value, i) =>
      Object.is(value, this.#values[i]) ? [] : [[i, value, this.#values[i]!]],
    );
    return wrong.slice(0, 3);
  }

  close(): Promise<void> {
    return this.store.close();
  }
}

/** Names of the segments of this host. */
export function segments(): string[] {
  return segmentFiles().filter((name) => name.startsWith('tributary-'));
}

export function nonce(): string {
  return randomBytes(32).toString('hex');
}
