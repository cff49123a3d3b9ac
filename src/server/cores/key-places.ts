/**
 * Where keys lie, as the office tells a core: numbers, which a thread takes over at once, while objects are taken one by
 * one and cannot be cut. Invariant: they are in the order of the keys and slots that were asked for.
 */
import type { StoreKey } from '../../base/index.ts';
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

/** Each of the keys has all of the slots. */
export function packPlaces(keys: readonly Omit<KeyMemory, 'key'>[], slots: readonly string[]): KeyPlaces {
  const segments = new Map<string, number>();
  const each = VALUE_NUMBERS + SLOT_NUMBERS * slots.length;
  const numbers = new Float64Array(each * keys.length);
  for (const [i, { value, segment, offsetInSegment, slots: own }] of keys.entries()) {
    const number = segments.get(segment) ?? segments.size;
    segments.set(segment, number);
    numbers.set([value.byteOffset, value.byteLength, number, offsetInSegment], each * i);
    for (const [j, slot] of slots.entries()) {
      const { byteOffset, byteLength } = own[slot]!;
      numbers.set([byteOffset, byteLength], each * i + VALUE_NUMBERS + SLOT_NUMBERS * j);
    }
  }
  return { segments: [...segments.keys()], numbers };
}

/** `keys` and `slots`: those that were asked for. */
export function* placesOf(
  { segments, numbers }: KeyPlaces,
  keys: readonly { readonly key: StoreKey }[],
  slots: readonly string[],
): Generator<KeyMemory, void> {
  const each = VALUE_NUMBERS + SLOT_NUMBERS * slots.length;
  for (const [i, { key }] of keys.entries()) {
    const [byteOffset, byteLength, segment, offsetInSegment, ...rest] = numbers.subarray(
      each * i,
      each * (i + 1),
    ) as unknown as [number, number, number, number, ...number[]];
    const ranges = slots.map((slot, j) => [
      slot,
      { byteOffset: rest[SLOT_NUMBERS * j]!, byteLength: rest[SLOT_NUMBERS * j + 1]! },
    ]);
    yield {
      ...{ key, value: { byteOffset, byteLength }, segment: segments[segment]!, offsetInSegment },
      slots: Object.fromEntries(ranges) as Readonly<Record<string, SpaceRange>>,
    };
  }
}
