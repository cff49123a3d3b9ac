/**
 * Whether all workers train on the same samples for as many steps: every process loads its data for itself, and one that shuffles or
 * splits by chance would train on samples that another one tests on. Some samples of every column stand for all.
 * Invariant: a difference is an error on all workers alike, before the first step.
 */
import { UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import type { Dataset } from '../data/index.ts';
import { tellAllTexts } from '../exchange/index.ts';
import { someSamples } from '../runtime/index.ts';

export interface RunData {
  readonly dataset: Dataset;
  /** That the model reads. */
  readonly columns: readonly string[];
  readonly steps: number;
  /** Whether workers share its batches out; otherwise each has samples of its own. */
  readonly isShared: boolean;
}

/** All workers call it when a run begins. True if each was to have samples of its own, and all have the same. */
export function compareData(
  thread: CommunicationThread,
  { dataset, columns, steps, isShared }: RunData,
): boolean {
  const own = {
    ...{ steps, 'use of shard': isShared },
    ...{ 'number of samples': dataset.length, samples: someSamples(dataset, columns) },
  };
  const texts = tellAllTexts(thread, JSON.stringify(own), 'what the workers train on');
  const [first, ...others] = texts.map((text) => JSON.parse(text) as Record<string, unknown>);
  const isApart = [first!, ...others].every((one) => one['use of shard'] === false);
  const differing = (other: Record<string, unknown>, names: readonly string[]) =>
    names.find((name) => first![name] !== other[name]);
  for (const [i, other] of others.entries()) {
    const what = differing(other, isApart ? ['steps'] : Object.keys(own));
    if (what === undefined) continue;
    const values = what === 'samples' ? '' : ` (${String(other[what])} and ${String(first![what])})`;
    throw new UsageError(
      'INVALID_DATA',
      `the ${what} of worker ${i + 1} and worker 0 are not the same${values}; load the data alike in every process, with a seed where it is shuffled or split`,
      { worker: i + 1, what },
    );
  }
  return isApart && others.every((other) => differing(other, Object.keys(own)) === undefined);
}
