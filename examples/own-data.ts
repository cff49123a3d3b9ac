/** A network on one's own numbers, in code. Run it with: npx tsx examples/own-data.ts */
import { Dataset, fit, mlp } from 'tributary';

// 2,000 points of two numbers each; the class says whether a point lies inside a circle.
const x = Float32Array.from({ length: 2 * 2000 }, () => 2 * Math.random() - 1);
const labels = Int32Array.from({ length: 2000 }, (_, i) =>
  Math.hypot(x[2 * i]!, x[2 * i + 1]!) < 0.7 ? 1 : 0,
);
const data = new Dataset([
  { name: 'x', data: x, sampleShape: [2] },
  { name: 'labels', data: labels },
]);
const [train, test] = data.split(0.8, 0);

const model = mlp({ inputShape: [2], hidden: [32], classes: 2 });
const result = await fit(model, { train, test, optimizer: { name: 'adam', lr: 0.01 }, epochs: 20 });
console.log(`accuracy ${result.evaluation?.accuracy}`);
await result.close();
