/** Gradients of tables that are looked up by the inputs themselves, of one number for each sample. */
import { afterAll, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as t from '../../src/graph/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';

const compute = new OnnxCompute();
afterAll(() => compute.close());

it.each([1, 2])('a table looked up %i times by inputs of one number gets rows for these numbers', (times) => {
  const graph = new t.Graph();
  const table = graph.parameter('table', [4, 2], t.values([1, 2, 3, 4, 5, 6, 7, 8]));
  const inputs = Array.from({ length: times }, (_, i) => graph.input(`ids${i}`, [t.N], 'int32'));
  const rows = inputs.map((ids) => t.lookup(table, ids, null));
  const model = { graph, loss: t.sum(t.concat(rows, 1)), outputs: {} };
  const options = { compute, optimizer: { name: 'sgd', lr: 1 }, maxBatch: 3 } as const;
  const replica = new Replica(model, { ...options, space: SharedSpace.create() });
  const given = [
    [3, 1, 3],
    [0, 1, 1],
  ].slice(0, times);
  given.forEach((ids, i) => replica.inputs[`ids${i}`]!.set(ids));
  const rowSum = (row: number) => 3 + 4 * row;
  const expected = given.flat().reduce((sum, row) => sum + rowSum(row), 0);
  expect(replica.computeGradients([0, 1, 2])).toBe(expected);
  const place = replica.memory.gradients.get('table')!;
  if (place.kind !== 'sparse') throw new Error('the gradient is not sparse');
  const counts = [0, 0, 0, 0];
  for (const row of given.flat()) counts[row]!++;
  const touched = [0, 1, 2, 3].filter((row) => counts[row]! > 0);
  expect([...place.plan.indices.view.slice(0, place.count)]).toEqual(touched);
  expect([...place.rows.view.slice(0, 2 * place.count)]).toEqual(
    touched.flatMap((row) => [counts[row], counts[row]]),
  );
  replica.close();
});
