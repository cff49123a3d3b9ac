/** States and pushes whose every bit follows from a number, so that another process can tell what they must be. */
import { isDeepStrictEqual } from 'node:util';
import type {
  DensePushRecord,
  LogOrigin,
  RowsPushRecord,
  ServerState,
} from '../../../src/server/durability/index.ts';

/** Much faster on long arrays than comparing element by element with a report. */
export const isSame = (a: unknown, b: unknown): boolean => isDeepStrictEqual(a, b);

/** Finite values that differ for each seed and place. */
export function sampleValues(seed: number, length: number): Float32Array {
  const values = new Float32Array(length);
  let word = (seed * 2654435761 + 12345) >>> 0;
  for (let i = 0; i < length; i++) {
    word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
    values[i] = (word - 2 ** 31) / 2 ** 20;
  }
  return values;
}

/** The state of a server after `step` steps; `elements` is a multiple of 4. */
export function sampleState(step: number, elements: number): ServerState {
  const halves = [
    { start: 0, length: elements / 2 },
    { start: elements / 2, length: elements / 2 },
  ];
  return {
    namespace: 'tenant-a',
    cores: [{ optimizer: { kind: 'momentum', learningRate: 0.1 }, log: 7, batches: [] }],
    generation: 3,
    keys: [
      {
        name: 'layer/weights',
        length: elements,
        version: step,
        lastSteps: { 0: step, 1: step },
        tensors: [
          { name: 'value', ranges: halves, data: sampleValues(step, elements) },
          { name: 'velocity', ranges: halves.slice(1), data: sampleValues(step + 0.5, elements / 2) },
        ],
      },
      { name: 'table', length: 12, rowLength: 4, version: 0, lastSteps: {}, tensors: [] },
    ],
  };
}

/** The push that is appended as number `index`; lengths vary, some are longer than the log's buffer. */
export function samplePush(index: number): DensePushRecord | RowsPushRecord {
  const common = { worker: index % 3, key: `ключ-${index % 5}`, step: index + 1, samples: index % 7 };
  const length = index % 7 === 5 ? 200_000 + index : (index * 37) % 3000;
  if (index % 4 === 3) {
    const indices = Int32Array.from({ length: length % 50 }, (_, i) => (i * 7) % 40);
    return { ...common, kind: 'rows', indices, rows: sampleValues(index, 4 * indices.length) };
  }
  const values = sampleValues(index, length);
  const cut = length >> 1;
  const pieces = [
    { start: 64, values: values.subarray(0, cut) },
    { start: 8192, values: values.subarray(cut) },
  ];
  return { ...common, kind: 'dense', pieces };
}

/** What a log says of itself that is the first of a server with one core. */
export const FIRST: LogOrigin = {
  ...{ cores: 1, settings: '{}', previous: null },
  ...{ isFirst: true, isFlushed: false },
};
