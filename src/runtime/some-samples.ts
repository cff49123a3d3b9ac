/**
 * A short text that is equal for equal datasets and, most likely, for no others: some samples of
 * every column stand for all. Invariant: it takes no longer for a large dataset than for a small
 * one.
 */
import { createHash } from 'node:crypto';
import type { Dataset } from '../data/index.ts';

const LOOKED_AT = 32;

/** A fingerprint of samples from all over the dataset. */
export function someSamples(dataset: Dataset, columns: readonly string[]): string {
  const hash = createHash('sha256');
  const count = Math.min(LOOKED_AT, dataset.length);
  const places = Array.from({ length: count }, (_, i) => Math.floor((i * dataset.length) / count));
  for (const name of columns) {
    const { data } = dataset.column(name);
    const size = data.length / dataset.length;
    for (const place of places) {
      const { buffer, byteOffset, byteLength } = data.subarray(place * size, (place + 1) * size);
      hash.update(new Uint8Array(buffer, byteOffset, byteLength));
    }
  }
  return hash.digest('hex');
}
