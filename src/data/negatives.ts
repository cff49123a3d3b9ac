/**
 * Words drawn for each sample, which a model trained by sampled softmax tells the targets from. Words are numbered by falling
 * count, as in a `Vocabulary`, and drawn log-uniformly, with replacement: word k with probability
 * `log((k + 2) / (k + 1)) / log(vocabulary + 1)`, close to Zipf's law. Nothing here looks at what a sample holds.
 * Invariant: what is drawn for a sample follows from the seed and its number alone, so that it is the same in any batch.
 */
import { deriveSeed, Random, UsageError } from '../base/index.ts';
import { allocate, type Dataset } from './dataset.ts';
import { checkLength } from './text-classification.ts';

export interface NegativesOptions {
  /** Number of word ids. */
  readonly vocabulary: number;
  /** Words drawn for each sample. */
  readonly drawn: number;
  /** Default 0. */
  readonly seed?: number;
}

/** A word from 0 to vocabulary - 1. */
export function drawLogUniform(random: Random, vocabulary: number): number {
  const share = random.uint32() / 2 ** 32;
  // Rounding of exp may reach the end of the last word's share.
  return Math.min(Math.floor(Math.exp(share * Math.log(vocabulary + 1))) - 1, vocabulary - 1);
}

/** The words of samples 0, 1, ..., one sample after the other. */
export function drawNegatives(samples: number, options: NegativesOptions): Int32Array {
  const { vocabulary, drawn, seed = 0 } = options;
  for (const [name, value] of Object.entries({ samples, vocabulary, drawn })) checkLength(name, value);
  const words = allocate('int32', samples * drawn) as Int32Array;
  for (let sample = 0; sample < samples; sample++) {
    const random = new Random(deriveSeed(seed, 'negatives', sample));
    for (let i = 0; i < drawn; i++) words[sample * drawn + i] = drawLogUniform(random, vocabulary);
  }
  return words;
}

/** The dataset with one more column, `negatives`, int32 [drawn]; the others share their bytes. */
export function withNegatives(dataset: Dataset, options: NegativesOptions): Dataset {
  if (dataset.columns.some(({ name }) => name === 'negatives')) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      'withNegatives: the dataset has a column "negatives" already; draw once, on the dataset without it.',
    );
  }
  const data = drawNegatives(dataset.length, options);
  return dataset.withColumns([...dataset.columns, { name: 'negatives', data, sampleShape: [options.drawn] }]);
}
