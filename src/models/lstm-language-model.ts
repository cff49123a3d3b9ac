/**
 * The recurrent language model of Zaremba et al. (2014): embeddings, LSTM layers with dropout between them but not
 * through time, and a projection onto the vocabulary. Every sequence starts from a zero state.
 */
import { z } from 'zod';
import {
  clipByGlobalNorm,
  crossEntropy,
  dropout,
  embedding,
  Graph,
  linear,
  lstm,
  N,
  transpose,
  uniform,
  type Model,
  type Tensor,
} from '../graph/index.ts';
import { count, readOptions, share, vocabulary } from './options.ts';

export const lstmLanguageModelOptions = z.object({
  vocabulary: vocabulary(),
  length: count().describe('Tokens of a sequence.'),
  size: count().default(256).describe('Size of a token vector.'),
  units: count().default(256).describe('Units of each LSTM layer.'),
  layers: count().default(1).describe('LSTM layers.'),
  dropout: share()
    .default(0)
    .describe('Probability of dropping an element before and after each LSTM layer.'),
  clipNorm: z
    .number()
    .positive()
    .nullable()
    .default(5)
    .describe('Largest norm of all gradients together; null: no limit.'),
});
export type LstmLanguageModelOptions = z.input<typeof lstmLanguageModelOptions>;

export function lstmLanguageModel(options: LstmLanguageModelOptions): Model {
  const o = readOptions('lstm-lm', lstmLanguageModelOptions, options);
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, o.length], 'int32');
  const logits = linear(lstmFeatures(tokens, o), o.vocabulary, {
    name: 'output',
    initialiser: uniform(0.1),
  });
  const loss = crossEntropy(logits, graph.input('targets', [N, o.length], 'int32'));
  if (o.clipNorm !== null) clipByGlobalNorm(graph, o.clipNorm);
  return { graph, loss, outputs: { logits } };
}

/** `[N, length] -> [N, length, units]`: what the LSTM layers know behind each token. */
export function lstmFeatures(
  tokens: Tensor,
  o: Pick<z.output<typeof lstmLanguageModelOptions>, 'vocabulary' | 'size' | 'units' | 'layers' | 'dropout'>,
): Tensor {
  const vectors = embedding(tokens, o.vocabulary, o.size, { name: 'embedding', initialiser: uniform(0.1) });
  let h = dropout(transpose(vectors, [1, 0, 2]), o.dropout);
  for (let layer = 1; layer <= o.layers; layer++) {
    h = dropout(lstm(h, o.units, { name: `lstm${layer}` }).y, o.dropout);
  }
  return transpose(h, [1, 0, 2]);
}
