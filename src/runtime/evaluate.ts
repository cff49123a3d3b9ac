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

/** By a worker that has no part. */
export const NOTHING_EVALUATED: EvaluationSums = { loss: 0, samples: 0, correct: 0, counted: 0 };
const WHOLE: EvaluationPart = { index: 0, count: 1 };

/** Evaluates in batches no larger than the replica was made for. */
export function evaluate(replica: Replica, dataset: Dataset, options: EvaluateOptions = {}): Evaluation {
  return evaluationOf(evaluatePart(replica, dataset, options, WHOLE));
}

function evaluatePart(
  replica: Replica,
  dataset: Dataset,
  options: EvaluateOptions,
  part: EvaluationPart,
): EvaluationSums {
  checkAllHere(replica);
  const batches = partInBatches(replica, dataset, options, part);
  for (;;) {
    const { done, value } = batches.next();
    if (done) return value;
  }
}

/**
 * The same, when `prepare` has brought the rows that the batch in the replica's inputs looks up.
 */
export async function evaluateRemotely(
  replica: Replica,
  dataset: Dataset,
  options: EvaluateOptions,
  prepare: (samples: ArrayLike<number>) => Promise<void>,
  part: EvaluationPart = WHOLE,
): Promise<EvaluationSums> {
  const batches = partInBatches(replica, dataset, options, part);
  for (;;) {
    const { done, value } = batches.next();
    if (done) return value;
    await prepare(value);
  }
}

function* partInBatches(
  replica: Replica,
  dataset: Dataset,
  options: EvaluateOptions,
  part: EvaluationPart,
): Generator<Uint32Array, EvaluationSums> {
  const { memory, model } = replica;
  const labels = memory.inputs.get('labels') ?? memory.inputs.get('targets');
  let correct = 0;
  let counted = 0;
  const visit: Visit = (size, logits) => {
    if (!logits || !labels) return;
    const rows = size * (labels.length / memory.sampleIds.length);
    correct += countCorrect(logits, labels.view as Int32Array, rows, logits.length / rows);
    counted += rows;
  };
  const sums = yield* lossSums(replica, dataset, 'logits' in model.outputs, options, part, visit);
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
  visit: Visit,
): number {
  checkAllHere(replica);
  const batches = lossSums(replica, dataset, withLogits, options, WHOLE, visit);
  for (;;) {
    const { done, value } = batches.next();
    if (done) return value.loss / value.samples;
  }
}

type Visit = (size: number, logits: Float32Array | undefined) => void;

/** Yields the samples of each batch when it is in the inputs, before it is computed. */
function* lossSums(
  replica: Replica,
  dataset: Dataset,
  withLogits: boolean,
  { average }: EvaluateOptions,
  { index, count }: EvaluationPart,
  visit: Visit,
): Generator<Uint32Array, { readonly loss: number; readonly samples: number }> {
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
      yield samples;
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

/** What was trained on servers is not here any more when they have ended. */
function checkAllHere({ memory }: Replica): void {
  const [table] = memory.rowBuffers.keys();
  if (table === undefined) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${table} was on servers only (serverTables), so that this replica cannot compute without them. Evaluate by runner.evaluate before the run ends, or load its last checkpoint into a replica of one device.`,
    { table },
  );
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
