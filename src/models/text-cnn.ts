/**
 * Kim's convolutional network for sentence classification (2014), the variant that learns its embeddings:
 * filters of several widths over the words, the maximum over time of each, dropout, one dense layer.
 * Sentences are padded by width - 1 on both sides, so that the first and last words are seen at every place of a filter.
 */
import { z } from 'zod';
import {
  concat,
  crossEntropy,
  dropout,
  embedding,
  expand,
  firstMax,
  glorotUniform,
  Graph,
  heUniform,
  linear,
  mul,
  N,
  pad,
  relu,
  temporalConv,
  uniform,
  type Model,
  type Tensor,
} from '../graph/index.ts';
import { classes, count, labelSmoothing, readOptions, share, vocabulary } from './options.ts';

export const textCnnOptions = z.object({
  vocabulary: vocabulary(),
  classes: classes(),
  length: count().describe('Tokens of a text; shorter ones are padded with id 0.'),
  size: count().default(128).describe('Size of a word vector.'),
  widths: z.array(count()).min(1).default([3, 4, 5]).describe('Widths of the filters in tokens.'),
  filters: count().default(128).describe('Filters of each width.'),
  dropout: share().default(0.5).describe('Probability of dropping a feature before the dense layer.'),
  wordDropout: share().default(0).describe('Probability of dropping a whole word.'),
  embeddingDropout: share().default(0).describe('Probability of dropping an element of a word vector.'),
  embeddingLimit: z
    .number()
    .positive()
    .default(0.25)
    .describe('Word vectors start uniform within this limit.'),
  labelSmoothing: labelSmoothing(),
});
export type TextCnnOptions = z.input<typeof textCnnOptions>;

/** Dropout of ones, one for each word, so that the inference form multiplies by one. */
function dropWords(words: Tensor, p: number): Tensor {
  if (p === 0) return words;
  const ones = expand(words.graph.scalar(1), [...words.shape.slice(0, 2), 1]);
  return mul(words, dropout(ones, p));
}

export function textCnn(options: TextCnnOptions): Model {
  const o = readOptions('text-cnn', textCnnOptions, options);
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, o.length], 'int32');
  const words = embedding(tokens, o.vocabulary, o.size, {
    name: 'embedding',
    paddingIndex: 0,
    initialiser: uniform(o.embeddingLimit),
  });
  const x = dropWords(dropout(words, o.embeddingDropout), o.wordDropout);
  const features = o.widths.map((width, i) => {
    const padded = pad(x, [
      [0, 0],
      [width - 1, width - 1],
      [0, 0],
    ]);
    const initialiser = heUniform(o.size * width);
    // relu behind the maximum: the same features on far fewer elements.
    return relu(firstMax(temporalConv(padded, o.filters, width, { name: `conv${i + 1}`, initialiser }), 1));
  });
  const h = dropout(concat(features, 1), o.dropout);
  const initialiser = glorotUniform(o.filters * o.widths.length, o.classes);
  const logits = linear(h, o.classes, { name: 'output', initialiser });
  const labels = graph.input('labels', [N], 'int32');
  const loss = crossEntropy(logits, labels, { labelSmoothing: o.labelSmoothing });
  return { graph, loss, outputs: { logits } };
}
