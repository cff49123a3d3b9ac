/** The multi-layer perceptron: dense layers with relu, for inputs of any shape. Parameters: `hidden1.w`, ..., `output.b`. */
import { z } from 'zod';
import {
  crossEntropy,
  dropout,
  flatten,
  Graph,
  heUniform,
  linear,
  N,
  relu,
  type Model,
} from '../graph/index.ts';
import { classes, count, labelSmoothing, readOptions, share } from './options.ts';

export const mlpOptions = z.object({
  inputShape: z.array(count()).min(1).describe('Shape of one sample; it is flattened.'),
  classes: classes(),
  hidden: z.array(count()).default([1024, 1024]).describe('Units of each hidden layer.'),
  dropout: share().default(0).describe('Probability of dropping an element after each hidden layer.'),
  labelSmoothing: labelSmoothing(),
});
export type MlpOptions = z.input<typeof mlpOptions>;

export function mlp(options: MlpOptions): Model {
  const o = readOptions('mlp', mlpOptions, options);
  const graph = new Graph();
  let h = flatten(graph.input('x', [N, ...o.inputShape]));
  for (const [i, units] of o.hidden.entries()) {
    const initialiser = heUniform(h.shape[1] as number);
    h = dropout(relu(linear(h, units, { name: `hidden${i + 1}`, initialiser })), o.dropout);
  }
  const logits = linear(h, o.classes, { name: 'output' });
  const labels = graph.input('labels', [N], 'int32');
  const loss = crossEntropy(logits, labels, { labelSmoothing: o.labelSmoothing });
  return { graph, loss, outputs: { logits } };
}
