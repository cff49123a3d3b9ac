/** A small GPT (Radford et al. 2019): pre-norm transformer blocks with causal attention over tokens and learned positions. */
import { z } from 'zod';
import {
  clipByGlobalNorm,
  crossEntropy,
  dropout,
  Graph,
  layerNorm,
  linear,
  N,
  normal,
  type Model,
} from '../graph/index.ts';
import { count, readOptions, share, vocabulary } from './options.ts';
import { embedTokens, transformerBlock } from './transformer-block.ts';

export const gptOptions = z.object({
  vocabulary: vocabulary(),
  length: count().describe('Tokens of a sequence.'),
  width: count().default(128).describe('Size of a token vector.'),
  heads: count().default(4).describe('Attention heads; they divide the width.'),
  layers: count().default(4).describe('Transformer blocks.'),
  hidden: count().optional().describe('Units of the feed-forward layers; by default four times the width.'),
  dropout: share()
    .default(0)
    .describe('Probability of dropping an element of the embeddings and of what a block adds.'),
  clipNorm: z
    .number()
    .positive()
    .nullable()
    .default(1)
    .describe('Largest norm of all gradients together; null: no limit.'),
});
export type GptOptions = z.input<typeof gptOptions>;

export function gpt(options: GptOptions): Model {
  const o = readOptions('gpt', gptOptions, options);
  const { heads, layers, hidden = 4 * o.width } = o;
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, o.length], 'int32');
  let h = dropout(embedTokens(tokens, { vocabulary: o.vocabulary, width: o.width }), o.dropout);
  for (let layer = 1; layer <= layers; layer++) {
    h = transformerBlock(h, {
      name: `block${layer}`,
      heads,
      hidden,
      layers,
      dropout: o.dropout,
      causal: true,
    });
  }
  const logits = linear(layerNorm(h, { name: 'norm' }), o.vocabulary, {
    name: 'output',
    bias: false,
    initialiser: normal(0.02),
  });
  const loss = crossEntropy(logits, graph.input('targets', [N, o.length], 'int32'));
  if (o.clipNorm !== null) clipByGlobalNorm(graph, o.clipNorm);
  return { graph, loss, outputs: { logits } };
}
