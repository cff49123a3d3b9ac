/**
 * How a classifier does, label by label: its answers on a dataset counted in a confusion matrix, and what is read off
 * it. Invariant: `counts[truth * classes + answer]` sums to the number of samples.
 */
import type { Dataset } from '../data/index.ts';
import { argmax, meanLoss } from '../runtime/index.ts';
import type { Replica } from '../runtime/index.ts';
import { percent, table, thousands } from './format.ts';

interface Confusion {
  readonly classes: number;
  readonly counts: Uint32Array;
  /** Mean over the samples. */
  readonly loss: number;
}

export function confusionOf(
  replica: Replica,
  dataset: Dataset,
  classes: number,
  average?: string,
): Confusion {
  const labels = replica.memory.inputs.get('labels')!.view as Int32Array;
  const counts = new Uint32Array(classes * classes);
  const loss = meanLoss(replica, dataset, true, { average }, (size, logits) => {
    for (let row = 0; row < size; row++) {
      const answer = argmax(logits!, row * classes, classes);
      counts[labels[row]! * classes + answer]!++;
    }
  });
  return { classes, counts, loss };
}

interface LabelScore {
  readonly label: string;
  /** Samples that bear it. */
  readonly samples: number;
  /** Share of the answers with this label that are right; null if it was never answered. */
  readonly precision: number | null;
  /** Share of its samples that were found; null if there are none. */
  readonly recall: number | null;
}

interface ConfusedPair {
  readonly truth: string;
  readonly answer: string;
  readonly count: number;
}

export interface ClassificationReport {
  readonly loss: number;
  readonly accuracy: number;
  readonly samples: number;
  readonly labels: readonly LabelScore[];
  /** Most frequent first. */
  readonly confused: readonly ConfusedPair[];
}

const LISTED_PAIRS = 5;

export function reportOf(
  { classes, counts, loss }: Confusion,
  names: readonly string[],
): ClassificationReport {
  const name = (id: number) => names[id] ?? String(id);
  const answered = new Uint32Array(classes);
  const borne = new Uint32Array(classes);
  const confused: ConfusedPair[] = [];
  let right = 0;
  for (let truth = 0; truth < classes; truth++) {
    for (let answer = 0; answer < classes; answer++) {
      const count = counts[truth * classes + answer]!;
      borne[truth]! += count;
      answered[answer]! += count;
      if (truth === answer) right += count;
      else if (count > 0) confused.push({ truth: name(truth), answer: name(answer), count });
    }
  }
  const share = (id: number, total: number) => (total === 0 ? null : counts[id * classes + id]! / total);
  const labels = Array.from(borne, (samples, id) => ({
    label: name(id),
    samples,
    precision: share(id, answered[id]!),
    recall: share(id, samples),
  }));
  const samples = borne.reduce((a, b) => a + b, 0);
  confused.sort((a, b) => b.count - a.count);
  return { loss, accuracy: right / samples, samples, labels, confused: confused.slice(0, LISTED_PAIRS) };
}

const LONGEST_LABEL = 40;

export function printReport({ labels, confused }: ClassificationReport): string {
  const short = (label: string) =>
    label.length > LONGEST_LABEL ? `${label.slice(0, LONGEST_LABEL - 1)}…` : label;
  const share = (value: number | null) => (value === null ? '-' : percent(value));
  const rows = labels.map(({ label, samples, precision, recall }) => [
    short(label),
    share(precision),
    share(recall),
    thousands(samples),
  ]);
  const lines = [table([['label', 'precision', 'recall', 'samples'], ...rows])];
  if (confused.length > 0) {
    lines.push(
      '',
      'Most confused:',
      table(
        confused.map(({ truth, answer, count }) => [
          `  ${short(truth)} taken for ${short(answer)}`,
          thousands(count),
        ]),
      ),
    );
  }
  return lines.join('\n');
}
