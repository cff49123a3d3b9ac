/** Sampled softmax: the loss by its definition, gradients by differences, tables that stay sparse, and that it learns. */
import { afterAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { zipfText } from '../../src/bench/hybrid/zipf-text.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import type { Dataset } from '../../src/data/index.ts';
import { lookedUp } from '../../src/exchange/looked-up.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { sampledLanguageModel, type SampledLanguageModelOptions } from '../../src/models/index.ts';
import { drawProbability } from '../../src/models/sampled-language-model.ts';
import { Replica, type GradientPlace } from '../../src/runtime/index.ts';

const BATCH = 3;
const SEED = 11;
const small = { vocabulary: 13, length: 4, size: 5, units: 6, layers: 2, drawn: 7 };

const space = SharedSpace.create();
const compute = new OnnxCompute();
const replicas: Replica[] = [];
afterAll(() => {
  for (const replica of replicas) replica.close();
  compute.close();
});

function replicaOf(options: SampledLanguageModelOptions, maxBatch = BATCH, lr = 0.05): Replica {
  const optimizer = { name: 'adam', lr } as const;
  const replica = new Replica(sampledLanguageModel(options), {
    ...{ compute, space, optimizer, maxBatch, seed: SEED, sparseUpdates: 'lazy' },
  });
  replicas.push(replica);
  return replica;
}

/** Parameters large enough that no logit is close to 0, and a batch of random words. */
function filled(options: SampledLanguageModelOptions): Replica {
  const replica = replicaOf(options);
  const random = new Random(SEED);
  for (const { view } of replica.memory.parameters.values())
    view.forEach((_, i) => (view[i] = random.normal()));
  for (const words of Object.values(replica.inputs))
    words.forEach((_, i) => (words[i] = random.below(options.vocabulary)));
  return replica;
}

const samples = Array.from({ length: BATCH }, (_, i) => i);
const logOfSum = (logits: readonly number[]) =>
  Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** The cross entropy of each target of a full batch among itself and the words that `others` gives for a position. */
function crossEntropies(
  replica: Replica,
  corrected: boolean,
  others: (position: number) => Iterable<number>,
): number[] {
  const vocabulary = replica.model.graph.parameters.get('output.table')!.shape[0]!;
  const logits = replica.evaluator(['logits']).run(replica.memory.sampleIds.length)[0]!.view as Float32Array;
  return Array.from(replica.inputs.targets!, (target, position) => {
    const logit = (word: number) =>
      logits[position * vocabulary + word]! - (corrected ? Math.log(drawProbability(word, vocabulary)) : 0);
    const rivals = [...others(position)].filter((word) => word !== target);
    return logOfSum([target, ...rivals].map(logit)) - logit(target);
  });
}

describe('the loss', () => {
  it.each([
    ['with a projection', small],
    ['without', { ...small, units: 5 }],
  ])('is the cross entropy of each target among the words of its sample, %s', (_, options) => {
    const replica = filled(options);
    const { targets, negatives } = replica.inputs;
    // A word that is a target of its sample, and one that is drawn twice.
    negatives!.set([targets![0]!, 4, 4]);
    const drawn = (position: number) => {
      const sample = Math.floor(position / options.length);
      return negatives!.slice(sample * options.drawn, (sample + 1) * options.drawn);
    };
    expect(replica.computeGradients(samples)).toBeCloseTo(mean(crossEntropies(replica, true, drawn)), 4);
  });

  it('is a softmax over all words where each is drawn once', () => {
    const replica = filled({ ...small, drawn: small.vocabulary });
    const words = Array.from({ length: small.vocabulary }, (_, word) => word);
    for (const sample of samples) replica.inputs.negatives!.set(words, sample * words.length);
    const expected = mean(crossEntropies(replica, true, () => words));
    expect(replica.computeGradients(samples)).toBeCloseTo(expected, 4);
  });

  it('of a sample does not depend on the others of its batch', () => {
    const replica = filled(small);
    const together = replica.computeGradients(samples);
    const alone = samples.map((sample) => {
      if (sample > 0) {
        for (const words of Object.values(replica.inputs)) words.copyWithin(0, words.length / BATCH);
      }
      return replica.computeGradients([sample]);
    });
    expect(mean(alone)).toBeCloseTo(together, 4);
  });
});

/** All elements of a gradient. */
function whole(place: GradientPlace): Float32Array {
  if (place.kind === 'dense') return place.region.view.slice();
  const { tableRows, rowLength, plan, rows, count } = place;
  const table = new Float32Array(tableRows * rowLength);
  for (let i = 0; i < count; i++) {
    const row = rows.view.subarray(i * rowLength, (i + 1) * rowLength);
    table.set(row, plan.indices.view[i]! * rowLength);
  }
  return table;
}

it('has the gradients that differences of the loss show', () => {
  const replica = filled(small);
  replica.computeGradients(samples);
  const gradients = [...replica.memory.gradients].map(([name, place]) => [name, whole(place)] as const);
  expect(gradients.map(([name]) => name).sort()).toEqual([...replica.memory.parameters.keys()].sort());
  const random = new Random(SEED + 1);
  for (const [name, gradient] of gradients) {
    const { view } = replica.memory.parameters.get(name)!;
    const start = view.slice();
    const direction = start.map(() => 2 * random.uniform() - 1);
    const at = (step: number) => {
      view.set(start.map((value, i) => value + step * direction[i]!));
      return replica.computeGradients(samples);
    };
    const central = (step: number) => (at(step) - at(-step)) / (2 * step);
    // Extrapolated once, as the step must be large for float32.
    const numeric = (4 * central(1 / 128) - central(1 / 64)) / 3;
    view.set(start);
    const analytic = gradient.reduce((sum, value, i) => sum + value * direction[i]!, 0);
    const norm = Math.sqrt(gradient.reduce((sum, value) => sum + value * value, 0));
    expect(norm, name).toBeGreaterThan(1e-3);
    expect(Math.abs(analytic - numeric), `${name}: ${analytic}, differences ${numeric}`).toBeLessThan(
      0.02 * norm,
    );
  }
});

it('touches only the rows that its inputs name, known before the forward pass', () => {
  const replica = filled({ ...small, vocabulary: 1000 });
  replica.computeGradients(samples);
  const { tokens, targets, negatives } = replica.inputs;
  const tables = { 'embedding.table': [tokens!], 'output.table': [negatives!, targets!] };
  for (const [name, inputs] of Object.entries(tables)) {
    const place = replica.memory.gradients.get(name)!;
    if (place.kind !== 'sparse') throw new Error(`${name} is dense`);
    const touched = [...new Set(inputs.flatMap((words) => Array.from(words)))].sort((a, b) => a - b);
    expect([...place.plan.indices.view.subarray(0, place.count)]).toEqual(touched);
    const known = lookedUp(replica.memory, place, BATCH);
    expect(known?.map(({ view }) => [...view]).sort((a, b) => b.length - a.length)).toEqual(
      inputs.map((words) => [...words]),
    );
  }
  const kinds = [...replica.memory.gradients.values()].filter(({ kind }) => kind === 'sparse');
  expect(kinds).toHaveLength(2);
});

it('learns a made-up text: also the loss over all words falls', () => {
  const options = { vocabulary: 300, length: 8, size: 16, units: 24, drawn: 24 };
  const batch = 32;
  const replica = replicaOf(options, batch, 0.01);
  const text = zipfText({ ...options, samples: 33 * batch, seed: SEED });
  const load = (data: Dataset, number: number) => {
    const ids = Array.from({ length: batch }, (_, i) => number * batch + i);
    for (const [name, target] of Object.entries(replica.inputs)) data.read(ids, name, target);
    return ids;
  };
  const words = Array.from({ length: options.vocabulary }, (_, word) => word);
  const heldOut = () => {
    const ids = load(text, 32);
    return [replica.computeGradients(ids), mean(crossEntropies(replica, false, () => words))] as const;
  };
  const [sampledBefore, allBefore] = heldOut();
  expect(allBefore).toBeCloseTo(Math.log(options.vocabulary), 1);
  for (let step = 0; step < 160; step++) {
    replica.computeGradients(load(text, step % 32));
    replica.update();
  }
  const [sampled, all] = heldOut();
  expect(sampled).toBeLessThan(0.9 * sampledBefore);
  expect(all).toBeLessThan(0.9 * allBefore);
});
