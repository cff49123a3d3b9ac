/** Dropout masks belong to samples: the order and the size of batches must not matter. */
import { afterAll, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as g from '../../src/graph/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

/** The gradient of `p` is the sum over samples of the masked x, so it shows every mask. */
function model(timeFirst: boolean): g.Model {
  const graph = new g.Graph();
  const x = graph.input('x', [g.N, 3, 4]);
  const p = graph.parameter('p', [3, 4], g.ones);
  const scaled = g.mul(x, p);
  const y = timeFirst ? g.dropout(g.transpose(scaled, [1, 0, 2]), 0.5) : g.dropout(scaled, 0.5);
  return { graph, loss: g.sum(y), outputs: { y } };
}

function gradient(timeFirst: boolean, samples: number[], step = 0): number[] {
  const replica = new Replica(model(timeFirst), {
    compute,
    space,
    optimizer: { name: 'sgd', lr: 1 },
    maxBatch: 4,
    seed: 3,
  });
  replica.step = step;
  samples.forEach((sample, row) => replica.inputs.x!.fill(10 ** sample, row * 12, (row + 1) * 12));
  replica.computeGradients(samples);
  const place = replica.memory.gradients.get('p')!;
  const values = place.kind === 'dense' ? [...place.region.view] : [];
  replica.close();
  return values;
}

describe.each([
  ['batch first', false],
  ['time first', true],
])('dropout of a tensor with the %s', (_layout, timeFirst) => {
  it('does not depend on the order of samples in a batch', () => {
    expect(gradient(timeFirst, [2, 0, 3, 1])).toEqual(gradient(timeFirst, [0, 1, 2, 3]));
  });

  it('gives the same sum when a batch is split', () => {
    const halves = [gradient(timeFirst, [0, 1]), gradient(timeFirst, [2, 3])];
    expect(halves[0]!.map((value, i) => value + halves[1]![i]!)).toEqual(gradient(timeFirst, [0, 1, 2, 3]));
  });

  it('drops about the given share, and others in the next step', () => {
    const first = gradient(timeFirst, [0, 1, 2, 3]);
    expect(first).not.toEqual(gradient(timeFirst, [0, 1, 2, 3], 1));
    expect(first.some((value) => value % 20 !== 0 || value === 0)).toBe(true);
  });
});

it('dropout of a tensor without samples is refused', () => {
  const graph = new g.Graph();
  expect(() => g.dropout(graph.parameter('p', [3]), 0.5)).toThrow(/no batch axis/);
});
