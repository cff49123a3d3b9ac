/** The recipes reach the accuracy they promise on real data: the last epoch, the test rows seen once, at the end. */
import { describe, expect, it } from 'vitest';
import { encodeText, LabelSet, readTextCsv, Tokenizer, Vocabulary } from '../../src/data/index.ts';
import { recipes, recipeSchedule, textCnn, type RecipeName } from '../../src/models/index.ts';
import { evaluate } from '../../src/runtime/index.ts';
import { fit } from '../../src/runner/index.ts';
import { datasetPath, NEEDS_DATASETS } from '../support/shared.ts';

type TextSet = Exclude<RecipeName, 'mnist'>;

async function testAccuracy(name: TextSet, seed: number): Promise<number> {
  const recipe = recipes[name];
  const read = (part: 'train' | 'test') => readTextCsv(datasetPath(`${name}-${part}.csv`)!);
  const rows = read('train');
  const { length, minCount, lowerCase, batchSize, epochs, optimizer, sparseUpdates } = recipe;
  const tokenizer = new Tokenizer({ lowerCase });
  const vocabulary = Vocabulary.build(
    rows.texts.map((text) => tokenizer.tokenize(text)),
    { minCount },
  );
  const labelSet = LabelSet.build(rows.labels);
  const encode = ({ texts, labels }: typeof rows) =>
    encodeText(texts, labels, { vocabulary, labelSet, length, tokenizer });
  const train = encode(rows);
  const model = textCnn({ ...recipe.options, vocabulary: vocabulary.size, classes: labelSet.size, length });
  const schedule = recipeSchedule(recipe, epochs * Math.ceil(train.length / batchSize));
  const result = await fit(model, { train, batchSize, epochs, optimizer, schedule, sparseUpdates, seed });
  try {
    return evaluate(result.replica, encode(read('test'))).accuracy!;
  } finally {
    await result.close();
  }
}

const long = process.env.TRIBUTARY_ACCEPTANCE !== undefined;
const MINUTES = 60_000;

const has = (name: TextSet) =>
  ['train', 'test'].every((part) => datasetPath(`${name}-${part}.csv`) !== undefined);

describe(`text classification (${NEEDS_DATASETS})`, () => {
  it.skipIf(!has('trec6'))('reaches 90 % on TREC-6', { timeout: 10 * MINUTES }, async () => {
    expect(await testAccuracy('trec6', 1)).toBeGreaterThanOrEqual(0.9);
  });

  it.skipIf(!long || !has('movie-reviews'))(
    'reaches 75 % on movie reviews (set TRIBUTARY_ACCEPTANCE)',
    { timeout: 20 * MINUTES },
    async () => {
      expect(await testAccuracy('movie-reviews', 1)).toBeGreaterThanOrEqual(0.75);
    },
  );

  it.skipIf(!long || !has('banking77'))(
    'reaches 80 % on banking77 (set TRIBUTARY_ACCEPTANCE)',
    { timeout: 20 * MINUTES },
    async () => {
      expect(await testAccuracy('banking77', 1)).toBeGreaterThanOrEqual(0.8);
    },
  );
});
