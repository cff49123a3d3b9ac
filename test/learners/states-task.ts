/**
 * A task whose model has everything that is not a trained parameter: running statistics of an input far from zero and of a trained
 * layer, a frozen parameter, a counter and a moving average. Each of them is wrong at once if a learner reads or leaves zeros.
 */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as t from '../../src/graph/index.ts';
import type { Model } from '../../src/graph/index.ts';
import type { LearnerTask } from '../../src/learners/index.ts';

export interface StatesData {
  readonly samples: number;
  readonly batchSize: number;
  readonly seed: number;
  /** The sample whose input is not a number. */
  readonly brokenSample?: number;
}

export const SIZE = 8;
/** Of every element of an input, over all classes. */
export const INPUT_MEAN = 10.25;
const CLASSES = 4;

export function buildTask({ samples, batchSize, seed, brokenSample }: StatesData): LearnerTask {
  return {
    model: buildModel(),
    train: points(samples, 1, brokenSample),
    test: points(400, 2),
    optimizer: { name: 'sgd', lr: 0.03, momentum: 0.5 },
    ...{ batchSize, seed },
  };
}

function buildModel(): Model {
  const graph = new t.Graph();
  const x = t.batchNorm(graph.input('x', [t.N, SIZE]), { name: 'inputs' });
  const frozen = graph.parameter('frozen.w', [SIZE, 16], t.normal(0.5), { trainable: false });
  const h = t.relu(t.batchNorm(t.linear(t.matmul(x, frozen), 16, { name: 'hidden' }), { name: 'features' }));
  const logits = t.linear(h, CLASSES, { name: 'output' });
  const loss = t.crossEntropy(logits, graph.input('labels', [t.N], 'int32'));
  const counter = graph.state('batches', [1]);
  graph.assign(counter, t.add(counter, 1));
  t.weightDecay(graph, 1e-4);
  t.movingAverage(graph, 0.9);
  return { graph, loss, outputs: { logits } };
}

function points(count: number, seed: number, broken?: number): Dataset {
  const random = new Random(seed);
  const inputs = new Float32Array(count * SIZE);
  const labels = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    const label = i % CLASSES;
    labels[i] = label;
    for (let j = 0; j < SIZE; j++) {
      inputs[i * SIZE + j] = 10 + Number(j % CLASSES === label) + random.normal() * 0.2;
    }
    if (i === broken) inputs[i * SIZE] = NaN;
  }
  return new Dataset([
    { name: 'x', sampleShape: [SIZE], data: inputs },
    { name: 'labels', sampleShape: [], data: labels },
  ]);
}
