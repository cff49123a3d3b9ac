/** Whole training runs against PyTorch: the first gradients, 20 steps of losses, the final parameters. */
import { afterAll, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as g from '../../src/graph/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';
import {
  firstDifference,
  numbers,
  readVectors,
  type Tolerance,
  type VectorTensor,
} from '../support/shared.ts';
import { buildModel, optimizerSpec } from '../support/training-models.ts';
import type { TrainingCase, TrainingRun } from '../support/training-models.ts';

interface WorkerResult {
  loss: number;
  grads: Record<string, number[]>;
  buffers_after?: Record<string, number[]>;
}
interface FullRun extends TrainingRun {
  readonly grad_norms: number[];
  readonly final_eval?: { batch: number; loss: number; logits: { data: number[] } };
}
interface FullCase extends TrainingCase {
  readonly step0: {
    loss: number;
    grads: Record<string, number[]>;
    grad_norm: number;
    clipped_grads?: Record<string, number[]>;
  };
  readonly splits: readonly { sizes: number[]; workers: WorkerResult[]; average: Record<string, number[]> }[];
  readonly runs: readonly FullRun[];
  readonly tolerance: Record<
    'losses' | 'final_params' | 'final_buffers' | 'final_eval' | 'grads' | 'grad_norms',
    Tolerance
  >;
}

function clippedModel(c: FullCase): g.Model {
  const model = buildModel(c);
  if (c.clip_global_norm !== null) g.clipByGlobalNorm(model.graph, c.clip_global_norm);
  return model;
}

describe('training follows PyTorch', () => {
  const cases = readVectors<FullCase>('training.json');
  const space = SharedSpace.create();
  const compute = new OnnxCompute();
  afterAll(() => compute.close());

  const load = (replica: Replica, batch: Record<string, VectorTensor>, from = 0, rows?: number) => {
    for (const [name, tensor] of Object.entries(batch)) {
      const perRow = tensor.data.length / tensor.shape[0]!;
      const end = rows === undefined ? undefined : (from + rows) * perRow;
      replica.inputs[name]!.set(numbers(tensor.data.slice(from * perRow, end)));
    }
  };
  const ids = (rows: number) => Array.from({ length: rows }, (_, i) => i);
  const gradientsOf = (replica: Replica) => {
    const result: Record<string, Float32Array> = {};
    for (const [name, place] of replica.memory.gradients) {
      if (place.kind === 'dense') result[name] = Float32Array.from(place.region.view);
      else {
        const dense = new Float32Array(place.tableRows * place.rowLength);
        for (let i = 0; i < place.count; i++) {
          dense.set(
            place.rows.view.subarray(i * place.rowLength, (i + 1) * place.rowLength),
            place.plan.indices.view[i]! * place.rowLength,
          );
        }
        result[name] = dense;
      }
    }
    return result;
  };
  const normOf = (grads: Record<string, Float32Array>) =>
    Math.sqrt(Object.values(grads).reduce((sum, grad) => sum + grad.reduce((s, v) => s + v * v, 0), 0));
  const expectAll = (
    got: Record<string, ArrayLike<number>>,
    want: Readonly<Record<string, readonly number[]>>,
    tolerance: Tolerance,
    what: string,
  ) => {
    expect(Object.keys(got).sort()).toEqual(Object.keys(want).sort());
    for (const [name, values] of Object.entries(want))
      expect(firstDifference(got[name]!, values, tolerance), `${what} of ${name}`).toBeUndefined();
  };
  const withReplica = (
    c: FullCase,
    optimizer: OptimizerSpec,
    run: (replica: Replica, rows: number) => void,
    groups?: string[][],
  ) => {
    const model = clippedModel(c);
    const rows = Object.values(c.batches[0]!)[0]!.shape[0]!;
    const replica = new Replica(model, {
      compute,
      space,
      optimizer,
      maxBatch: rows,
      ...(groups ? { groups } : {}),
    });
    try {
      run(replica, rows);
    } finally {
      replica.close();
    }
  };

  describe.each(cases.map((c) => [c.name, c] as const))('%s', (_name, c) => {
    it('has the gradients of the whole first batch, and of its parts', () => {
      withReplica(c, { name: 'sgd', lr: 0.1 }, (replica, rows) => {
        load(replica, c.batches[c.batch_order[0]!]!);
        const loss = replica.computeGradients(ids(rows));
        expect(firstDifference([loss], [c.step0.loss], c.tolerance.losses)).toBeUndefined();
        const grads = gradientsOf(replica);
        expectAll(grads, c.step0.grads, c.tolerance.grads, 'gradient');
        expect(firstDifference([normOf(grads)], [c.step0.grad_norm], c.tolerance.grad_norms)).toBeUndefined();
        for (const { sizes, workers, average } of c.splits) {
          const sums: Record<string, number[]> = {};
          let start = 0;
          sizes.forEach((size, worker) => {
            replica.restore(initial(replica), 0);
            load(replica, c.batches[c.batch_order[0]!]!, start, size);
            const partLoss = replica.computeGradients(ids(size));
            const want = workers[worker]!;
            expect(
              firstDifference([partLoss], [want.loss], c.tolerance.losses),
              `loss of worker ${worker}`,
            ).toBeUndefined();
            const part = gradientsOf(replica);
            expectAll(part, want.grads, c.tolerance.grads, `gradient of worker ${worker}`);
            for (const [name, values] of Object.entries(want.buffers_after ?? {})) {
              expect(
                firstDifference(replica.memory.states.get(name)!.view, values, c.tolerance.final_buffers),
                name,
              ).toBeUndefined();
            }
            for (const [name, grad] of Object.entries(part)) {
              sums[name] = Array.from(grad, (v, i) => (sums[name]?.[i] ?? 0) + (v * size) / rows);
            }
            start += size;
          });
          expectAll(sums, average, c.tolerance.grads, 'average');
        }
      });
    });

    it('cuts the backward pass into one segment for each parameter with the same bits', () => {
      let whole: Record<string, Float32Array> = {};
      withReplica(c, { name: 'sgd', lr: 0.1 }, (replica, rows) => {
        load(replica, c.batches[0]!);
        replica.computeGradients(ids(rows));
        whole = gradientsOf(replica);
      });
      const order = Object.keys(whole);
      const handed: number[] = [];
      withReplica(
        c,
        { name: 'sgd', lr: 0.1 },
        (replica, rows) => {
          load(replica, c.batches[0]!);
          replica.computeGradients(ids(rows), (group) => handed.push(group));
          expect(gradientsOf(replica)).toEqual(whole);
        },
        order.map((name) => [name]),
      );
      expect(handed).toEqual(order.map((_, i) => i));
    });

    const runs = c.runs.filter((run) => run.world === 1);
    it.each(runs.map((run) => [run.optimizer, run] as const))('follows 20 steps of %s', (_optimizer, run) => {
      withReplica(c, optimizerSpec(run), (replica, rows) => {
        run.losses.forEach((want, step) => {
          load(replica, c.batches[c.batch_order[step]!]!);
          const loss = replica.computeGradients(ids(rows));
          expect(firstDifference([loss], [want], c.tolerance.losses), `loss of step ${step}`).toBeUndefined();
          const norm = normOf(gradientsOf(replica));
          expect(
            firstDifference([norm], [run.grad_norms[step]!], c.tolerance.grad_norms),
            `norm of step ${step}`,
          ).toBeUndefined();
          replica.update();
          if (step === 0 && c.step0.clipped_grads) {
            expectAll(gradientsOf(replica), c.step0.clipped_grads, c.tolerance.grads, 'clipped gradient');
          }
        });
        const finals = Object.fromEntries(
          [...replica.memory.parameters].map(([name, region]) => [name, region.view]),
        );
        expectAll(finals, run.final_params, c.tolerance.final_params, 'final value');
        for (const [name, values] of Object.entries(run.final_buffers?.[0] ?? {})) {
          expect(
            firstDifference(replica.memory.states.get(name)!.view, values, c.tolerance.final_buffers),
            name,
          ).toBeUndefined();
        }
        if (run.final_eval) {
          load(replica, c.batches[run.final_eval.batch]!);
          const [loss, logits] = replica.evaluator(['loss', 'logits']).run(rows);
          expect(
            firstDifference(loss!.view as Float32Array, [run.final_eval.loss], c.tolerance.final_eval),
          ).toBeUndefined();
          expect(
            firstDifference(logits!.view as Float32Array, run.final_eval.logits.data, c.tolerance.final_eval),
          ).toBeUndefined();
        }
      });
    });
  });

  function initial(replica: Replica) {
    const { tensors, optimizer } = replica.snapshot();
    const { graph } = replica.model;
    for (const [name, tensor] of Object.entries(tensors)) {
      const source = graph.parameters.get(name) ?? graph.states.get(name);
      g.fillInitial(tensor.data as Float32Array, source!.initialiser, name, 0);
    }
    return { tensors, optimizer };
  }
});
