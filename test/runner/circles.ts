/** A small task with dropout, whose batches do not come out even: two classes on a circle, not linearly separable. */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import type { FitOptions } from '../../src/runner/index.ts';

export function circles(length: number, seed: number): Dataset {
  const random = new Random(seed);
  const x = Float32Array.from({ length: 2 * length }, () => 2 * random.uniform() - 1);
  const labels = Int32Array.from({ length }, (_, i) => (x[2 * i]! ** 2 + x[2 * i + 1]! ** 2 > 0.5 ? 1 : 0));
  return new Dataset([
    { name: 'x', data: x, sampleShape: [2] },
    { name: 'labels', data: labels },
  ]);
}

export function circlesModel(): g.Model {
  const graph = new g.Graph();
  const x = graph.input('x', [g.N, 2]);
  const h = g.dropout(g.tanh(g.linear(x, 32)), 0.1);
  const logits = g.linear(h, 2);
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

/** The last batch of an epoch has 7 samples, which neither 2 nor 3 workers share evenly: 18 steps an epoch. */
export const circlesRun: FitOptions = {
  ...{ train: circles(279, 1), test: circles(101, 2) },
  ...{ optimizer: { name: 'adam', lr: 0.02 }, batchSize: 16, epochs: 3, seed: 5 },
  schedule: { name: 'cosine', baseLr: 0.02, tMax: 54, etaMin: 0.001 },
};
