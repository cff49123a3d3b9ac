/**
 * Made-up text for the benchmark's language model: words by Zipf's law, as in any language, so that a batch touches as few rows
 * of a table as real text would. It means nothing; a quarter of the words follow from the word before, which a model can
 * learn. Invariant: a sample follows from the seed and its number alone.
 */
import { deriveSeed, Random, UsageError } from '../../base/index.ts';
import { Dataset, drawLogUniform, withNegatives } from '../../data/index.ts';

export interface ZipfTextOptions {
  readonly samples: number;
  /** Words of a sample. */
  readonly length: number;
  /** Number of word ids; 0 is the most frequent word. */
  readonly vocabulary: number;
  /** Words drawn for each sample for sampled softmax. */
  readonly drawn: number;
  /** Default 0. */
  readonly seed?: number;
}

const FOLLOWS = 0.25;
/** Words follow each other within so many neighbours by rank, so that what follows is about as frequent. */
const NEIGHBOURS = 8;

/** The columns `tokens` and `targets`, int32 [length], and `negatives`, int32 [drawn]. */
export function zipfText(options: ZipfTextOptions): Dataset {
  const { samples, length, vocabulary, drawn, seed = 0 } = options;
  for (const [name, value] of Object.entries({ samples, length, vocabulary, drawn })) {
    if (Number.isInteger(value) && value > 0) continue;
    throw new UsageError('INVALID_ARGUMENT', `zipfText: ${name} is ${value}; give a whole number above 0.`);
  }
  const tokens = new Int32Array(samples * length);
  const targets = new Int32Array(samples * length);
  for (let sample = 0; sample < samples; sample++) {
    const random = new Random(deriveSeed(seed, 'zipf text', sample));
    let word = drawLogUniform(random, vocabulary);
    for (let i = sample * length; i < (sample + 1) * length; i++) {
      tokens[i] = word;
      word = random.uniform() < FOLLOWS ? follower(word, vocabulary) : drawLogUniform(random, vocabulary);
      targets[i] = word;
    }
  }
  const text = new Dataset([
    { name: 'tokens', data: tokens, sampleShape: [length] },
    { name: 'targets', data: targets, sampleShape: [length] },
  ]);
  return withNegatives(text, { vocabulary, drawn, seed });
}

/** The next of its neighbours, after the last the first. */
function follower(word: number, vocabulary: number): number {
  const first = word - (word % NEIGHBOURS);
  const count = Math.min(NEIGHBOURS, vocabulary - first);
  return first + ((word - first + 1) % count);
}
