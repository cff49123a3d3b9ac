/**
 * A convolutional network of LeNet's form (LeCun et al. 1998) with today's parts: two convolutions with relu and
 * max pooling, then dense layers. Parameters: `conv1.w`, ..., `hidden.w`, `output.b`.
 */
import { z } from 'zod';
import {
  conv2d,
  crossEntropy,
  dropout,
  flatten,
  Graph,
  heUniform,
  linear,
  maxPool,
  N,
  relu,
  type Model,
  type Tensor,
} from '../graph/index.ts';
import { classes, count, imageShape, labelSmoothing, readOptions, share } from './options.ts';

export const lenetOptions = z.object({
  inputShape: imageShape(),
  classes: classes(),
  filters: z.tuple([count(), count()]).default([16, 32]).describe('Filters of the two convolutions.'),
  kernel: count().default(5).describe('Side of the filters in pixels; even sides are not padded.'),
  hidden: count().default(128).describe('Units of the dense layer before the output.'),
  dropout: share().default(0).describe('Probability of dropping an element before each dense layer.'),
  labelSmoothing: labelSmoothing(),
});
export type LenetOptions = z.input<typeof lenetOptions>;

export function lenet(options: LenetOptions): Model {
  const o = readOptions('lenet', lenetOptions, options);
  const graph = new Graph();
  const padding = o.kernel % 2 === 1 ? 'same' : 0;
  const block = (x: Tensor, filters: number, name: string) => {
    const initialiser = heUniform((x.shape[1] as number) * o.kernel ** 2);
    const y = relu(conv2d(x, filters, o.kernel, { name, padding, initialiser }));
    return maxPool(y, { kernel: [2, 2] });
  };
  let h = graph.input('x', [N, ...o.inputShape]);
  for (const [i, filters] of o.filters.entries()) h = block(h, filters, `conv${i + 1}`);
  h = dropout(flatten(h), o.dropout);
  h = relu(linear(h, o.hidden, { name: 'hidden', initialiser: heUniform(h.shape[1] as number) }));
  const logits = linear(dropout(h, o.dropout), o.classes, { name: 'output' });
  const labels = graph.input('labels', [N], 'int32');
  const loss = crossEntropy(logits, labels, { labelSmoothing: o.labelSmoothing });
  return { graph, loss, outputs: { logits } };
}
