/**
 * The small residual network of He et al. (2016, section 4.2) for images of CIFAR's size: a convolution, three stages
 * of residual blocks at full, half and quarter resolution, the global average, one dense layer. Where a stage changes
 * the shape the shortcut is a 1x1 convolution. Batch normalisation everywhere, so convolutions have no biases.
 */
import { z } from 'zod';
import {
  add,
  batchNorm,
  conv2d,
  crossEntropy,
  globalAvgPool,
  Graph,
  heUniform,
  linear,
  N,
  relu,
  type Model,
  type Tensor,
} from '../graph/index.ts';
import { classes, count, imageShape, labelSmoothing, readOptions } from './options.ts';

export const resnetOptions = z.object({
  inputShape: imageShape(),
  classes: classes(),
  width: count().default(16).describe('Filters of the first stage; each further stage has twice as many.'),
  blocks: count().default(2).describe('Residual blocks in each of the three stages.'),
  labelSmoothing: labelSmoothing(),
});
export type ResnetOptions = z.input<typeof resnetOptions>;

interface ConvShape {
  readonly name: string;
  readonly filters: number;
  readonly kernel: 1 | 3;
  readonly stride: 1 | 2;
}

function convNorm(x: Tensor, { name, filters, kernel, stride }: ConvShape): Tensor {
  const initialiser = heUniform((x.shape[1] as number) * kernel ** 2);
  const padding = (kernel - 1) / 2;
  const y = conv2d(x, filters, kernel, { name: `${name}.conv`, stride, padding, bias: false, initialiser });
  return batchNorm(y, { name: `${name}.norm` });
}

function residualBlock(x: Tensor, name: string, filters: number, stride: 1 | 2): Tensor {
  const first = relu(convNorm(x, { name: `${name}.first`, filters, kernel: 3, stride }));
  const second = convNorm(first, { name: `${name}.second`, filters, kernel: 3, stride: 1 });
  const sameShape = stride === 1 && x.shape[1] === filters;
  const shortcut = sameShape ? x : convNorm(x, { name: `${name}.shortcut`, filters, kernel: 1, stride });
  return relu(add(second, shortcut));
}

export function resnet(options: ResnetOptions): Model {
  const o = readOptions('resnet', resnetOptions, options);
  const graph = new Graph();
  const x = graph.input('x', [N, ...o.inputShape]);
  let h = relu(convNorm(x, { name: 'stem', filters: o.width, kernel: 3, stride: 1 }));
  for (let stage = 0; stage < 3; stage++) {
    for (let block = 0; block < o.blocks; block++) {
      const stride = stage > 0 && block === 0 ? 2 : 1;
      h = residualBlock(h, `stage${stage + 1}.block${block + 1}`, o.width * 2 ** stage, stride);
    }
  }
  const logits = linear(globalAvgPool(h), o.classes, { name: 'output' });
  const labels = graph.input('labels', [N], 'int32');
  const loss = crossEntropy(logits, labels, { labelSmoothing: o.labelSmoothing });
  return { graph, loss, outputs: { logits } };
}
