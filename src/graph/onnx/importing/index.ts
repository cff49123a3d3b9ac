/** The import table: every ONNX operator that the catalogue can express. */
import { elementwiseImport } from './elementwise.ts';
import { neuralImport } from './neural.ts';
import type { ImportRule } from './node.ts';
import { recurrentImport } from './recurrent.ts';
import { shapeImport } from './shapes.ts';
import { tensorImport } from './tensor.ts';
import { windowImport } from './windows.ts';

/** A map, because operator names come from the file. */
export const importTable: ReadonlyMap<string, ImportRule> = new Map(
  Object.entries({
    ...elementwiseImport,
    ...tensorImport,
    ...shapeImport,
    ...neuralImport,
    ...windowImport,
    ...recurrentImport,
  }),
);

export { ImportNode, placeOf, type ImportResult } from './node.ts';
export { ImportSession } from './session.ts';
export { knownFromTensor, type Value } from './value.ts';
