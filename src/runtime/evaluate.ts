/** Loss and accuracy of a replica on a dataset, in inference form. */
import { UsageError } from '../base/index.ts';
import type { Dataset } from '../data/index.ts';
import { checkColumns } from './column-check.ts';
import type { Replica } from './replica.ts';

export interface Evaluation {
  /** Mean over the samples. */
  readonly loss: number;
  /** Share of labels (or positions of a sequence) where the largest logit is right; absent without logits. */
  readonly accuracy?: number;
}

export interface EvaluateOptions {
  /** Use this moving average of the parameters. */
  readonly average?: string | undefined;
}

/** Which batches of a dataset one worker takes: every so many, from its own on. */
export interface EvaluationPart {
  readonly index: number;
  readonly count: number;
}

/** What evaluations of parts add up to. */
export interface EvaluationSums {
  readonly loss: number;
  readonly samples: number;
  readonly correct: number;
  /** Labels or positions that `correct` is a share of. */
  readonly counted: number;
}

const WHOLE: EvaluationPart = { index: 0, count: 1 };

/** Evaluates in batches no larger than the replica was made for. */
export function evaluate(replica: Replica, dataset: Dataset, options: EvaluateOptions = {}): Evaluation {
  return evaluationOf(evaluatePart(replica, dataset, options, WHOLE));
}

export function evaluatePart(
  replica: Replica,
  dataset: Dataset,
  options: EvaluateOptions,
  part: EvaluationPart,
): EvaluationSums {
  const { memory, model } = replica;
  const labels = memory.inputs.get('labels') ?? memory.inputs.get('targets');
  let correct = 0;
  let counted = 0;
  const sums = lossSums(replica, dataset, 'logits' in model.outputs, options, part, (size, logits) => {
    if (!logits || !labels) return;
    const rows = size * (labels.length / memory.sampleIds.length);
    correct += countCorrect(logits, labels.view as Int32Array, rows, logits.length / rows);
    counted += rows;
  });
  return { ...sums, correct, counted };
}

export function evaluationOf({ loss, samples, correct, counted }: EvaluationSums): Evaluation {
  return { loss: loss / samples, ...(counted > 0 ? { accuracy: correct / counted } : {}) };
}

/**
 * The mean loss over a dataset in inference form. `visit` is called for each batch while it lies in the replica's inputs, with its
 * size and, if asked for, its logits.
 */
export function meanLoss(
  replica: Replica,
  dataset: Dataset,
  withLogits: boolean,
  options: EvaluateOptions,
  visit: (size: number, logits: Float32Array | undefined) => void,
): number {
  const { loss, samples } = lossSums(replica, dataset, withLogits, options, WHOLE, visit);
  return loss / samples;
}

function lossSums(
  replica: Replica,
  dataset: Dataset,
  withLogits: boolean,
  { average }: EvaluateOptions,
  { index, count }: EvaluationPart,
  visit: (size: number, logits: Float32Array | undefined) => void,
): { readonly loss: number; readonly samples: number } {
  if (dataset.length === 0) {
    throw new UsageError('INVALID_DATA', 'There is nothing to evaluate: the dataset is empty.');
  }
  checkColumns(replica.model, dataset);
  const { memory } = replica;
  const batchSize = memory.sampleIds.length;
  const evaluator = replica.evaluator(withLogits ? ['loss', 'logits'] : ['loss'], average);
  let [total, evaluated] = [0, 0];
  try {
    for (let start = index * batchSize; start < dataset.length; start += count * batchSize) {
      const size = Math.min(batchSize, dataset.length - start);
      const samples = Uint32Array.from({ length: size }, (_, i) => start + i);
      for (const [name, region] of memory.inputs) dataset.read(samples, name, region.view as Float32Array);
      const [loss, logits] = evaluator.run(size);
      total += (loss!.view[0] as number) * size;
      evaluated += size;
      visit(size, logits?.view as Float32Array | undefined);
    }
  } finally {
    evaluator.close();
  }
  return { loss: total, samples: evaluated };
}

function countCorrect(logits: Float32Array, labels: Int32Array, rows: number, classes: number): number {
  let correct = 0;
  for (let row = 0; row < rows; row++) {
    if (argmax(logits, row * classes, classes) === labels[row]) correct++;
  }
  return correct;
}

/** The position of the largest of `count` values from `start`. */
export function argmax(values: ArrayLike<number>, start: number, count: number): number {
  let best = 0;
  for (let i = 1; i < count; i++) if (values[start + i]! > values[start + best]!) best = i;
  return best;
}
