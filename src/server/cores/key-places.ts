/**
 * Where keys lie, as the office tells a core: numbers, which a thread takes over at once, while objects are taken one by
 * one and cannot be cut. Invariant: they are in the order of the keys and slots that were asked for.
 */
import { keyName } from '../../base/index.ts';
import type { StoreKey } from '../../base/index.ts';
import { averageSlots } from '../key-operations.ts';
import type { KeyShape } from '../wire/messages.ts';
import type { SpaceRange } from './office.ts';

/** Where a key lies, for all cores. */
export interface KeyMemory {
  readonly key: StoreKey;
  readonly value: SpaceRange;
  readonly slots: Readonly<Record<string, SpaceRange>>;
  /** The value as workers on this host find it. */
  readonly segment: string;
  readonly offsetInSegment: number;
}

export interface KeyPlaces {
  readonly segments: readonly string[];
  /** For each key: value, number of the segment, offset in it, slots; ranges as offset and length. */
  readonly numbers: Float64Array;
}

const VALUE_NUMBERS = 4;
const SLOT_NUMBERS = 2;

/** Of each key that was asked for: the rule's slots, then those of its averages. */
export function slotsOf(
  { operations }: Pick<KeyShape, 'operations'>,
  slots: readonly string[],
): readonly string[] {
  return operations === undefined ? slots : [...slots, ...averageSlots(operations)];
}

/** `wanted`: which of a key's slots. */
export function packPlaces(
  keys: readonly (Omit<KeyMemory, 'key'> & { readonly wanted: readonly string[] })[],
): KeyPlaces {
  const segments = new Map<string, number>();
  const total = keys.reduce((sum, { wanted }) => sum + VALUE_NUMBERS + SLOT_NUMBERS * wanted.length, 0);
  const numbers = new Float64Array(total);
  let at = 0;
  for (const { value, segment, offsetInSegment, slots, wanted } of keys) {
    const number = segments.get(segment) ?? segments.size;
    segments.set(segment, number);
    numbers.set([value.byteOffset, value.byteLength, number, offsetInSegment], at);
    at += VALUE_NUMBERS;
    for (const slot of wanted) {
      const { byteOffset, byteLength } = slots[slot]!;
      numbers.set([byteOffset, byteLength], at);
      at += SLOT_NUMBERS;
    }
  }
  return { segments: [...segments.keys()], numbers };
}

/** `keys` and `slots`: those that were asked for. */
export function* placesOf(
  { segments, numbers }: KeyPlaces,
  keys: readonly Pick<KeyShape, 'key' | 'operations'>[],
  slots: readonly string[],
): Generator<KeyMemory, void> {
  let at = 0;
  for (const shape of keys) {
    const { key } = shape;
    const wanted = slotsOf(shape, slots);
    const each = VALUE_NUMBERS + SLOT_NUMBERS * wanted.length;
    const [byteOffset, byteLength, segment, offsetInSegment, ...rest] = numbers.subarray(
      at,
      at + each,
    ) as unknown as [number, number, number, number, ...number[]];
    at += each;
    const ranges = wanted.map((slot, j) => [
      slot,
      { byteOffset: rest[SLOT_NUMBERS * j]!, byteLength: rest[SLOT_NUMBERS * j + 1]! },
    ]);
    yield {
      ...{ key, value: { byteOffset, byteLength }, segment: segments[segment]!, offsetInSegment },
      slots: Object.fromEntries(ranges) as Readonly<Record<string, SpaceRange>>,
    };
  }
}

/** A slot of a key, among those of all keys. */
export function slotName(slot: string, key: StoreKey): string {
  return `${slot} of ${keyName(key)}`;
}
