/** Where a model lies in memory, and what happens when it does not fit. */
import { afterAll, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as g from '../../src/graph/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

function dense(inputs: number, outputs: number): g.Model {
  const graph = new g.Graph();
  const logits = g.linear(graph.input('x', [g.N, inputs]), outputs, { name: 'layer' });
  return { graph, loss: g.crossEntropy(logits, graph.input('labels', [g.N], 'int32')), outputs: { logits } };
}

describe('the memory of a model', () => {
  it('over 4 GiB is refused before anything is allocated, with the size', () => {
    const options = { compute, space, optimizer: { name: 'adam' }, maxBatch: 1 } as const;
    expect(() => new Replica(dense(20_000, 20_000), options)).toThrow(
      /takes 6\.0 GiB, but one process addresses 4 GiB/,
    );
  });

  it('is one segment that another space maps by its name, and is gone when closed', () => {
    const segmentName = `model-memory-test-${process.pid}`;
    const options = { compute, space, optimizer: { name: 'sgd', lr: 1 }, maxBatch: 2, segmentName } as const;
    const replica = new Replica(dense(3, 2), options);
    expect(() => new Replica(dense(3, 2), options)).toThrow(/exist/);
    const other = SharedSpace.create({ maxBytes: 2 ** 20 }).attachSegment(segmentName);
    const weights = replica.memory.parameters.get('layer.w')!;
    const seen = other.region(
      'float32',
      weights.byteOffset - replica.memory.segment.byteOffset,
      weights.length,
    );
    expect([...seen.view]).toEqual([...weights.view]);
    weights.view[0] = 42;
    expect(seen.view[0]).toBe(42);
    other.close();
    replica.close();
    expect(() => space.attachSegment(segmentName)).toThrow(/no.*segment|not/i);
  });
});
