/**
 * The tensors of a call as the servers' lists have them: where a gradient is read and a value
 * arrives, and what is copied for it, as only named memory of this process can be reached by
 * servers. Sends nothing.
 */
import { keyName } from '../../base/index.ts';
import type { Kernels } from '../../kernels/index.ts';
import type { KeyPull, KeyPush, KeyPushPull } from '../kv-store.ts';
import type { Exchanged } from './exchange-lists.ts';
import type { KnownKey } from './key-table.ts';
import { checkLength, elementsOf, listOf, type StoreMemory } from './tensors.ts';

export function entryOf(memory: StoreMemory, one: KeyPush | KeyPull | KeyPushPull, key: KnownKey): Exchanged {
  const gradient = 'gradient' in one ? memory.gather(key.key, listOf(one.gradient), key.length) : undefined;
  if (!('into' in one)) return { key, gradient, into: undefined, isInPlace: true };
  const targets = listOf(one.into);
  for (const target of targets) checkLength(key.key, 'pulled into', target.length, key.length);
  if (targets.length === 1 && targets[0] === key.value)
    return { key, gradient, into: undefined, isInPlace: true };
  const direct = targets.find((target) => memory.isUsable(target));
  const into = direct ?? memory.named(`value of ${keyName(key.key)}`, key.length);
  return { key, gradient, into, isInPlace: false };
}

/** Whether servers reach all tensors of a call. */
export function usesNoStaging(memory: StoreMemory, one: KeyPush | KeyPull | KeyPushPull): boolean {
  const tensors = [
    ...('gradient' in one ? listOf(one.gradient) : []),
    ...('into' in one ? listOf(one.into) : []),
  ];
  return tensors.every((tensor) => memory.isUsable(tensor));
}

/** To all tensors that the value did not arrive in. */
export function handOver(kernels: Kernels, { into: targets }: KeyPull, { into, key }: Exchanged): void {
  const source = into ?? key.value;
  for (const target of listOf(targets)) {
    if (target === source || source === undefined) continue;
    if (target instanceof Float32Array || target.space !== source.space) elementsOf(target).set(source.view);
    else kernels.copy(target, source);
  }
}
