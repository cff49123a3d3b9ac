/** Tasks as careless modules build them: something depends on the process, not on the data. Sizes are the same everywhere. */
import { Dataset } from '../../src/data/index.ts';
import * as t from '../../src/graph/index.ts';
import type { LearnerTask } from '../../src/learners/index.ts';

export interface DifferingData {
  /** The process that starts the run. */
  readonly watchdogPid: number;
  /** What the others have otherwise. */
  readonly differs: 'model' | 'samples' | 'batch size' | 'nothing';
}

export function buildTask({ watchdogPid, differs }: DifferingData): LearnerTask {
  const isDifferent = (what: DifferingData['differs']) => what === differs && process.pid !== watchdogPid;
  const graph = new t.Graph();
  const x = graph.input('x', [t.N, 2]);
  const h = t.linear(x, 4, { name: 'hidden' });
  const logits = t.linear(isDifferent('model') ? t.tanh(h) : t.relu(h), 2, { name: 'output' });
  const loss = t.crossEntropy(logits, graph.input('labels', [t.N], 'int32'));
  const samples = isDifferent('samples') ? 31 : 32;
  return {
    model: { graph, loss, outputs: { logits } },
    train: new Dataset([
      { name: 'x', sampleShape: [2], data: new Float32Array(2 * samples).fill(0.5) },
      { name: 'labels', sampleShape: [], data: new Int32Array(samples) },
    ]),
    optimizer: { name: 'sgd', lr: 0.01 },
    batchSize: isDifferent('batch size') ? 4 : 8,
  };
}
