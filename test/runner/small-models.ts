/**
 * Five small models that between them have all that training has to deal with: dense layers alone, running statistics, a
 * table whose gradient has rows, clipping by the norm of all gradients, a moving average with a frozen layer.
 */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import type { FitOptions } from '../../src/runner/index.ts';

export type SmallModel = 'mlp' | 'batch norm' | 'rows' | 'clipping' | 'average';

interface SmallRun extends FitOptions {
  readonly model: g.Model;
  readonly test: Dataset;
}

const usual = { batchSize: 16, epochs: 6, seed: 3 } as const;
const adam = { name: 'adam', lr: 0.02 } as const;

export const smallModels: Readonly<Record<SmallModel, () => SmallRun>> = {
  mlp: () => {
    const { graph, x, labels } = points();
    const logits = g.linear(g.tanh(g.linear(x, 16, { name: 'hidden' })), 2, { name: 'output' });
    return { ...{ ...usual, optimizer: adam, ...pointData() }, model: modelOf(graph, logits, labels) };
  },
  'batch norm': () => {
    const { graph, x, labels } = points();
    // A bias before normalisation would be trained on rounding errors.
    const hidden = g.relu(g.batchNorm(g.linear(x, 16, { bias: false, name: 'hidden' }), { name: 'norm' }));
    const logits = g.linear(hidden, 2, { name: 'output' });
    return { ...{ ...usual, optimizer: adam, ...pointData() }, model: modelOf(graph, logits, labels) };
  },
  rows: () => {
    const { graph, logits, labels } = texts();
    return { ...{ ...usual, optimizer: adam, ...textData() }, model: modelOf(graph, logits, labels) };
  },
  clipping: () => {
    const { graph, logits, labels } = texts();
    g.clipByGlobalNorm(graph, 0.2);
    const optimizer = { name: 'sgd', lr: 0.5, momentum: 0.9 } as const;
    return { ...{ ...usual, optimizer, ...textData() }, model: modelOf(graph, logits, labels) };
  },
  average: () => {
    const { graph, x, labels } = points();
    const fixed = graph.parameter('frozen', [2, 16], { kind: 'normal', deviation: 1 }, { trainable: false });
    const frozen = g.tanh(g.matmul(x, fixed));
    const logits = g.linear(g.tanh(g.linear(frozen, 16, { name: 'hidden' })), 2, { name: 'output' });
    g.clipByValue(graph, 0.5);
    g.weightDecay(graph, 1e-3);
    g.movingAverage(graph, 0.9);
    return { ...{ ...usual, optimizer: adam, ...pointData() }, model: modelOf(graph, logits, labels) };
  },
};

function modelOf(graph: g.Graph, logits: g.Tensor, labels: g.Tensor): g.Model {
  return { graph, loss: g.crossEntropy(logits, labels), outputs: { logits } };
}

function points() {
  const graph = new g.Graph();
  return { graph, x: graph.input('x', [g.N, 2]), labels: graph.input('labels', [g.N], 'int32') };
}

const [WORDS, LENGTH] = [40, 4];

function texts() {
  const graph = new g.Graph();
  const tokens = graph.input('tokens', [g.N, LENGTH], 'int32');
  const words = g.mean(g.embedding(tokens, WORDS, 8, { name: 'embedding' }), [1]);
  const logits = g.linear(words, 2, { name: 'output' });
  return { graph, logits, labels: graph.input('labels', [g.N], 'int32') };
}

/** The class says on which side of a line a point lies. */
function pointData(): { readonly train: Dataset; readonly test: Dataset } {
  const make = (length: number, seed: number) => {
    const random = new Random(seed);
    const x = Float32Array.from({ length: 2 * length }, () => 2 * random.uniform() - 1);
    const labels = Int32Array.from({ length }, (_, i) => (x[2 * i]! + x[2 * i + 1]! > 0 ? 1 : 0));
    return new Dataset([
      { name: 'x', data: x, sampleShape: [2] },
      { name: 'labels', data: labels },
    ]);
  };
  return { train: make(330, 1), test: make(100, 2) };
}

/** The class says whether a text has more words of the first half. */
function textData(): { readonly train: Dataset; readonly test: Dataset } {
  const make = (length: number, seed: number) => {
    const random = new Random(seed);
    const tokens = Int32Array.from({ length: length * LENGTH }, () => random.below(WORDS));
    const labels = Int32Array.from({ length }, (_, i) => {
      const own = tokens.subarray(i * LENGTH, (i + 1) * LENGTH);
      return own.filter((word) => word < WORDS / 2).length >= LENGTH / 2 ? 1 : 0;
    });
    return new Dataset([
      { name: 'tokens', data: tokens, sampleShape: [LENGTH] },
      { name: 'labels', data: labels },
    ]);
  };
  return { train: make(330, 1), test: make(100, 2) };
}
