/** The same as a configuration. Run it with: npx tributary train examples/tributary.config.ts */
import { crossEntropy, defineConfig, dropout, flatten, Graph, linear, N, relu } from 'tributary';

export default defineConfig({
  name: 'digits',
  data: { kind: 'mnist' },
  // A model of the catalogue would be: model: { name: 'lenet', hidden: 64 }; an ONNX file: model: { onnx: 'model.onnx' }
  model: ({ inputShape = [], classes = 1 }) => {
    const graph = new Graph();
    const x = graph.input('x', [N, ...inputShape]);
    const labels = graph.input('labels', [N], 'int32');
    const logits = linear(dropout(relu(linear(flatten(x), 128)), 0.1), classes);
    return { graph, loss: crossEntropy(logits, labels), outputs: { logits } };
  },
  optimizer: { name: 'adamw', lr: 0.002, weightDecay: 0.01 },
  schedule: 'cosine',
  batchSize: 64,
  epochs: 2,
  clipGlobalNorm: 1,
});
