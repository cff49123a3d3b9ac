import { expect, test } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import { zipfText } from '../../src/bench/hybrid/zipf-text.ts';
import { drawProbability } from '../../src/models/sampled-language-model.ts';

const options = { samples: 2000, length: 10, vocabulary: 37, drawn: 5, seed: 2 };

test('targets are the words that follow, and all words are of the vocabulary', () => {
  const text = zipfText(options);
  const [tokens, targets, negatives] = ['tokens', 'targets', 'negatives'].map(
    (name) => text.column(name).data,
  );
  expect(text.length).toBe(options.samples);
  expect(negatives).toHaveLength(options.samples * options.drawn);
  for (let i = 0; i < tokens!.length; i++) {
    if ((i + 1) % options.length > 0) expect(targets![i]).toBe(tokens![i + 1]);
  }
  for (const words of [tokens!, targets!, negatives!]) {
    expect(Math.min(...words)).toBe(0);
    expect(Math.max(...words)).toBe(options.vocabulary - 1);
  }
});

test('words are as rare as by Zipf, and a quarter of them and some by chance follow from the one before', () => {
  const text = zipfText(options);
  const [tokens, targets] = [text.column('tokens').data, text.column('targets').data];
  const share = (holds: (i: number) => boolean) => tokens.filter((_, i) => holds(i)).length / tokens.length;
  const firstBlock = Array.from({ length: 8 }, (_, word) => drawProbability(word, options.vocabulary));
  expect(share((i) => tokens[i]! < 8)).toBeCloseTo(
    firstBlock.reduce((a, b) => a + b),
    1,
  );
  const follows = share((i) => targets[i] === tokens[i]! + 1 || targets[i] === tokens[i]! - 7);
  expect(follows).toBeGreaterThan(0.25);
  expect(follows).toBeLessThan(0.4);
});

test('a sample follows from the seed and its number; what makes no text is refused', () => {
  const words = (samples: number, seed: number) =>
    zipfText({ ...options, samples, seed }).column('tokens').data;
  expect(words(5, 2).slice(0, 30)).toEqual(words(3, 2));
  expect(words(3, 3)).not.toEqual(words(3, 2));
  expect(() => zipfText({ ...options, length: 0 })).toThrow(UsageError);
});
