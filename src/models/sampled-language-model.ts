/**
 * A recurrent language model for vocabularies of 100,000 words and more, trained by sampled softmax (Jean et al. 2015): a
 * target is told from words drawn for its sample, not from all words, so that both tables get sparse gradients.
 * It draws nothing itself: the words come with the data (`withNegatives`), so that the loss of a sample does not depend on
 * batch or worker. There is no bias for each word. The loss is that among the drawn words; `logits` are over all words.
 * Invariant: whatever looks up a row is an input of the model itself, known before the forward pass.
 */
import type { z } from 'zod';
import {
  add,
  clipByGlobalNorm,
  concat,
  crossEntropy,
  equal,
  Graph,
  linear,
  lookup,
  matmul,
  mul,
  N,
  reshape,
  sum,
  uniform,
  unsqueeze,
  where,
  zerosLike,
  type Model,
  type Tensor,
} from '../graph/index.ts';
import { lstmFeatures, lstmLanguageModelOptions } from './lstm-language-model.ts';
import { count, readOptions } from './options.ts';

export const sampledLanguageModelOptions = lstmLanguageModelOptions.extend({
  drawn: count().default(512).describe('Words drawn for each sample: the second extent of `negatives`.'),
});
export type SampledLanguageModelOptions = z.input<typeof sampledLanguageModelOptions>;

/** Instead of minus infinity: as a probability it is 0, and a sum with it is still a number. */
const LEFT_OUT = -1e30;

export function sampledLanguageModel(options: SampledLanguageModelOptions): Model {
  const o = readOptions('sampled-lm', sampledLanguageModelOptions, options);
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, o.length], 'int32');
  const targets = graph.input('targets', [N, o.length], 'int32');
  const negatives = graph.input('negatives', [N, o.drawn], 'int32');
  const features = lstmFeatures(tokens, o);
  const h = o.units === o.size ? features : linear(features, o.size, { name: 'projection', bias: false });
  const table = graph.parameter('output.table', [o.vocabulary, o.size], uniform(0.1));
  const loss = sampledSoftmaxLoss(h, table, targets, negatives);
  if (o.clipNorm !== null) clipByGlobalNorm(graph, o.clipNorm);
  // Written behind the loss, which therefore only looks the table up: its gradient stays sparse.
  const scores = matmul(reshape(h, [-1, o.size]), table, { transposeB: true });
  return { graph, loss, outputs: { logits: reshape(scores, [N, o.length, o.vocabulary]) } };
}

/**
 * The mean over all positions of the cross entropy of the target among itself and its sample's drawn words. Each logit is
 * corrected by the log of how often its word is drawn, so that what is learnt are the logits of a softmax over all words. A
 * drawn word that is the target is left out. h `[N, T, size]`, table `[words, size]`, targets `[N, T]`, negatives `[N, drawn]`.
 */
function sampledSoftmaxLoss(h: Tensor, table: Tensor, targets: Tensor, negatives: Tensor): Tensor {
  const ofTargets = sum(mul(h, lookup(table, targets)), 2, true);
  const ofNegatives = matmul(h, lookup(table, negatives), { transposeB: true });
  // One number for each word as a constant: float32 could not tell (k + 2) / (k + 1) from 1 closely enough.
  const words = table.shape[0] as number;
  const logs = Float32Array.from({ length: words }, (_, word) => -Math.log(drawProbability(word, words)));
  const correction = table.graph.constant(logs, [words, 1]);
  const [eachTarget, eachNegative] = [unsqueeze(targets, [2]), unsqueeze(negatives, [1])];
  const ofDrawing = reshape(lookup(correction, negatives), eachNegative.shape);
  const offsets = where(equal(eachTarget, eachNegative), LEFT_OUT, ofDrawing);
  const logits = concat([add(ofTargets, lookup(correction, targets)), add(ofNegatives, offsets)], 2);
  return crossEntropy(logits, zerosLike(targets));
}

/**
 * The probability of a word in one log-uniform draw: about that of the word in a text, if words are numbered by falling
 * count. The expected count in `drawn` draws is `drawn` times that; the factor is the same in all logits and cancels.
 */
export function drawProbability(word: number, vocabulary: number): number {
  return Math.log1p(1 / (word + 1)) / Math.log(vocabulary + 1);
}
