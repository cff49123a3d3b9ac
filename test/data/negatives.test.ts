import { describe, expect, test } from 'vitest';
import { Dataset, drawNegatives, withNegatives } from '../../src/data/index.ts';
import { drawProbability } from '../../src/models/sampled-language-model.ts';
import { expectError } from './expect-error.ts';

describe('negatives', () => {
  const options = { vocabulary: 50, drawn: 8, seed: 3 };

  test('are drawn as often as the model supposes, first and last word included', () => {
    const [samples, drawn, vocabulary] = [500, 400, 20];
    const counts = new Array<number>(vocabulary).fill(0);
    for (const word of drawNegatives(samples, { vocabulary, drawn, seed: 1 })) counts[word]!++;
    counts.forEach((count, word) => {
      const probability = drawProbability(word, vocabulary);
      const deviation = Math.sqrt((probability * (1 - probability)) / (samples * drawn));
      expect(Math.abs(count / (samples * drawn) - probability), `word ${word}`).toBeLessThan(5 * deviation);
    });
  });

  test('follow from the seed and the number of the sample alone', () => {
    const few = drawNegatives(3, options);
    expect(drawNegatives(9, options).slice(0, few.length)).toEqual(few);
    expect(drawNegatives(3, { ...options, seed: 4 })).not.toEqual(few);
    expect(few.slice(0, 8)).not.toEqual(few.slice(8, 16));
  });

  test('of a vocabulary of one word are that word', () => {
    expect([...drawNegatives(2, { vocabulary: 1, drawn: 3 })]).toEqual([0, 0, 0, 0, 0, 0]);
  });

  test('are one more column of a dataset whose others are not copied', () => {
    const dataset = new Dataset([{ name: 'tokens', data: Int32Array.of(1, 2, 3, 4), sampleShape: [2] }]);
    const more = withNegatives(dataset, options);
    expect(more.column('tokens').data).toBe(dataset.column('tokens').data);
    expect(more.column('negatives')).toMatchObject({ dtype: 'int32', sampleShape: [8] });
    expect(more.column('negatives').data).toEqual(drawNegatives(2, options));
    expectError(() => withNegatives(more, options), 'INVALID_ARGUMENT', 'already');
  });

  test.each(['vocabulary', 'drawn'])('need a whole number above 0 as %s', (name) => {
    expectError(() => drawNegatives(2, { ...options, [name]: 0 }), 'INVALID_ARGUMENT', name);
  });
});
