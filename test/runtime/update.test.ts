/** What happens between gradients and parameters: clipping, decay, custom operations, averages; dense and sparse. */
import { afterAll, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as g from '../../src/graph/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica, type Snapshot, type Tensors } from '../../src/runtime/index.ts';

const space = SharedSpace.create();
const compute = new OnnxCompute();
afterAll(() => compute.close());

const ROWS = 6;
const SIZE = 3;

/** loss = sum(table[index] * x) + sum(dense * y), so that gradients are the inputs themselves. */
function bilinear(prepare: (graph: g.Graph) => void): g.Model {
  const graph = new g.Graph();
  const table = graph.parameter(
    'table',
    [ROWS, SIZE],
    g.values(Array.from({ length: ROWS * SIZE }, (_, i) => i / 4)),
  );
  const dense = graph.parameter('dense', [2], g.values([1, -2]));
  const x = graph.input('x', [g.N, SIZE]);
  const y = graph.input('y', [2]);
  const rows = g.lookup(table, graph.input('index', [g.N], 'int32'));
  const loss = g.add(g.sum(g.mul(rows, x)), g.sum(g.mul(dense, y)));
  prepare(graph);
  return { graph, loss, outputs: { rows } };
}

function run(
  prepare: (graph: g.Graph) => void,
  use: (replica: Replica) => void,
  optimizer: OptimizerSpec = { name: 'sgd', lr: 1 },
) {
  const replica = new Replica(bilinear(prepare), { compute, space, optimizer, maxBatch: 3 });
  replica.inputs.x!.set([3, 0, 0, 0, 4, 0, 0, 0, 12]);
  replica.inputs.index!.set([4, 1, 4]);
  replica.inputs.y!.set([0, 84]);
  try {
    use(replica);
  } finally {
    replica.close();
  }
}

const sparse = (replica: Replica) => {
  const place = replica.memory.gradients.get('table')!;
  if (place.kind !== 'sparse') throw new Error('the table has a dense gradient');
  return {
    indices: [...place.plan.indices.view.subarray(0, place.count)],
    rows: [...place.rows.view.subarray(0, place.count * SIZE)],
  };
};
const dense = (replica: Replica) => {
  const place = replica.memory.gradients.get('dense')!;
  return place.kind === 'dense' ? [...place.region.view] : [];
};

describe('gradients of a looked-up table', () => {
  it('are ascending unique rows with repeated lookups summed', () => {
    run(
      () => undefined,
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        expect(sparse(replica)).toEqual({ indices: [1, 4], rows: [0, 4, 0, 3, 0, 12] });
      },
    );
  });

  it('touch only their rows', () => {
    run(
      () => undefined,
      (replica) => {
        const before = [...replica.memory.parameters.get('table')!.view];
        replica.computeGradients([0, 1, 2]);
        replica.update();
        const after = [...replica.memory.parameters.get('table')!.view];
        expect(after.map((value, i) => value - before[i]!)).toEqual(
          Array.from({ length: ROWS * SIZE }, (_, i) => ({ 4: -4, 12: -3, 14: -12 })[i] ?? 0),
        );
      },
    );
  });
});

describe('integers of a batch', () => {
  it.each([-1, ROWS])(
    'that are no row of the table (%i) are refused, naming input, sample and value',
    (index) => {
      run(
        () => undefined,
        (replica) => {
          replica.inputs.index!.set([0, index, 2]);
          const message = `Input index of sample 71 holds ${index}, but the model has ${ROWS} rows of table`;
          expect(() => replica.computeGradients([70, 71, 72])).toThrow(message);
        },
      );
    },
  );
});

describe('update operations', () => {
  it('clip by the norm over dense and sparse gradients together', () => {
    run(
      (graph) => g.clipByGlobalNorm(graph, 8.5),
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(replica.lastNorm).toBeCloseTo(85, 10); // 3, 4, 12 and 84
        expect(dense(replica)[1]).toBeCloseTo(8.4, 5);
        expect(sparse(replica).rows[5]).toBeCloseTo(1.2, 5);
      },
    );
  });

  it.each([
    [1, 103],
    [1.5, (3 ** 1.5 + 4 ** 1.5 + 12 ** 1.5 + 84 ** 1.5) ** (1 / 1.5)],
    [3, Math.cbrt(27 + 64 + 1728 + 592704)],
    [Infinity, 84],
  ])('clip by the norm of order %s', (order, norm) => {
    run(
      (graph) => g.clipByGlobalNorm(graph, 1, { order }),
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(replica.lastNorm).toBeCloseTo(norm, 10);
      },
    );
  });

  it('clip by squares of gradients that are elsewhere too, and by no other order', () => {
    const elsewhere = { names: new Set(['dense']), sumOfSquares: 84 ** 2 };
    run(
      (graph) => {
        g.clipByGlobalNorm(graph, 8.5);
        g.weightDecay(graph, 0.5, ({ name }) => name === 'table');
      },
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        const before = [...replica.memory.parameters.get('dense')!.view];
        expect(replica.update(undefined, elsewhere)).toBeCloseTo(0.1, 6);
        expect(replica.lastNorm).toBeCloseTo(85, 10);
        expect([...replica.memory.parameters.get('dense')!.view]).toEqual(before);
      },
    );
    run(
      (graph) => g.clipByGlobalNorm(graph, 8.5, { order: 3 }),
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        expect(() => replica.update(undefined, elsewhere)).toThrow(
          /dense is elsewhere, but gradients are clipped by a norm of order 3/,
        );
      },
    );
  });

  it('leave averages of parameters that are elsewhere to whoever has these', () => {
    run(
      (graph) => g.movingAverage(graph, 0.5),
      (replica) => {
        const elsewhere = { names: new Set(['dense']), sumOfSquares: 0 };
        const average = (name: string) => [...replica.memory.averages.get('average')!.get(name)!.view];
        const parameter = (name: string) => replica.memory.parameters.get(name)!.view;
        const before = { dense: average('dense'), table: average('table') };
        parameter('dense').fill(100);
        parameter('table').fill(100);
        replica.followAverages(elsewhere);
        expect(average('dense')).toEqual(before.dense);
        expect(average('table')).not.toEqual(before.table);
        replica.update(undefined, elsewhere);
        expect(average('dense')).toEqual(before.dense);
        replica.followAverages();
        expect(average('dense')).not.toEqual(before.dense);
      },
    );
  });

  it('clip twice what is elsewhere by what the first clipping left of it', () => {
    const elsewhere = { names: new Set(['dense']), sumOfSquares: 84 ** 2 };
    run(
      (graph) => {
        g.clipByGlobalNorm(graph, 8.5);
        g.clipByGlobalNorm(graph, 1.7);
      },
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        expect(replica.update(undefined, elsewhere)).toBeCloseTo(0.02, 6);
        expect(replica.lastNorm).toBeCloseTo(8.5, 5);
      },
    );
  });

  it('clip by value', () => {
    run(
      (graph) => g.clipByValue(graph, 3.5),
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(dense(replica)).toEqual([0, 3.5]);
        expect(sparse(replica).rows).toEqual([0, 3.5, 0, 3, 0, 3.5]);
      },
    );
  });

  it('decay parameters, of a table only the touched rows, and only where asked', () => {
    run(
      (graph) => g.weightDecay(graph, 0.5, (parameter) => parameter.name === 'table'),
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(dense(replica)).toEqual([0, 84]);
        expect(sparse(replica).rows).toEqual([0.375, 4.5, 0.625, 4.5, 1.625, 13.75]);
      },
    );
  });

  it('run what the user writes, in the order it was written', () => {
    run(
      (graph) => {
        g.transformGradients(graph, 'double', (gradient) => g.mul(gradient, 2));
        g.clipByValue(graph, 7);
        g.transformGradients(graph, 'plus parameter', (gradient, parameter) => g.add(gradient, parameter));
      },
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(dense(replica)).toEqual([1, 5]); // min(7, 2 * 84) - 2
        expect(sparse(replica).rows).toEqual([0.75, 8, 1.25, 9, 3.25, 10.5]);
        // Another number of rows in the next step.
        replica.inputs.index!.set([2, 2, 2]);
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(sparse(replica).indices).toEqual([2]);
      },
    );
  });

  it('keep moving averages after each update, and evaluate with them', () => {
    run(
      (graph) => g.movingAverage(graph, 0.75),
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        const parameter = replica.memory.parameters.get('dense')!.view;
        const average = replica.memory.averages.get('average')!.get('dense')!.view;
        expect([...parameter]).toEqual([1, -86]);
        expect([...average]).toEqual([1, 0.75 * -2 + 0.25 * -86]);
        const plain = replica.evaluator(['loss']).run(3)[0]!.view[0];
        const averaged = replica.evaluator(['loss'], 'average').run(3)[0]!.view[0];
        expect(averaged).not.toBe(plain);
      },
    );
  });

  it('refuse settings that make no sense', () => {
    const graph = new g.Graph();
    expect(() => g.clipByGlobalNorm(graph, 0)).toThrow(/positive/);
    for (const order of [0.5, NaN])
      expect(() => g.clipByGlobalNorm(graph, 1, { order })).toThrow(/order .* 1 or more/);
    expect(() => g.movingAverage(graph, 1)).toThrow(/\[0, 1\)/);
  });
});

/** A snapshot shows the live memory; this keeps what it holds now. */
function copyOf({ tensors, optimizer }: Snapshot): Snapshot {
  const copy = (from: Tensors) =>
    Object.fromEntries(
      Object.entries(from).map(([name, tensor]) => [
        name,
        { ...tensor, data: Float32Array.from(tensor.data as Float32Array) },
      ]),
    );
  return { tensors: copy(tensors), optimizer: copy(optimizer) };
}

describe('snapshots', () => {
  it('restore parameters and optimizer state bit for bit', () => {
    run(
      () => undefined,
      (replica) => {
        replica.computeGradients([0, 1, 2]);
        replica.update();
        const { tensors, optimizer } = copyOf(replica.snapshot());
        replica.computeGradients([0, 1, 2]);
        replica.update();
        const twice = copyOf(replica.snapshot());
        replica.restore({ tensors, optimizer }, 1);
        replica.computeGradients([0, 1, 2]);
        replica.update();
        expect(copyOf(replica.snapshot())).toEqual(twice);
      },
      { name: 'adam', lr: 0.1 },
    );
  });

  it('of another model are refused, naming the tensor', () => {
    run(
      () => undefined,
      (replica) => {
        const { tensors, optimizer } = replica.snapshot();
        const wrong = { ...tensors, dense: { ...tensors.dense!, shape: [3] } };
        expect(() => replica.restore({ tensors: wrong, optimizer }, 1)).toThrow(
          /float32\[3\] for dense, this run expects float32\[2\]/,
        );
      },
    );
  });
});
