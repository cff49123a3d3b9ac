/** Exported models compute the same elsewhere, for any batch size. */
import { describe, expect, it } from 'vitest';
import * as t from '../../src/graph/index.ts';
import {
  decodeModel,
  exportOnnx,
  forInference,
  Graph,
  importOnnx,
  N,
  type Tensor,
} from '../../src/graph/index.ts';
import { evaluate } from '../support/evaluate.ts';
import { dataOf, pythonOnnx, initialValues, randomFeeds, runOnnx, runPython } from '../support/onnx.ts';
import { firstDifference } from '../support/shared.ts';
import { sampleModels, type SampleModel } from './sample-models.ts';

const tolerance = { rtol: 1e-5, atol: 1e-5 };

function exportWith(model: SampleModel, values: Record<string, Float32Array>): Uint8Array {
  return exportOnnx(model.outputs, (source) => values[source.label]!);
}

/** What the inference form gives here. */
function inferHere(
  outputs: Record<string, Tensor>,
  values: Record<string, ArrayLike<number>>,
  batch: number,
): Record<string, number[]> {
  const results = evaluate(forInference(Object.values(outputs)), values, { batch });
  return Object.fromEntries(Object.keys(outputs).map((name, i) => [name, results[i]!]));
}

/** Statistics as after some training, so that a mix-up of mean and variance shows. */
function trainedValues(graph: Graph): Record<string, Float32Array> {
  const values = initialValues(graph);
  for (const state of graph.states.keys()) {
    values[state] = values[state]!.map((value, i) => value + 0.1 * i + (state.endsWith('var') ? 0.5 : -0.2));
  }
  return values;
}

describe.each(Object.entries(sampleModels))('%s', (_name, build) => {
  it.each([1, 3])('gives the same outputs in ONNX Runtime for batch size %i', async (batch) => {
    const model = build();
    const values = trainedValues(model.graph);
    const feeds = randomFeeds(model.graph.inputs.values(), batch, 5 + batch);
    const here = inferHere(model.outputs, { ...values, ...dataOf(feeds) }, batch);
    const there = await runOnnx(exportWith(model, values), feeds);
    expect(Object.keys(there).sort()).toEqual(Object.keys(model.outputs).sort());
    for (const [name, result] of Object.entries(there)) {
      expect(result.shape).toEqual(t.resolveShape(model.outputs[name]!.shape, batch));
      expect(firstDifference(result.data, here[name]!, tolerance), name).toBeUndefined();
    }
  });

  it('comes back by importOnnx with the same inputs, parameters and outputs', () => {
    const model = build();
    const values = trainedValues(model.graph);
    const imported = importOnnx(exportWith(model, values));
    expect(Object.keys(imported.inputs)).toEqual([...model.graph.inputs.keys()]);
    expect(new Set(imported.graph.parameters.keys())).toEqual(new Set(model.graph.parameters.keys()));
    expect(new Set(imported.graph.states.keys())).toEqual(new Set(model.graph.states.keys()));
    const feeds = dataOf(randomFeeds(model.graph.inputs.values(), 2, 9));
    const before = inferHere(model.outputs, { ...values, ...feeds }, 2);
    const after = inferHere(imported.outputs, { ...initialValues(imported.graph), ...feeds }, 2);
    for (const name of Object.keys(model.outputs)) {
      expect(imported.outputs[name]!.shape).toEqual(model.outputs[name]!.shape);
      expect(firstDifference(after[name]!, before[name]!, tolerance), name).toBeUndefined();
    }
  });

  it.skipIf(!pythonOnnx.present)(`passes onnx.checker (${pythonOnnx.needs})`, () => {
    const model = build();
    const bytes = exportWith(model, initialValues(model.graph));
    runPython(
      'import onnx, sys\nonnx.checker.check_model(onnx.load(sys.argv[1] + "/model.onnx"), full_check=True)',
      { 'model.onnx': bytes },
    );
  });
});

describe('exportOnnx', () => {
  it('keeps to the standard operators, opset 17, with the batch open and weights as named initializers', () => {
    for (const build of Object.values(sampleModels)) {
      const model = build();
      const file = decodeModel(exportWith(model, initialValues(model.graph)));
      expect(file.opsets).toEqual([{ domain: '', version: 17 }]);
      expect(file.graph.nodes.every((node) => node.domain === undefined)).toBe(true);
      expect(file.graph.inputs.every(({ shape }) => shape!.includes('N'))).toBe(true);
      const floats = file.graph.initializers
        .filter(({ dtype }) => dtype === 'float32')
        .map(({ name }) => name);
      expect(new Set(floats)).toEqual(
        new Set([...model.graph.parameters.keys(), ...model.graph.states.keys()]),
      );
    }
  });

  it('survives names that the lowering uses itself', async () => {
    const graph = new Graph();
    const x = graph.input('v0', [N, 2]);
    const w = graph.parameter('c0', [2, 2]);
    const y = t.add(t.mul(t.matmul(x, w), 3), 1);
    const bytes = exportOnnx({ v1: y, in0: t.neg(y) }, () => new Float32Array([1, 0, 0, 1]));
    const { v1, in0 } = await runOnnx(bytes, { v0: { data: new Float32Array([1, 2]), shape: [1, 2] } });
    expect(v1!.data).toEqual([4, 7]);
    expect(in0!.data).toEqual([-4, -7]);
  });

  it('renames inputs and carries metadata when asked', () => {
    const graph = new Graph();
    const bytes = exportOnnx({ y: t.neg(graph.input('x', [N])) }, () => new Float32Array(0), {
      inputNames: { x: 'pixels' },
      metadata: { labels: 'cat,dog' },
    });
    const file = decodeModel(bytes);
    expect(file.graph.inputs[0]!.name).toBe('pixels');
    expect(file.metadata!.labels).toBe('cat,dog');
  });

  it('writes the batch size as a value and an output that is an input', async () => {
    const graph = new Graph();
    const x = graph.input('x', [N, 2]);
    const scaled = t.mul(x, graph.batchScalar(2, -1));
    const bytes = exportOnnx({ scaled, same: x }, () => new Float32Array(0));
    const data = new Float32Array([1, 2, 3, 4]);
    const result = await runOnnx(bytes, { x: { data, shape: [2, 2] } });
    expect(result.scaled!.data).toEqual([1, 2, 3, 4]);
    expect(result.same!.data).toEqual([1, 2, 3, 4]);
  });

  it('refuses a loss, a name used twice, and values that do not fill a parameter', () => {
    const graph = new Graph();
    const logits = t.linear(graph.input('x', [N, 2]), 3);
    const loss = t.crossEntropy(logits, graph.input('labels', [N], 'int32'));
    const values = initialValues(graph);
    const valueOf = (source: Tensor) => values[source.label]!;
    expect(() => exportOnnx({ loss }, valueOf)).toThrow(/cross_entropy.*before the loss/);
    expect(() => exportOnnx({ x: logits }, valueOf)).toThrow(/"x" is empty or used twice/);
    expect(() => exportOnnx({ y: logits }, () => new Float32Array(1))).toThrow(
      /linear1\.[wb].*given 1 values/,
    );
    expect(() => exportOnnx({}, valueOf)).toThrow(/at least one output/);
  });
});

describe('forInference', () => {
  it('leaves dropout out and normalises by the running statistics, in a new graph', () => {
    const model = sampleModels['a convolution network with batch norm, dropout and pools']!();
    const count = model.graph.nodes.length;
    const [logits] = forInference([model.outputs.logits!]);
    expect(model.graph.nodes.length).toBe(count);
    expect(logits!.graph).not.toBe(model.graph);
    const operations = new Set(logits!.graph.nodes.map((node) => node.op));
    expect(operations.has('dropout') || operations.has('dropout_mask') || operations.has('batch_norm')).toBe(
      false,
    );
    expect(operations.has('batch_norm_inference')).toBe(true);
    expect([...logits!.graph.states.keys()]).toEqual([...model.graph.states.keys()]);
  });

  it('computes what the definition of both says', () => {
    const graph = new Graph();
    const x = graph.input('x', [N, 2]);
    const [y] = forInference([t.dropout(t.batchNorm(t.dropout(x, 0.5), { name: 'bn', epsilon: 0.25 }), 0.9)]);
    const given = {
      x: [1, 2, 3, 4],
      'bn.gamma': [2, 1],
      'bn.beta': [0, 5],
      'bn.running_mean': [1, 2],
      'bn.running_var': [0.75, 3.75],
    };
    const scaled = (value: number, i: number) => (i === 0 ? (2 * (value - 1)) / 1 : (value - 2) / 2 + 5);
    const want = [scaled(1, 0), scaled(2, 1), scaled(3, 0), scaled(4, 1)];
    evaluate([y!], given, { batch: 2 })[0]!.forEach((value, i) => expect(value).toBeCloseTo(want[i]!, 5));
  });

  it('says what is missing where a batch norm has no statistics', () => {
    const graph = new Graph();
    const vector = graph.parameter('v', [3]);
    const batch = t.batchNormalize(graph.input('x', [N, 3]), vector, vector);
    expect(() => forInference([batch.y])).toThrow(/batch_norm#2 has no running statistics.*linkStatistics/);
    expect(() =>
      graph.linkStatistics(batch.y.node, { mean: vector, variance: graph.parameter('w', [4]) }),
    ).toThrow(/one number for each channel/);
    graph.linkStatistics(batch.y.node, { mean: vector, variance: vector });
    expect(() => forInference([batch.mean])).toThrow(/statistic of the batch/);
  });
});
