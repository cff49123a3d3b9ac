/** The graph itself: shapes with the batch in them, messages, sparse gradients, segments of the backward pass. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import { cutSegments } from '../../src/compute/index.ts';
import * as t from '../../src/graph/index.ts';
import {
  differentiate,
  gradients,
  Graph,
  N,
  printShape,
  type Dim,
  type Tensor,
} from '../../src/graph/index.ts';
import { evaluate } from '../support/evaluate.ts';
import { dataOf, initialValues, randomFeeds } from '../support/onnx.ts';
import { sampleModels } from './sample-models.ts';

function messageOf(build: () => unknown): string {
  try {
    build();
  } catch (error) {
    expect(error).toBeInstanceOf(UsageError);
    return (error as UsageError).message;
  }
  throw new Error('nothing was thrown');
}

describe('shape errors', () => {
  const graph = new Graph();
  const x = graph.input('x', [N, 3]);
  const image = graph.input('image', [N, 3, 8, 8]);
  const w = graph.parameter('w', [4, 5]);
  const ids = graph.input('ids', [N], 'int32');

  it.each<[string, () => unknown, RegExp]>([
    ['add', () => t.add(x, w), /^add: .*x float32\[N, 3\], w float32\[4, 5\]/],
    ['matmul', () => t.matmul(x, w), /^matmul: .*\[3\] and \[4\].*x float32\[N, 3\], w float32\[4, 5\]/],
    ['affine', () => t.affine(image, w), /^affine: .*image float32\[N, 3, 8, 8\]/],
    [
      'conv',
      () => t.convolve(image, graph.parameter('k', [2, 4, 3, 3])),
      /^conv: .*image .*k float32\[2, 4, 3, 3\]/,
    ],
    ['a window that is too large', () => t.maxPool(image, { kernel: [9, 9] }), /^max_pool: .*9x9/],
    ['concat', () => t.concat([x, ids], 0), /^concat: .*x float32\[N, 3\], ids int32\[N\]/],
    ['reshape', () => t.reshape(x, [N, 4]), /^reshape: \[N, 3\].*\[N, 4\]/],
    ['an axis', () => t.sum(x, [2]), /^sum: axis 2 .*rank 2/],
    ['slicing the batch', () => t.sliceAxis(x, 0, 0, 1), /^slice: .*batch.*x float32\[N, 3\]/],
    ['embedding', () => t.lookup(w, x), /^embedding: .*int32 indices.*x float32\[N, 3\]/],
    ['cross entropy', () => t.crossEntropy(w, ids), /^cross_entropy: .*float32\[4, 5\].*ids int32\[N\]/],
    ['batch norm', () => t.batchNormalize(image, w, w), /^batch_norm: .*w float32\[4, 5\]/],
    ['lstm', () => t.gruSequence(image, x, { wIh: w, wHh: w, bIh: w, bHh: w }), /^gru: .*\[T, N, I\].*image/],
    [
      'another graph',
      () => t.add(x, new Graph().input('other', [N, 3])),
      /add: input other is of another graph/,
    ],
    ['a name taken', () => graph.parameter('x', [1]), /"x" is empty or taken/],
    ['a vector as loss', () => gradients(t.sum(x, [1])), /loss must be a scalar/],
  ])('%s names the operation and the shapes', (_name, build, pattern) => {
    expect(messageOf(build)).toMatch(pattern);
  });
});

describe('the symbolic batch', () => {
  it('survives reshapes as a multiple and divides exactly', () => {
    const x = new Graph().input('x', [N, 20, 6]);
    expect(printShape(t.reshape(x, [-1, 6]).shape)).toBe('[20N, 6]');
    expect(printShape(t.reshape(t.reshape(x, [-1, 6]), [N, -1]).shape)).toBe('[N, 120]');
    expect(printShape(t.reshape(x, [{ multiple: 4 }, -1]).shape)).toBe('[4N, 30]');
    expect(printShape(t.concat([x, x], 0).shape)).toBe('[2N, 20, 6]');
    expect(printShape(t.transpose(x, [1, 0, 2]).shape)).toBe('[20, N, 6]');
    expect(printShape(t.matmul(x, t.transpose(x, [0, 2, 1])).shape)).toBe('[N, 20, 20]');
    expect(printShape(t.sum(x, [0]).shape)).toBe('[20, 6]');
  });

  it('reshapes to any factorisation and back', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 5 }), { maxLength: 4 }),
        fc.nat(4),
        fc.nat(4),
        (dims, at, open) => {
          const x = new Graph().input('x', [N, ...dims]);
          const flat = t.reshape(x, [-1]);
          const shape: Dim[] = [...dims];
          shape.splice(Math.min(at, dims.length), 0, N);
          const wanted = [...shape];
          shape[open % shape.length] = -1;
          expect(t.reshape(flat, shape).shape).toEqual(wanted);
          expect(t.reshape(t.reshape(flat, shape), x.shape).shape).toEqual(x.shape);
        },
      ),
    );
  });

  it('gives the same values and gradients as the number it stands for', () => {
    const build = (batch: Dim) => {
      const graph = new Graph();
      const x = graph.input('x', [batch, 2, 6, 6]);
      const labels = graph.input('labels', [batch], 'int32');
      const features = t.batchNorm(t.relu(t.conv2d(x, 3, 3)));
      const logits = t.linear(t.flatten(t.maxPool(features, { kernel: [2, 2] })), 4);
      const loss = t.add(t.crossEntropy(logits, labels), t.mean(t.square(logits)));
      const grads = gradients(loss).map((g) => (g.kind === 'dense' ? g.value : g.lookups[0]!.rows));
      const given = { ...initialValues(graph), ...dataOf(randomFeeds(graph.inputs.values(), 3, 4, 4)) };
      return evaluate([loss, ...grads, ...graph.stateUpdates.map((u) => u.value)], given, { batch: 3 });
    };
    expect(build(N)).toEqual(build(3));
  });
});

describe('gradients of a table', () => {
  function model(tied: boolean) {
    const graph = new Graph();
    const ids = graph.input('ids', [N, 3], 'int32');
    const table = graph.parameter('table', [5, 4], t.normal(1));
    const unused = graph.parameter('unused', [2]);
    const rows = t.tanh(t.lookup(table, ids));
    const scores = tied ? t.matmul(rows, table, { transposeB: true }) : t.linear(rows, 5);
    const loss = t.mean(t.square(scores));
    return { graph, table, unused, loss };
  }
  const given = (graph: Graph) => ({ ...initialValues(graph), ids: [1, 4, 1, 0, 1, 4] });

  it('that is only looked up are sparse: the indices and the adjoint of each lookup', () => {
    const { graph, table, loss } = model(false);
    const list = gradients(loss);
    expect(list.map((g) => g.parameter.name).sort()).toEqual(['linear1.b', 'linear1.w', 'table']);
    const sparse = list.find((g) => g.parameter.name === 'table')!;
    if (sparse.kind !== 'sparse') throw new Error('dense');
    const [{ indices, rows }] = sparse.lookups as [t.Lookup];
    expect([printShape(indices.shape), printShape(rows.shape)]).toEqual(['[3N]', '[3N, 4]']);

    const [dense] = differentiate([{ output: loss, adjoint: graph.scalar(1) }], [table]);
    const [at, adjoints, want] = evaluate([indices, rows, dense!], given(graph), { batch: 2 }) as [
      number[],
      number[],
      number[],
    ];
    expect(at).toEqual([1, 4, 1, 0, 1, 4]);
    const sum = new Float32Array(20);
    at.forEach((row, i) =>
      adjoints.slice(4 * i, 4 * i + 4).forEach((value, j) => (sum[4 * row + j]! += value)),
    );
    want.forEach((value, i) => expect(sum[i]).toBeCloseTo(value, 6));
    expect(want.slice(8, 16).every((value) => value === 0)).toBe(true);
  });

  it('looked up twice keep both lookups', () => {
    const graph = new Graph();
    const table = graph.parameter('table', [5, 4]);
    const loss = t.mean(
      t.add(t.lookup(table, graph.input('a', [N], 'int32')), t.lookup(table, graph.input('b', [N], 'int32'))),
    );
    const [gradient] = gradients(loss);
    expect(gradient!.kind === 'sparse' && gradient!.lookups.length).toBe(2);
  });

  it('that is also multiplied with are dense and the sum of both uses', () => {
    const { graph, loss } = model(true);
    const [gradient] = gradients(loss);
    if (gradient!.kind !== 'dense') throw new Error('sparse');
    // The two uses apart: one looked-up copy and one multiplied copy of the same values.
    const apart = new Graph();
    const ids = apart.input('ids', [N, 3], 'int32');
    const [looked, multiplied] = [apart.parameter('looked', [5, 4]), apart.parameter('multiplied', [5, 4])];
    const scores = t.matmul(t.tanh(t.lookup(looked, ids)), multiplied, { transposeB: true });
    const parts = differentiate(
      [{ output: t.mean(t.square(scores)), adjoint: apart.scalar(1) }],
      [looked, multiplied],
    );
    const values = given(graph);
    const [tied] = evaluate([gradient!.value], values, { batch: 2 });
    const { ids: indices, table } = values as typeof values & { table: Float32Array };
    const [a, b] = evaluate(
      parts as Tensor[],
      { ids: indices, looked: table, multiplied: table },
      { batch: 2 },
    ) as [number[], number[]];
    tied!.forEach((value, i) => expect(value).toBeCloseTo(a[i]! + b[i]!, 6));
  });
});

describe('segments of the backward pass', () => {
  /** The loss, then gradients in the order in which backward makes them. */
  function trainingOutputs(name: string) {
    const { graph, outputs } = sampleModels[name]!();
    const loss = Object.values(outputs)
      .map((output) => t.mean(t.square(output)))
      .reduce(t.add);
    const grads = gradients(loss).map((g) =>
      g.kind === 'dense' ? [g.value] : g.lookups.flatMap((l) => [l.indices, l.rows]),
    );
    const given = { ...initialValues(graph), ...dataOf(randomFeeds(graph.inputs.values(), 2, 8)) };
    for (const [mask, tensor] of graph.dropoutMasks) {
      const length = t.elementCount(t.resolveShape(tensor.shape, 2));
      Object.assign(given, { [mask]: Float32Array.from({ length }, (_, i) => (i % 3 === 0 ? 0 : 2)) });
    }
    return { given, handed: [[loss], ...grads] };
  }

  it.each(Object.keys(sampleModels))(
    '%s: a cut at every boundary gives the same bits as one segment',
    (name) => {
      const { given, handed } = trainingOutputs(name);
      const outputs = handed.flat();
      const whole = evaluate(outputs, given, { batch: 2 });
      for (let cut = 1; cut < handed.length; cut++) {
        const segments = [handed.slice(0, cut).flat(), handed.slice(cut).flat()];
        expect(evaluate(outputs, given, { batch: 2, segments }), `cut at ${cut}`).toEqual(whole);
      }
      expect(evaluate(outputs, given, { batch: 2, segments: handed }), 'all cuts').toEqual(whole);
    },
  );

  it('compute each node once and hand over exactly what later ones read', () => {
    const { handed } = trainingOutputs('an LSTM');
    const cuts = cutSegments(handed);
    const made = new Set<Tensor>();
    for (const { outputs, kept, given } of cuts) {
      for (const tensor of given) expect(made.has(tensor), tensor.label).toBe(true);
      for (const tensor of [...outputs, ...kept]) made.add(tensor);
    }
    const later = new Set(cuts.flatMap(({ given }) => given));
    for (const { kept } of cuts) for (const tensor of kept) expect(later.has(tensor)).toBe(true);
  });
});
