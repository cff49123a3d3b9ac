/**
 * What the PyTorch peers of `bench scaleup` are given: the samples and sizes of our model, as files that
 * peers/textcnn_torch.py reads. Starts nothing. Invariant: all peers train on the bytes that our learners train on.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { textRecipe } from '../../models/index.ts';
import type { TextSamples } from './text-task.ts';

/** Returns the path of the description; the columns lie beside it, as they are in memory. */
export function writeTorchTask({ dataset, facts }: TextSamples, folder: string): string {
  const { size = 128, widths, filters, dropout, embeddingDropout } = textRecipe.options;
  const columns = { tokens: 'tokens.bin', labels: 'labels.bin' } as const;
  for (const [name, file] of Object.entries(columns)) {
    const { data } = dataset.column(name);
    writeFileSync(join(folder, file), new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  const file = join(folder, 'torch-task.json');
  const task = { ...columns, ...facts, size, widths, filters, dropout, embeddingDropout };
  writeFileSync(file, JSON.stringify({ ...task, lr: textRecipe.optimizer.lr }));
  return file;
}
