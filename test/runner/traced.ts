/**
 * A model with a table, dense layers, a running statistic, clipping and, if wanted, a moving average,
 * a limit for values and a decay; and a run of it.
 */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import type { FitOptions } from '../../src/runner/index.ts';

export interface TracedOptions extends Partial<Omit<FitOptions, 'train'>> {
  readonly trace: string;
  readonly hasAverage?: boolean;
  readonly limitsAndDecays?: boolean;
}

const [WORDS, LENGTH] = [40, 4];

export function traced({ hasAverage = false, limitsAndDecays = false, ...given }: TracedOptions): {
  readonly model: g.Model;
  readonly options: FitOptions;
} {
  const [train, test] = [texts(64, 1), texts(16, 2)];
  return {
    model: tracedModel(hasAverage, limitsAndDecays),
    options: {
      ...{ train, test, optimizer: { name: 'adam', lr: 0.01 }, batchSize: 16, epochs: 1, seed: 5 },
      ...given,
    },
  };
}

function tracedModel(hasAverage: boolean, limitsAndDecays: boolean): g.Model {
  const graph = new g.Graph();
  const tokens = graph.input('tokens', [g.N, LENGTH], 'int32');
  const words = g.mean(g.embedding(tokens, WORDS, 8, { name: 'embedding' }), [1]);
  const hidden = g.tanh(g.batchNorm(g.linear(words, 12, { name: 'first' }), { name: 'norm' }));
  const logits = g.linear(hidden, 2, { name: 'output' });
  if (limitsAndDecays) g.clipByValue(graph, 0.5);
  g.clipByGlobalNorm(graph, 1);
  if (limitsAndDecays) g.weightDecay(graph, 0.01, ({ name }) => name.startsWith('embedding'));
  if (hasAverage) g.movingAverage(graph, 0.9);
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

function texts(length: number, seed: number): Dataset {
  const random = new Random(seed);
  const tokens = Int32Array.from({ length: length * LENGTH }, () => random.below(WORDS));
  const labels = Int32Array.from({ length }, (_, i) => tokens[i * LENGTH]! % 2);
  return new Dataset([
    { name: 'tokens', data: tokens, sampleShape: [LENGTH] },
    { name: 'labels', data: labels },
  ]);
}
