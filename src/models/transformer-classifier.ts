/**
 * A transformer encoder for text classification: pre-norm blocks in which every word sees every other, then the mean over
 * the words. Padding (id 0) is neither attended to nor averaged, so a text's result does not depend on how far it is padded.
 */
import { z } from 'zod';
import {
  cast,
  clamp,
  crossEntropy,
  div,
  dropout,
  greater,
  Graph,
  layerNorm,
  linear,
  mul,
  N,
  reshape,
  sum,
  type Model,
} from '../graph/index.ts';
import { classes, count, labelSmoothing, readOptions, share, vocabulary } from './options.ts';
import { embedTokens, transformerBlock } from './transformer-block.ts';

export const transformerClassifierOptions = z.object({
  vocabulary: vocabulary(),
  classes: classes(),
  length: count().describe('Tokens of a text; shorter ones are padded with id 0.'),
  width: count().default(64).describe('Size of a token vector.'),
  heads: count().default(4).describe('Attention heads; they divide the width.'),
  layers: count().default(2).describe('Transformer blocks.'),
  hidden: count().optional().describe('Units of the feed-forward layers; by default four times the width.'),
  dropout: share()
    .default(0.1)
    .describe('Probability of dropping an element of the embeddings and of what a block adds.'),
  labelSmoothing: labelSmoothing(),
});
export type TransformerClassifierOptions = z.input<typeof transformerClassifierOptions>;

export function transformerClassifier(options: TransformerClassifierOptions): Model {
  const o = readOptions('transformer', transformerClassifierOptions, options);
  const { heads, layers, hidden = 4 * o.width } = o;
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, o.length], 'int32');
  const present = greater(cast(tokens, 'float32'), 0);
  const mask = reshape(present, [N, 1, 1, o.length]);
  let h = dropout(
    embedTokens(tokens, { vocabulary: o.vocabulary, width: o.width, paddingIndex: 0 }),
    o.dropout,
  );
  for (let layer = 1; layer <= layers; layer++) {
    h = transformerBlock(h, { name: `block${layer}`, heads, hidden, layers, dropout: o.dropout, mask });
  }
  const weights = cast(present, 'float32');
  const total = sum(mul(layerNorm(h, { name: 'norm' }), reshape(weights, [N, o.length, 1])), [1]);
  // A text of padding only divides by 1, not by 0.
  const mean = div(total, clamp(sum(weights, [1], true), 1, null));
  const logits = linear(mean, o.classes, { name: 'output' });
  const labels = graph.input('labels', [N], 'int32');
  const loss = crossEntropy(logits, labels, { labelSmoothing: o.labelSmoothing });
  return { graph, loss, outputs: { logits } };
}
