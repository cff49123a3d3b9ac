/**
 * What `bench scaleup` trains: the text-CNN of the recipe on texts of a CSV file. Built alike in
 * every process that trains, and read by the bench for the sizes that peers and the count of bytes
 * need. Measures nothing. Invariant: everybody who reads the same file gets the same samples,
 * vocabulary and model.
 */
import { encodeText, LabelSet, readTextCsv, SampleOrder, Tokenizer, Vocabulary } from '../../data/index.ts';
import type { Dataset } from '../../data/index.ts';
import type { LearnerTask } from '../../learners/index.ts';
import { textCnn, textRecipe } from '../../models/index.ts';

/** Plain data: it travels to the processes that train. */
export interface TextTaskData {
  /** Absolute path of the CSV file: texts, then labels. */
  readonly file: string;
  /** Samples in a batch. */
  readonly batchSize: number;
}

export interface TextSamples {
  readonly dataset: Dataset;
  readonly facts: { readonly vocabulary: number; readonly classes: number; readonly length: number };
}

const SEED = 0;

export function readSamples(file: string): TextSamples {
  const { texts, labels, lines } = readTextCsv(file);
  const { length, minCount, lowerCase } = textRecipe;
  const tokenizer = new Tokenizer({ lowerCase });
  const words = texts.map((text) => tokenizer.tokenize(text));
  const vocabulary = Vocabulary.build(words, { minCount });
  const labelSet = LabelSet.build(labels);
  const dataset = encodeText(texts, labels, { vocabulary, labelSet, length, tokenizer, file, lines });
  return { dataset, facts: { vocabulary: vocabulary.size, classes: labelSet.size, length } };
}

/** Called in every process of a run. The rate stays as it is: a schedule costs nothing, and turns have no end to plan for. */
export function buildTask({ file, batchSize }: TextTaskData): LearnerTask {
  const { dataset, facts } = readSamples(file);
  const { options, optimizer, sparseUpdates } = textRecipe;
  return {
    ...{ model: textCnn({ ...options, ...facts }), train: dataset, optimizer, sparseUpdates, batchSize },
    ...{ seed: SEED, session: { threads: 1, provider: 'cpu' } },
  };
}

/** Different tokens of a batch, mean over the batches of an epoch: the rows of the table that a step reads and updates. */
export function meanTouchedRows({ dataset, facts }: TextSamples, batchSize: number): number {
  const order = new SampleOrder(dataset.length, { seed: SEED });
  const tokens = new Int32Array(batchSize * facts.length);
  const batches = Math.ceil(dataset.length / batchSize);
  let rows = 0;
  for (let batch = 0; batch < batches; batch++) {
    const { samples } = order.draw(batchSize);
    dataset.read(samples, 'tokens', tokens);
    rows += new Set(tokens.subarray(0, samples.length * facts.length)).size;
  }
  return rows / batches;
}
