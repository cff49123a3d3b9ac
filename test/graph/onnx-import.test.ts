/** Models made elsewhere compute the same here, train here, and go back out. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import * as t from '../../src/graph/index.ts';
import { exportOnnx, forInference, gradients, importOnnx, type Tensor } from '../../src/graph/index.ts';
import { evaluate } from '../support/evaluate.ts';
import {
  dataOf,
  pythonOnnx,
  initialValues,
  randomFeeds,
  runOnnx,
  runPython,
  type Feed,
} from '../support/onnx.ts';
import { firstDifference } from '../support/shared.ts';

const names = ['mlp', 'cnn', 'embedding-lstm', 'embedding-gru', 'attention'];
const tolerance = { rtol: 1e-5, atol: 1e-5 };

function foreignModels(): Map<string, Uint8Array> {
  const program = readFileSync(new URL('./foreign-models.py', import.meta.url), 'utf8');
  const files = runPython(program, {}, names.map((name) => `${name}.onnx`)); // prettier-ignore
  return new Map(files.map((bytes, i) => [names[i]!, bytes]));
}

/** The feeds as the file wants them: our int32 inputs are int64 there. */
function foreignFeeds(feeds: Record<string, Feed>): Record<string, Feed> {
  return Object.fromEntries(
    Object.entries(feeds).map(([name, feed]) => [name, { ...feed, int64: feed.data instanceof Int32Array }]),
  );
}

/** Gradients as dense arrays, whatever form they have. */
function denseGradients(
  loss: Tensor,
  values: Record<string, ArrayLike<number>>,
  batch: number,
): { loss: number; grads: Map<string, Float32Array> } {
  const list = gradients(loss);
  const wanted = list.flatMap((g) =>
    g.kind === 'dense' ? [g.value] : g.lookups.flatMap((l) => [l.indices, l.rows]),
  );
  const [[lossValue], ...rest] = evaluate([loss, ...wanted], values, { batch }) as [number[], ...number[][]];
  const grads = new Map<string, Float32Array>();
  for (const gradient of list) {
    const { name, shape } = gradient.parameter;
    const dense = new Float32Array(t.elementCount(shape));
    if (gradient.kind === 'dense') dense.set(rest.shift()!);
    else {
      for (let i = 0; i < gradient.lookups.length; i++) {
        const [indices, rows] = [rest.shift()!, rest.shift()!];
        rows.forEach(
          (value, at) =>
            (dense[indices[Math.floor(at / shape[1]!)]! * shape[1]! + (at % shape[1]!)]! += value),
        );
      }
    }
    grads.set(name, dense);
  }
  return { loss: lossValue!, grads };
}

describe.skipIf(!pythonOnnx.present)(`models written elsewhere (${pythonOnnx.needs})`, () => {
  const files = pythonOnnx.present ? foreignModels() : new Map<string, Uint8Array>();

  it.each(names)(
    '%s computes what ONNX Runtime computes from the original, for any batch size',
    async (name) => {
      const bytes = files.get(name)!;
      const model = importOnnx(bytes, { source: name });
      for (const batch of [1, 4]) {
        const feeds = randomFeeds(Object.values(model.inputs), batch, batch);
        const there = await runOnnx(bytes, foreignFeeds(feeds));
        const outputs = Object.keys(there);
        const here = evaluate(
          forInference(outputs.map((output) => model.outputs[output]!)),
          { ...initialValues(model.graph), ...dataOf(feeds) },
          { batch },
        );
        outputs.forEach((output, i) =>
          expect(firstDifference(here[i]!, there[output]!.data, tolerance), output).toBeUndefined(),
        );
      }
    },
  );

  it.each(names)(
    '%s trains: the loss falls, and the trained model goes out and comes back equal',
    async (name) => {
      const { graph, inputs, outputs } = importOnnx(files.get(name)!);
      const labels = graph.input('labels', [t.N], 'int32');
      const loss = t.crossEntropy(outputs.y!, labels);
      const batch = 8;
      const values = initialValues(graph);
      const feeds = randomFeeds(Object.values(inputs), batch, 3);
      const given = { ...dataOf(feeds), labels: Int32Array.from({ length: batch }, (_, i) => i % 3) };
      const losses: number[] = [];
      for (let step = 0; step < 8; step++) {
        const { loss: value, grads } = denseGradients(loss, { ...values, ...given }, batch);
        losses.push(value);
        expect(new Set(grads.keys())).toEqual(new Set(graph.parameters.keys()));
        for (const [key, grad] of grads) grad.forEach((g, i) => (values[key]![i]! -= 0.2 * g));
      }
      losses.slice(1).forEach((value, i) => expect(value).toBeLessThan(losses[i]!));

      const exported = exportOnnx({ y: outputs.y! }, (source) => values[source.label]!);
      const [here] = evaluate(forInference([outputs.y!]), { ...values, ...given }, { batch });
      const there = await runOnnx(exported, feeds);
      expect(firstDifference(there.y!.data, here!, tolerance)).toBeUndefined();
      const back = importOnnx(exported);
      const [again] = evaluate(
        forInference([back.outputs.y!]),
        { ...initialValues(back.graph), ...given },
        { batch },
      );
      expect(firstDifference(again!, here!, tolerance)).toBeUndefined();
    },
  );

  it('says that int64 inputs became int32, and keeps embedding gradients sparse', () => {
    const model = importOnnx(files.get('embedding-lstm')!);
    expect(model.inputs.tokens!.dtype).toBe('int32');
    expect(model.notes).toEqual([expect.stringContaining('tokens is int64 in the file and int32')]);
    const loss = t.mean(model.outputs.y!);
    expect(gradients(loss).find((g) => g.parameter.name === 'table')!.kind).toBe('sparse');
  });

  it('makes batch statistics trainable state and leaves frozen weights alone', () => {
    const { graph, outputs } = importOnnx(files.get('cnn')!, { trainable: (name) => !name.startsWith('k1') });
    expect([...graph.states.keys()]).toEqual(['mean', 'var']);
    expect(graph.stateUpdates.map(({ state }) => state.name)).toEqual(['mean', 'var']);
    const trained = gradients(t.mean(outputs.y!)).map((g) => g.parameter.name);
    expect(trained).toContain('gamma');
    expect(trained).not.toContain('k1');
    expect(graph.parameters.get('k1')!.trainable).toBe(false);
  });

  it('re-creates dropout only when asked', () => {
    expect(importOnnx(files.get('mlp')!).graph.dropoutMasks.size).toBe(0);
    const { graph } = importOnnx(files.get('mlp')!, { dropout: true });
    expect([...graph.dropoutMasks.values()].map(({ node }) => node.attributes)).toEqual([
      { name: 'dropout1', p: 0.25 },
    ]);
  });
});
