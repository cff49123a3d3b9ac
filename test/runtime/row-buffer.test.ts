/**
 * A replica that has only the rows of its batch computes what one with the whole table computes, bit by
 * bit, in training and in inference; indices beyond the table are named with their sample.
 */
import fc from 'fast-check';
import { afterAll, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as t from '../../src/graph/index.ts';
import { allocateRowPlan, Kernels, numberRows, planRows, rowPlanBytes } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica, whyNeededWhole } from '../../src/runtime/index.ts';

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

const [WORDS, SIZE, LENGTH, BATCH] = [40, 8, 3, 5];

/** Looks up one table by two inputs, one of them twice, and a small table by one of these inputs. */
function model(): t.Model {
  const graph = new t.Graph();
  const [left, right] = [graph.input('left', [t.N, LENGTH], 'int32'), graph.input('right', [t.N], 'int32')];
  const words = graph.parameter('words', [WORDS, SIZE], t.zeroed(t.normal(0.5), 0, SIZE));
  const small = graph.parameter('small', [WORDS, SIZE], t.normal(0.5));
  const parts = [
    t.reshape(t.lookup(words, left, 0), [t.N, LENGTH * SIZE]),
    t.lookup(words, right, 0),
    t.lookup(small, right, null),
    t.lookup(words, t.reshape(right, [-1]), null),
  ];
  const hidden = t.dropout(t.tanh(t.linear(t.concat(parts, 1), 6, { name: 'hidden' })), 0.25);
  const logits = t.linear(hidden, 4, { name: 'out' });
  return { graph, loss: t.crossEntropy(logits, graph.input('labels', [t.N], 'int32')), outputs: { logits } };
}

function load(replica: Replica, random: Random, batch: number): number[] {
  const below = (count: number, bound: number) =>
    Int32Array.from({ length: count }, () => random.below(bound));
  replica.inputs['left']!.set(below(batch * LENGTH, WORDS));
  replica.inputs['right']!.set(below(batch, WORDS));
  replica.inputs['labels']!.set(below(batch, 4));
  return Array.from({ length: batch }, (_, i) => 100 + i);
}

function replicaWith(rowsOnly: readonly string[]): Replica {
  const options = {
    compute,
    space,
    optimizer: { name: 'adam', lr: 0.01 },
    maxBatch: BATCH,
    seed: 3,
  } as const;
  return new Replica(model(), { ...options, rowsOnly: new Set(rowsOnly) });
}

describe('a replica with the rows of its batch only', () => {
  it.each([[['words']], [['words', 'small']]])('has the bits of one with whole tables: %j', (tables) => {
    const [whole, some] = [replicaWith([]), replicaWith(tables)];
    const random = new Random(9);
    try {
      const evaluators = [whole, some].map((one) => one.evaluator(['loss', 'logits']));
      for (const batch of [BATCH, 2, BATCH, 1]) {
        const { state } = random;
        const samples = load(whole, random, batch);
        load(some, new Random(state), batch);
        some.findRows(samples);
        some.fillRows();
        expect(some.computeGradients(samples)).toBe(whole.computeGradients(samples));
        for (const [name, place] of whole.memory.gradients) {
          const other = some.memory.gradients.get(name)!;
          if (place.kind === 'dense') {
            expect(other).toMatchObject({ kind: 'dense' });
            if (other.kind === 'dense') expect(other.region.view).toEqual(place.region.view);
          } else if (other.kind === 'sparse') {
            expect(other.count).toBe(place.count);
            const { rowLength, count } = place;
            expect(other.plan.indices.view.slice(0, count)).toEqual(place.plan.indices.view.slice(0, count));
            const length = count * rowLength;
            expect(other.rows.view.slice(0, length)).toEqual(place.rows.view.slice(0, length));
          }
        }
        const [expected, actual] = evaluators.map((one) => one.run(batch).map(({ view }) => view.slice()));
        expect(actual).toEqual(expected);
      }
    } finally {
      whole.close();
      some.close();
    }
  });

  it('has neither the table nor what the optimizer keeps of it', () => {
    const replica = replicaWith(['words']);
    const { memory } = replica;
    expect(() => replica.snapshot()).toThrow(/^words is on servers only/);
    // A batch looks up 3 + 1 rows of each sample, by two inputs.
    expect(memory.parameters.get('words')!.length).toBe(BATCH * (LENGTH + 1) * SIZE);
    expect(memory.slots.has('words')).toBe(false);
    expect(Object.keys(replica.snapshotHere().tensors)).not.toContain('words');
    expect(Object.keys(replica.snapshotHere().optimizer).filter((name) => name.startsWith('words'))).toEqual(
      [],
    );
    replica.close();
  });

  it('names the sample of an index beyond the table', () => {
    const replica = replicaWith(['words']);
    const samples = load(replica, new Random(1), 2);
    replica.inputs['left']![LENGTH + 1] = WORDS;
    expect(() => replica.findRows(samples)).toThrow(
      'Input left of sample 101 holds 40, but the model has 40 rows of words',
    );
    replica.inputs['left']![LENGTH + 1] = -1;
    expect(() => replica.findRows(samples)).toThrow('Input left of sample 101 holds -1');
    replica.close();
  });
});

describe('a table is needed whole', () => {
  function why(build: (graph: t.Graph, table: t.Tensor, ids: t.Tensor) => t.Tensor, given?: t.Initialiser) {
    const graph = new t.Graph();
    const table = graph.parameter('table', [4, 2], given ?? t.normal(1));
    const output = build(graph, table, graph.input('ids', [t.N], 'int32'));
    return whyNeededWhole({ graph, loss: t.mean(output), outputs: {} }, graph.parameters.get('table')!);
  }

  it.each([
    [
      'where it is multiplied by',
      (_: t.Graph, table: t.Tensor, ids: t.Tensor) =>
        t.matmul(t.lookup(table, ids, null), t.transpose(table, [1, 0])),
      /^is read by transpose#\d+, which is no lookup$/,
    ],
    [
      'where indices are computed',
      (graph: t.Graph, table: t.Tensor) =>
        t.lookup(table, t.transpose(graph.input('pairs', [2, 2], 'int32'), [1, 0]), null),
      /^is looked up by transpose/,
    ],
    ['where it is not looked up', (graph: t.Graph) => graph.input('x', [2]), /^is not looked up$/],
  ] as const)('%s', (_, build, reason) => {
    expect(why(build)).toMatch(reason);
  });

  it('where its first values do not follow from a seed', () => {
    const data = t.values(new Float32Array(8));
    expect(why((_, table, ids) => t.lookup(table, ids, null), data)).toMatch(/first values of its own/);
    expect(why((_, table, ids) => t.lookup(table, ids, null))).toBeUndefined();
  });
});

describe('numbers of rows', () => {
  const kernels = Kernels.create(space);

  it('read from the unique rows what the indices read from the table', () => {
    fc.assert(
      fc.property(fc.array(fc.nat(50), { maxLength: 200 }), (indices) => {
        const segment = space.allocate(rowPlanBytes(indices.length) + 8 * indices.length + 256);
        const given = segment.allocate('int32', indices.length);
        const numbers = segment.allocate('int32', indices.length);
        given.view.set(indices);
        const plan = allocateRowPlan(segment, indices.length);
        const unique = planRows(kernels, { indices: given, tableRows: 51, plan });
        numberRows(kernels, { plan, unique, numbers });
        expect([...numbers.view].map((number) => plan.indices.view[number])).toEqual(indices);
        segment.close();
      }),
    );
  });

  it('are not written by a plan of other positions', () => {
    const segment = space.allocate(rowPlanBytes(8) + 256);
    const [given, numbers] = [segment.allocate('int32', 8), segment.allocate('int32', 8)];
    const plan = allocateRowPlan(segment, 8);
    const unique = planRows(kernels, { indices: given, count: 5, tableRows: 1, plan });
    expect(() => numberRows(kernels, { plan, unique, numbers })).toThrow(/is not one of 8 positions/);
    plan.order.view[2] = 7;
    expect(() => numberRows(kernels, { plan, unique, numbers: numbers.slice(0, 5) })).toThrow(
      /OUT_OF|positions/,
    );
    segment.close();
  });
});
