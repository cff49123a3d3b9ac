/** One small model of each kind that Tributary is made for. */
import * as t from '../../src/graph/index.ts';
import { Graph, N, type Tensor } from '../../src/graph/index.ts';

export interface SampleModel {
  graph: Graph;
  outputs: Record<string, Tensor>;
}

function mlp(): SampleModel {
  const graph = new Graph();
  const x = graph.input('x', [N, 12]);
  const hidden = t.dropout(t.relu(t.linear(x, 16)), 0.5);
  return { graph, outputs: { logits: t.linear(t.gelu(t.linear(hidden, 8)), 5) } };
}

function convnet(): SampleModel {
  const graph = new Graph();
  const image = graph.input('image', [N, 2, 8, 8]);
  let x = t.relu(t.batchNorm(t.conv2d(image, 4, 3, { padding: 1, bias: false })));
  x = t.maxPool(x, { kernel: [3, 3], stride: [2, 2], padding: [1, 1] });
  x = t.add(x, t.relu(t.batchNorm(t.conv2d(x, 4, 3, { padding: 'same', groups: 2 }))));
  const pooled = t.avgPool(x, { kernel: [2, 2] });
  const logits = t.linear(t.dropout(t.flatten(pooled), 0.3), 3);
  return { graph, outputs: { logits, features: t.globalAvgPool(x) } };
}

function textCnn(): SampleModel {
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, 9], 'int32');
  const words = t.embedding(tokens, 10, 6, { paddingIndex: 0 });
  const series = t.transpose(words, [0, 2, 1]);
  const channels = [2, 3].map((width) => t.globalMaxOverTime(t.relu(t.conv1d(series, 4, width))));
  channels.push(t.max(t.tanh(t.linear(t.unfold(words, 4), 4)), [1]));
  return { graph, outputs: { probabilities: t.softmax(t.linear(t.concat(channels, 1), 3)) } };
}

function lstmModel(): SampleModel {
  const graph = new Graph();
  const tokens = graph.input('tokens', [5, N], 'int32');
  const { y, h, c } = t.lstm(t.embedding(tokens, 10, 4), 6);
  return { graph, outputs: { scores: t.logSoftmax(t.linear(y, 10)), h, c } };
}

function gruModel(): SampleModel {
  const graph = new Graph();
  const x = graph.input('x', [4, N, 3]);
  const { y, h } = t.gru(x, 5);
  return { graph, outputs: { y, label: t.linear(h, 2) } };
}

function transformer(): SampleModel {
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, 6], 'int32');
  const positions = graph.parameter('positions', [6, 8], t.normal(0.1));
  let x = t.add(t.embedding(tokens, 10, 8), positions);
  x = t.add(x, t.multiHeadAttention(t.layerNorm(x), { heads: 2, causal: true }));
  x = t.add(x, t.linear(t.gelu(t.linear(t.layerNorm(x), 16)), 8));
  return { graph, outputs: { logits: t.linear(t.layerNorm(x), 10), pooled: t.mean(x, [1]) } };
}

export const sampleModels: Record<string, () => SampleModel> = {
  'a multi-layer perceptron': mlp,
  'a convolution network with batch norm, dropout and pools': convnet,
  'a text CNN': textCnn,
  'an LSTM': lstmModel,
  'a GRU': gruModel,
  'a causal transformer': transformer,
};
