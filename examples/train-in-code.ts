/** A network of one's own on the MNIST digits, in code. Run it with: npx tsx examples/train-in-code.ts */
import { crossEntropy, findMnist, fit, flatten, Graph, linear, loadMnist, N, relu } from 'tributary';

const graph = new Graph();
const x = graph.input('x', [N, 1, 28, 28]);
const labels = graph.input('labels', [N], 'int32');
const logits = linear(relu(linear(flatten(x), 128)), 10);
const model = { graph, loss: crossEntropy(logits, labels), outputs: { logits } };

const { train, test } = loadMnist(findMnist(import.meta.url));
const result = await fit(model, {
  train,
  test,
  optimizer: { name: 'adam', lr: 0.001 },
  batchSize: 64,
  epochs: 1,
  onEvent: (event) =>
    event.type === 'epoch' && console.log(`epoch ${event.epoch + 1}: loss ${event.loss.toFixed(3)}`),
});
console.log(`accuracy ${result.evaluation?.accuracy}, ${Math.round(result.samplesPerSec)} samples/s`);
await result.close();
