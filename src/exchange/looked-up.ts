/**
 * Which rows of a table a batch will look up, known before the forward pass: where the indices are an input of the model itself.
 * Reads; changes nothing.
 */
import { elementCount, resolveShape } from '../graph/index.ts';
import type { Region } from '../memory/index.ts';
import { inputWithSameBytes, type ModelMemory, type SparsePlace } from '../runtime/index.ts';

/** The indices of the batch in the inputs, one region for each lookup; undefined if some are computed by the model. */
export function lookedUp(
  memory: ModelMemory,
  { gradient }: SparsePlace,
  batch: number,
): Region<'int32'>[] | undefined {
  const regions = gradient.lookups.map(({ indices }) => {
    const input = inputWithSameBytes(indices);
    const length = elementCount(resolveShape(indices.shape, batch));
    return input && (memory.source(input) as Region<'int32'>).slice(0, length);
  });
  return regions.every((region) => region !== undefined) ? regions : undefined;
}
