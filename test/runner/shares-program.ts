/**
 * A script with workers for shares.test.ts: one step on a batch of seven samples, which two workers do not share evenly. Prints what
 * became of parameters and states there, and what one device makes of the same samples. Not a test itself.
 */
import { OnnxCompute } from '../../src/compute/index.ts';
import { Dataset } from '../../src/data/index.ts';
import * as g from '../../src/graph/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { getRunner, shard, type Runner, type StepReport } from '../../src/runner/index.ts';
import { Replica } from '../../src/runtime/index.ts';

const SAMPLES = 7;
const optimizer = { name: 'sgd', lr: 0.5 } as const;
const values = Float32Array.from({ length: 3 * SAMPLES }, (_, i) => Math.sin(3 * i + 1));
const labels = Int32Array.from({ length: SAMPLES }, (_, i) => i % 2);
const data = new Dataset([
  { name: 'x', data: values, sampleShape: [3] },
  { name: 'labels', data: labels },
]);

function model(): g.Model {
  const graph = new g.Graph();
  const normal = g.batchNorm(graph.input('x', [g.N, 3]));
  const logits = g.linear(normal, 2);
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

const config = { optimizer, batchSize: SAMPLES, seed: 1, compareEverySteps: 1, log: () => undefined };
const runners: Runner[] = [];
for (const averageDense of [true, false, false])
  runners.push(await getRunner(model(), { ...config, on: { workers: 2 }, averageDense }));
const [averaged, added, apart] = runners as [Runner, Runner, Runner];
const step = (runner: Runner) => runner.run(shard(data)).next();
for (const runner of [averaged, added]) await step(runner);
// Samples of their own: three here, four there.
const [first, end] = apart.rank === 0 ? [0, 3] : [3, SAMPLES];
const ownData = new Dataset([
  { name: 'x', data: values.slice(3 * first, 3 * end), sampleShape: [3] },
  { name: 'labels', data: labels.slice(first, end) },
]);
const { value: report } = (await apart.run(ownData).next()) as { value: StepReport };
// The second step begins with a comparison of the replicas, states included.
await step(averaged);
const plain = (regions: ReadonlyMap<string, { readonly view: Float32Array }>) =>
  [...regions.values()].map(({ view }) => [...view]);
const own = [...added.replica.memory.sampleIds.view];
const actual = {
  parameters: plain(added.replica.memory.parameters),
  states: plain(added.replica.memory.states),
};
const actualApart = { samples: report.samples, parameters: plain(apart.replica.memory.parameters) };
await apart.close();
await added.close();
await averaged.close();

/** What one device makes of some samples: their gradients, by parameter, and the states after them. */
function ofSamples(samples: number[]): { parameters: number[][]; gradients: number[][]; states: number[][] } {
  const compute = new OnnxCompute();
  const replica = new Replica(model(), {
    ...{ compute, space: SharedSpace.create(), optimizer, maxBatch: SAMPLES, seed: 1 },
  });
  for (const name of ['x', 'labels']) data.read(Uint32Array.from(samples), name, replica.inputs[name]!);
  replica.computeGradients(samples);
  const { parameters, gradients, states } = replica.memory;
  const result = {
    ...{ parameters: plain(parameters), states: plain(states) },
    gradients: [...parameters.keys()].map((name) => {
      const place = gradients.get(name)!;
      return place.kind === 'dense' ? [...place.region.view] : [];
    }),
  };
  replica.close();
  compute.close();
  return result;
}

const here = own.slice(0, Math.ceil(SAMPLES / 2));
const there = Array.from({ length: SAMPLES }, (_, i) => i).filter((sample) => !here.includes(sample));
const [mine, others, all] = [here, there, [...here, ...there]].map(ofSamples);
const three = ofSamples([0, 1, 2]);
const four = ofSamples([3, 4, 5, 6]);
console.log(JSON.stringify({ actual, actualApart, lr: optimizer.lr, mine, others, all, three, four }));
