/**
 * The body of the prefetching thread and the words it shares with `Prefetcher`. It is plain JavaScript in a string,
 * started with `eval`, because a thread cannot load TypeScript: so it runs the same from the compiled package and
 * from the sources. It must stay self-contained; a test holds that it gives the bytes of `Dataset.read`.
 */
import type { ColumnData } from './dataset.ts';

/** The int32 words of the control block, each written by one side only. */
export const ControlWord = {
  /** Slots handed to the thread so far (modulo 2^32); written by the caller. */
  REQUESTED: 0,
  /** Slots filled so far (modulo 2^32), the one that failed included; written by the thread. */
  FILLED: 1,
  /** 1 asks the thread to end; written by the caller, who then moves REQUESTED so that no wait is missed. */
  CLOSED: 2,
  /** The bytes of the error message, 0 while all is well; written by the thread. */
  FAILED: 3,
} as const;
export const CONTROL_WORDS = 4;
export const ERROR_BYTES = 4096;

export interface ThreadColumn {
  readonly name: string;
  readonly data: ColumnData;
  readonly sampleSize: number;
  /** For uint8 columns: the float32 of each value. */
  readonly table: Float32Array | undefined;
  /** For each slot, where the gathered samples go. */
  readonly slots: readonly (Float32Array | Int32Array)[];
}

export interface ThreadData {
  readonly control: Int32Array;
  readonly error: Uint8Array;
  /** The number of samples in the dataset. */
  readonly length: number;
  /** For each slot: the number of ids, then the ids. */
  readonly requests: readonly Uint32Array[];
  readonly columns: readonly ThreadColumn[];
}

export const PREFETCH_THREAD = `'use strict';
const { workerData } = require('node:worker_threads');
const { control, error, length, requests, columns } = workerData;
const REQUESTED = ${ControlWord.REQUESTED}, FILLED = ${ControlWord.FILLED};
const CLOSED = ${ControlWord.CLOSED}, FAILED = ${ControlWord.FAILED};

function fill(slot) {
  const count = requests[slot][0];
  const samples = requests[slot].subarray(1, 1 + count);
  for (const sample of samples) {
    if (sample >= length) throw new RangeError('sample ' + sample + ' is not in the dataset of ' + length + ' samples');
  }
  for (const { data, sampleSize, table, slots } of columns) {
    const target = slots[slot];
    let to = 0;
    for (const sample of samples) {
      const from = sample * sampleSize;
      if (table !== undefined) for (let i = 0; i < sampleSize; i++) target[to + i] = table[data[from + i]];
      else if (sampleSize === 1) target[to] = data[from];
      else target.set(data.subarray(from, from + sampleSize), to);
      to += sampleSize;
    }
  }
}

let slot = 0;
try {
  for (let filled = 0; Atomics.load(control, CLOSED) === 0; ) {
    const requested = Atomics.load(control, REQUESTED);
    if (requested === filled) {
      Atomics.wait(control, REQUESTED, requested);
      continue;
    }
    fill(slot);
    slot = (slot + 1) % requests.length;
    filled = (filled + 1) | 0;
    Atomics.store(control, FILLED, filled);
    Atomics.notify(control, FILLED);
  }
} catch (cause) {
  const text = String((cause && cause.message) || cause) || 'unknown error';
  const bytes = new TextEncoder().encode(text).subarray(0, error.length);
  error.set(bytes);
  Atomics.store(control, FAILED, bytes.length);
  Atomics.add(control, FILLED, 1);
  Atomics.notify(control, FILLED);
}
`;
