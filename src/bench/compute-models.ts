/**
 * The models of `bench compute`, ours: the same networks as `peers/torch_models.py`, parameter by parameter. Each
 * parameter knows its name and layout at the peer, so that both sides start from the same values and their first
 * losses can be compared: the proof that they do the same work.
 */
import * as g from '../graph/index.ts';
import type { PeerTensor } from './peer-tensors.ts';

export interface ComputeModel {
  /** The peer's name for it. */
  readonly name: string;
  readonly batch: number;
  readonly build: () => g.Model;
  /** Exclusive upper bound of integer inputs, by name. */
  readonly bounds: Readonly<Record<string, number>>;
}

const images = (...shape: number[]) => {
  const graph = new g.Graph();
  return { graph, x: graph.input('x', [g.N, ...shape]), y: graph.input('y', [g.N], 'int32') };
};

const sequences = (length: number, labels: g.Shape) => {
  const graph = new g.Graph();
  return { graph, x: graph.input('x', [g.N, length], 'int32'), y: graph.input('y', labels, 'int32') };
};

const classifier = (graph: g.Graph, logits: g.Tensor, y: g.Tensor): g.Model => ({
  graph,
  loss: g.crossEntropy(logits, y),
  outputs: { logits },
});

function mlp(): g.Model {
  const { graph, x, y } = images(784);
  const h1 = g.relu(g.linear(x, 1024, { name: 'fc1' }));
  const h2 = g.relu(g.linear(h1, 1024, { name: 'fc2' }));
  return classifier(graph, g.linear(h2, 10, { name: 'fc3' }), y);
}

function textCnn(): g.Model {
  const { graph, x, y } = sequences(40, [g.N]);
  const words = g.embedding(x, 20_000, 128, { name: 'embedding' });
  const features = [3, 4, 5].map((width) =>
    g.relu(g.firstMax(g.temporalConv(words, 128, width, { name: `conv${width}` }), 1)),
  );
  return classifier(graph, g.linear(g.concat(features, 1), 77, { name: 'output' }), y);
}

function cnn(): g.Model {
  const { graph, x, y } = images(1, 28, 28);
  const h1 = g.relu(g.conv2d(x, 32, 3, { name: 'conv1' }));
  const h2 = g.maxPool(g.relu(g.conv2d(h1, 64, 3, { name: 'conv2' })), { kernel: [2, 2] });
  const h3 = g.relu(g.linear(g.flatten(h2), 128, { name: 'fc1' }));
  return classifier(graph, g.linear(h3, 10, { name: 'fc2' }), y);
}

function lstmLanguageModel(): g.Model {
  const { graph, x, y } = sequences(20, [g.N, 20]);
  const words = g.embedding(g.transpose(x, [1, 0]), 10_000, 128, { name: 'embedding' });
  const { y: hidden } = g.lstm(words, 256, { name: 'lstm' });
  return classifier(graph, g.linear(hidden, 10_000, { name: 'output' }), g.transpose(y, [1, 0]));
}

function transformer(): g.Model {
  const [length, width, heads] = [64, 128, 4];
  const { graph, x, y } = sequences(length, [g.N]);
  const position = graph.parameter('position', [length, width], g.normal(0.02));
  let h = g.add(g.embedding(x, 10_000, width, { name: 'embedding' }), position);
  for (const layer of [0, 1]) {
    const name = (part: string) => ({ name: `encoder.layers.${layer}.${part}` });
    const parts = g.split(g.linear(h, 3 * width, name('self_attn.in_proj')), [width, width, width], 2);
    const [q, k, v] = parts.map((part) =>
      g.transpose(g.reshape(part, [g.N, length, heads, width / heads]), [0, 2, 1, 3]),
    ) as [g.Tensor, g.Tensor, g.Tensor];
    const mixed = g.reshape(g.transpose(g.attention(q, k, v), [0, 2, 1, 3]), [g.N, length, width]);
    h = g.layerNorm(g.add(h, g.linear(mixed, width, name('self_attn.out_proj'))), name('norm1'));
    const inner = g.relu(g.linear(h, 512, name('linear1')));
    h = g.layerNorm(g.add(h, g.linear(inner, width, name('linear2'))), name('norm2'));
  }
  return classifier(graph, g.linear(g.mean(h, [1]), 10, { name: 'output' }), y);
}

function resnet(): g.Model {
  const { graph, x, y } = images(3, 32, 32);
  const conv = (input: g.Tensor, filters: number, kernel: number, stride: number, name: string) =>
    g.conv2d(input, filters, kernel, { name, stride, padding: kernel === 3 ? 1 : 0, bias: false });
  const norm = (input: g.Tensor, name: string) => g.batchNorm(input, { name });
  let h = g.relu(norm(conv(x, 16, 3, 1, 'conv1'), 'bn1'));
  [16, 32, 64].forEach((filters, stage) => {
    for (const block of [0, 1]) {
      const at = `stages.${stage}.${block}`;
      const stride = stage > 0 && block === 0 ? 2 : 1;
      const inner = g.relu(norm(conv(h, filters, 3, stride, `${at}.conv1`), `${at}.bn1`));
      const outer = norm(conv(inner, filters, 3, 1, `${at}.conv2`), `${at}.bn2`);
      const shortcut =
        stride === 1 ? h : norm(conv(h, filters, 1, stride, `${at}.shortcut.0`), `${at}.shortcut.1`);
      h = g.relu(g.add(outer, shortcut));
    }
  });
  return classifier(graph, g.linear(g.globalAvgPool(h), 10, { name: 'output' }), y);
}

export const computeModels: readonly ComputeModel[] = [
  { name: 'mlp', batch: 64, build: mlp, bounds: { y: 10 } },
  { name: 'mlp', batch: 8, build: mlp, bounds: { y: 10 } },
  { name: 'textcnn', batch: 2, build: textCnn, bounds: { x: 20_000, y: 77 } },
  { name: 'textcnn', batch: 32, build: textCnn, bounds: { x: 20_000, y: 77 } },
  { name: 'cnn', batch: 32, build: cnn, bounds: { y: 10 } },
  { name: 'lstm-lm', batch: 20, build: lstmLanguageModel, bounds: { x: 10_000, y: 10_000 } },
  { name: 'transformer', batch: 16, build: transformer, bounds: { x: 10_000, y: 10 } },
  { name: 'resnet', batch: 32, build: resnet, bounds: { y: 10 } },
];

const suffixes: Readonly<Record<string, string>> = {
  table: 'weight',
  w: 'weight',
  b: 'bias',
  gamma: 'weight',
  beta: 'bias',
  w_ih: 'weight_ih_l0',
  w_hh: 'weight_hh_l0',
  b_ih: 'bias_ih_l0',
  b_hh: 'bias_hh_l0',
};

/** A parameter as the peer has it: its name, and dense weights as [out, in], filters over time as [out, in, width]. */
export function toPeerTensor(name: string, shape: readonly number[], data: Float32Array): PeerTensor {
  const dot = name.lastIndexOf('.');
  const suffix = suffixes[name.slice(dot + 1)];
  const peerName =
    suffix === undefined ? name : `${name.slice(0, dot)}${name.includes('in_proj') ? '_' : '.'}${suffix}`;
  const copy = Float32Array.from(data);
  if (!name.endsWith('.w') || shape.length !== 2) return { name: peerName, shape, data: copy };
  const [inputs, outputs] = shape as [number, number];
  const width = /^conv([345])\.w$/.exec(name) ? Number(name[4]) : 1;
  const size = inputs / width;
  for (let o = 0; o < outputs; o++) {
    for (let s = 0; s < size; s++) {
      for (let k = 0; k < width; k++) copy[(o * size + s) * width + k] = data[(k * size + s) * outputs + o]!;
    }
  }
  return { name: peerName, shape: width === 1 ? [outputs, inputs] : [outputs, size, width], data: copy };
}
