/** Loss and accuracy of a replica on a dataset, in inference form. */
import { UsageError } from '../base/index.ts';
import type { Dataset } from '../data/index.ts';
import type { Replica } from '../runtime/index.ts';

export interface Evaluation {
  /** Mean over the samples. */
  readonly loss: number;
  /** Share of labels (or positions of a sequence) where the largest logit is right; absent without logits. */
  readonly accuracy?: number;
}

export interface EvaluateOptions {
  /** Use this moving average of the parameters. */
  readonly average?: string;
}

/** Evaluates in batches no larger than the replica was made for. */
export function evaluate(replica: Replica, dataset: Dataset, options: EvaluateOptions = {}): Evaluation {
  const { memory, model } = replica;
  const hasLogits = 'logits' in model.outputs;
  const labels = memory.inputs.get('labels') ?? memory.inputs.get('targets');
  const evaluator = replica.evaluator(hasLogits ? ['loss', 'logits'] : ['loss'], options.average);
  const batchSize = memory.sampleIds.length;
  let loss = 0;
  let correct = 0;
  let counted = 0;
  for (let start = 0; start < dataset.length; start += batchSize) {
    const size = Math.min(batchSize, dataset.length - start);
    const samples = Uint32Array.from({ length: size }, (_, i) => start + i);
    for (const [name, region] of memory.inputs) dataset.read(samples, name, region.view as Float32Array);
    const [batchLoss, logits] = evaluator.run(size);
    loss += (batchLoss!.view[0] as number) * size;
    if (!logits || !labels) continue;
    const perSample = labels.length / batchSize;
    const classes = logits.length / (size * perSample);
    correct += countCorrect(
      logits.view as Float32Array,
      labels.view as Int32Array,
      size * perSample,
      classes,
    );
    counted += size * perSample;
  }
  evaluator.close();
  if (dataset.length === 0)
    throw new UsageError('INVALID_DATA', 'There is nothing to evaluate: the dataset is empty.');
  return { loss: loss / dataset.length, ...(counted > 0 ? { accuracy: correct / counted } : {}) };
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
