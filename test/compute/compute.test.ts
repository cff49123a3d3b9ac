/** The contract of compute: in place, in segments, released; and the null compute. */
import { afterAll, describe, expect, it } from 'vitest';
import { cutSegments, NullCompute, OnnxCompute } from '../../src/compute/index.ts';
import * as g from '../../src/graph/index.ts';
import { SharedSpace, type Region } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

function twoLayers(): g.Model {
  const graph = new g.Graph();
  const x = graph.input('x', [g.N, 4]);
  const h = g.tanh(g.linear(x, 5, { name: 'a' }));
  const logits = g.linear(h, 3, { name: 'b' });
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

describe('compute in place', () => {
  it('reads parameters and writes gradients at their addresses, with no copy in between', () => {
    const graph = new g.Graph();
    const x = graph.input('x', [2]);
    const p = graph.parameter('p', [2]);
    const y = g.mul(x, p);
    const memory = space.allocate(4096);
    const places = new Map<g.Tensor, Region>();
    const place = (tensor: g.Tensor) => {
      const region = places.get(tensor) ?? memory.allocate('float32', 2);
      places.set(tensor, region);
      return region;
    };
    const compiled = compute.compile({
      segments: [[y]],
      batch: 1,
      place,
      allocate: (d, n) => memory.allocate(d, n),
    });
    const [xs, ps, ys] = [place(x).view, place(p).view, place(y).view] as [
      Float32Array,
      Float32Array,
      Float32Array,
    ];
    xs.set([2, 3]);
    ps.set([10, 100]);
    compiled.run(0);
    expect([...ys]).toEqual([20, 300]);
    // Whatever stands in the memory at the moment of a run is what is read: nothing was copied when it was bound.
    ps.set([-1, 7]);
    compiled.run(0);
    expect([...ys]).toEqual([-2, 21]);
    compiled.close();
    memory.close();
  });

  it('writes only inside the places of outputs', () => {
    const replica = new Replica(twoLayers(), {
      compute,
      space,
      optimizer: { name: 'sgd', lr: 0.1 },
      maxBatch: 3,
    });
    const before = [...replica.memory.parameters].map(
      ([name, region]) => [name, Float32Array.from(region.view)] as const,
    );
    replica.inputs.x!.set([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    replica.inputs.labels!.set([0, 1, 2]);
    replica.computeGradients([0, 1, 2]);
    for (const [name, values] of before)
      expect(Float32Array.from(replica.memory.parameters.get(name)!.view)).toEqual(values);
    expect([...replica.inputs.x!]).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    replica.close();
  });

  it('refuses a place that is too small, naming the tensor', () => {
    const graph = new g.Graph();
    const y = g.exp(graph.input('x', [4]));
    const memory = space.allocate(4096);
    const place = (tensor: g.Tensor) => memory.allocate('float32', tensor === y ? 3 : 4);
    expect(() =>
      compute.compile({ segments: [[y]], batch: 1, place, allocate: (d, n) => memory.allocate(d, n) }),
    ).toThrow(/exp#1 needs 16 bytes/);
    memory.close();
  });

  it("turns ONNX Runtime's own message into an error", () => {
    const graph = new g.Graph();
    const table = graph.input('table', [3, 2]);
    const rows = g.lookup(table, graph.input('index', [1], 'int32'));
    const memory = space.allocate(4096);
    const places = new Map<g.Tensor, Region>();
    const place = (tensor: g.Tensor) => {
      const region = places.get(tensor) ?? memory.allocate(tensor.dtype === 'int32' ? 'int32' : 'float32', 6);
      places.set(tensor, region);
      return region;
    };
    const compiled = compute.compile({
      segments: [[rows]],
      batch: 1,
      place,
      allocate: (d, n) => memory.allocate(d, n),
    });
    place(graph.inputs.get('index')!).view[0] = 99;
    expect(() => compiled.run(0)).toThrow(/out of data bounds, idx=99/);
    compiled.close();
    memory.close();
  });
});

describe('segments', () => {
  it('run each node once, in the first segment that needs it, and hand over what later ones read', () => {
    const { graph, loss } = twoLayers();
    const grads = g.gradients(loss).filter((gradient) => gradient.kind === 'dense');
    const segments = [[loss], ...grads.map((gradient) => [gradient.value])];
    const cuts = cutSegments(segments);
    expect(cuts).toHaveLength(grads.length + 1);
    for (const [i, cut] of cuts.entries()) {
      const earlier = cuts.slice(0, i).flatMap((c) => [...c.outputs, ...c.kept]);
      for (const tensor of cut.given) expect(earlier).toContain(tensor);
    }
    expect(graph.nodes.length).toBeGreaterThan(0);
  });
});

describe('null compute', () => {
  it('gives the same gradients in every step and leaves everything else to the runtime', () => {
    const replica = new Replica(twoLayers(), {
      compute: new NullCompute(),
      space,
      optimizer: { name: 'sgd', lr: 1 },
      maxBatch: 2,
    });
    const bias = replica.memory.parameters.get('b.b')!.view;
    const before = [...bias];
    replica.computeGradients([0, 1]);
    const place = replica.memory.gradients.get('b.b')!;
    const gradient = place.kind === 'dense' ? [...place.region.view] : [];
    expect(gradient.some((value) => value !== 0)).toBe(true);
    replica.update();
    replica.computeGradients([0, 1]);
    replica.update();
    expect([...bias]).toEqual(
      before.map((value, i) => Math.fround(Math.fround(value - gradient[i]!) - gradient[i]!)),
    );
    replica.close();
  });
});
