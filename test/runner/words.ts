/**
 * A small task on words: whether the words of a sample, of which some are looked up twice and some are
 * padding, say yes or no. Its batches do not come out even.
 */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import type { FitOptions } from '../../src/runner/index.ts';

export const [WORDS, SIZE, LENGTH] = [211, 8, 5];

export function words(length: number, seed: number): Dataset {
  const random = new Random(seed);
  const text = Int32Array.from({ length: LENGTH * length }, () =>
    random.below(4) === 0 ? 0 : Math.floor(WORDS * random.uniform() ** 2),
  );
  const last = Int32Array.from({ length }, (_, i) => text[LENGTH * i + LENGTH - 1]!);
  const labels = Int32Array.from(
    { length },
    (_, i) => text.subarray(LENGTH * i, LENGTH * (i + 1)).reduce((sum, word) => sum + (word % 7), 0) % 2,
  );
  return new Dataset([
    { name: 'text', data: text, sampleShape: [LENGTH] },
    { name: 'last', data: last },
    { name: 'labels', data: labels },
  ]);
}

export interface WordsOptions {
  readonly clips?: boolean | undefined;
  readonly decays?: boolean | undefined;
  /** By value, before the norm. */
  readonly limits?: boolean | undefined;
  readonly averages?: boolean | undefined;
}

export function wordsModel({ clips, decays, limits, averages }: WordsOptions = {}): g.Model {
  const graph = new g.Graph();
  const text = graph.input('text', [g.N, LENGTH], 'int32');
  const last = graph.input('last', [g.N], 'int32');
  const table = graph.parameter('words', [WORDS, SIZE], g.zeroed(g.normal(1), 0, SIZE));
  const parts = [
    g.reshape(g.lookup(table, text, 0), [g.N, LENGTH * SIZE]),
    g.lookup(table, last, 0),
    g.embedding(last, WORDS, 4, { name: 'small' }),
  ];
  const logits = g.linear(g.dropout(g.tanh(g.linear(g.concat(parts, 1), 16)), 0.1), 2);
  if (limits) g.clipByValue(graph, 0.02);
  if (clips) g.clipByGlobalNorm(graph, 0.5);
  if (decays) g.weightDecay(graph, 0.01);
  if (averages) g.movingAverage(graph, 0.9, { name: 'slow' });
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

/** 150 samples in batches of 16: the last batch has 6. */
export const wordsRun: FitOptions = {
  ...{ train: words(150, 1), test: words(53, 2) },
  ...{ optimizer: { name: 'adam', lr: 0.02 }, batchSize: 16, epochs: 3, seed: 5 },
};
