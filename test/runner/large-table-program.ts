/**
 * Trains, evaluates and checkpoints a table of a million rows of 512 on two workers with a server each,
 * for large-table.test.ts; its argument has options. Not a test itself.
 */
import { Random } from '../../src/base/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import { fit, type FitOptions } from '../../src/runner/index.ts';

const options = JSON.parse(process.argv[2]!) as Partial<FitOptions> & { readonly rows: number };
const { rows, ...config } = options;
const LENGTH = 20;

function texts(length: number, seed: number): Dataset {
  const random = new Random(seed);
  const text = Int32Array.from({ length: LENGTH * length }, () => random.below(rows));
  const labels = Int32Array.from({ length }, (_, i) => text[LENGTH * i]! % 2);
  return new Dataset([
    { name: 'text', data: text, sampleShape: [LENGTH] },
    { name: 'labels', data: labels },
  ]);
}

const graph = new g.Graph();
const text = graph.input('text', [g.N, LENGTH], 'int32');
const looked = g.embedding(text, rows, 512, { name: 'words', initialiser: g.uniform(0.05) });
const logits = g.linear(g.mean(looked, [1]), 2);
const loss = g.crossEntropy(logits, graph.input('labels', [g.N], 'int32'));
const machines = [
  { name: 'first', workers: 1, address: '127.0.0.1' },
  { name: 'second', workers: 1, command: ['env'], address: '127.0.0.1' },
];
const result = await fit(
  { graph, loss, outputs: { logits } },
  {
    ...{ train: texts(640, 1), test: texts(128, 2), optimizer: { name: 'sgd', lr: 0.1 }, batchSize: 64 },
    ...{ on: { machines }, log: () => undefined, ...config },
    onEvent: (event) => {
      if (event.type !== 'progress')
        console.log(JSON.stringify({ ...event, atMs: Math.round(performance.now()) }));
    },
  },
);
await result.close();
