/** Whole training runs against PyTorch: the first gradients, 20 steps of losses, the final parameters. */
import { afterAll, describe, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import * as g from '../../src/graph/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';
import {
  firstDifference,
  hasShared,
  numbers,
  readVectors,
  type Tolerance,
  type VectorTensor,
} from '../support/shared.ts';

interface WorkerResult {
  loss: number;
  grads: Record<string, number[]>;
  buffers_after?: Record<string, number[]>;
}
interface TrainingCase {
  name: string;
  model: string;
  config: Record<string, any>; // eslint-disable-line @typescript-eslint/no-explicit-any
  clip_global_norm: number | null;
  params: VectorTensor[];
  buffers: VectorTensor[];
  batches: Record<string, VectorTensor>[];
  batch_order: number[];
  step0: {
    loss: number;
    grads: Record<string, number[]>;
    grad_norm: number;
    clipped_grads?: Record<string, number[]>;
  };
  splits: { sizes: number[]; workers: WorkerResult[]; average: Record<string, number[]> }[];
  runs: {
    world: number;
    optimizer: string;
    hyper: Record<string, unknown>;
    losses: number[];
    grad_norms: number[];
    final_params: Record<string, number[]>;
    final_buffers?: Record<string, number[]>[];
    final_eval?: { batch: number; loss: number; logits: { data: number[] } };
  }[];
  tolerance: Record<
    'losses' | 'final_params' | 'final_buffers' | 'final_eval' | 'grads' | 'grad_norms',
    Tolerance
  >;
}

/* eslint-disable @typescript-eslint/no-unsafe-argument, @typescript-eslint/no-unsafe-member-access, @typescript-eslint/no-unsafe-assignment, @typescript-eslint/no-unsafe-call */
type Build = (
  c: TrainingCase,
  input: (name: string) => g.Tensor,
  p: (name: string) => g.Tensor,
  graph: g.Graph,
) => g.Tensor;

const builders: Record<string, Build> = {
  mlp: ({ config, params }, input, p) => {
    let h = input('x');
    const layers = params.length / 2;
    for (let k = 1; k < layers; k++) h = g.relu(g.affine(h, p(`w${k}`), p(`b${k}`)));
    expect(layers).toBe(config.hidden.length + 1);
    return g.affine(h, p(`w${layers}`), p(`b${layers}`));
  },
  convnet: ({ config, buffers }, input, p, graph) => {
    const state = (name: string) => {
      const b = buffers.find((buffer) => buffer.name === name)!;
      return graph.state(name, b.shape, g.values(numbers(b.data)));
    };
    const both = (n: number) => [n, n];
    const conv1 = g.convolve(input('x'), p('conv1.w'), undefined, { padding: both(config.conv1_padding) });
    const [mean, variance] = [state('bn.running_mean'), state('bn.running_var')];
    const bn = g.batchNormalize(conv1, p('bn.gamma'), p('bn.beta'), config.bn_eps);
    const [nextMean, nextVariance] = g.runningStatistics(conv1, bn, mean, variance, config.bn_momentum);
    graph.assign(mean, nextMean);
    graph.assign(variance, nextVariance);
    graph.linkStatistics(bn.y.node, { mean, variance });
    const pooled = g.maxPool(g.relu(bn.y), config.pool);
    const h = g.relu(g.convolve(pooled, p('conv2.w'), p('conv2.b'), { padding: both(config.conv2_padding) }));
    return g.affine(g.flatten(h), p('fc.w'), p('fc.b'));
  },
  textcnn: ({ config }, input, p) => {
    const e = g.transpose(g.lookup(p('emb'), input('tokens')), [0, 2, 1]);
    const pooled = config.widths.map((w: number) =>
      g.globalMaxOverTime(g.relu(g.convolve(e, p(`conv${w}.w`), p(`conv${w}.b`)))),
    );
    return g.affine(g.concat(pooled, 1), p('fc.w'), p('fc.b'));
  },
  lstm_lm: ({ config }, input, p, graph) => {
    const e = g.transpose(g.lookup(p('emb'), input('tokens')), [1, 0, 2]);
    const zero = g.expand(graph.scalar(0), [g.N, config.hidden]);
    const weights = { wIh: p('lstm.w_ih'), wHh: p('lstm.w_hh'), bIh: p('lstm.b_ih'), bHh: p('lstm.b_hh') };
    const { y } = g.lstmSequence(e, { h: zero, c: zero }, weights);
    return g.affine(g.transpose(y, [1, 0, 2]), p('out.w'), p('out.b'));
  },
  transformer: ({ config }, input, p) => {
    const { length, width, heads, ln_eps: epsilon } = config;
    const x = g.add(g.lookup(p('emb'), input('tokens')), p('pos'));
    const split = (w: string) =>
      g.transpose(g.reshape(g.affine(x, p(w)), [g.N, length, heads, width / heads]), [0, 2, 1, 3]);
    const a = g.attention(split('wq'), split('wk'), split('wv'));
    const joined = g.reshape(g.transpose(a, [0, 2, 1, 3]), [g.N, length, width]);
    const norm = (t: g.Tensor, name: string) =>
      g.layerNormalize(t, { gamma: p(`${name}.gamma`), beta: p(`${name}.beta`) }, { epsilon });
    const x1 = norm(g.add(x, g.affine(joined, p('wo'), p('bo'))), 'ln1');
    const f = g.affine(g.gelu(g.affine(x1, p('ff1.w'), p('ff1.b'))), p('ff2.w'), p('ff2.b'));
    const x2 = norm(g.add(x1, f), 'ln2');
    return g.affine(g.mean(x2, [1]), p('fc.w'), p('fc.b'));
  },
};
/* eslint-enable */

function buildModel(c: TrainingCase): g.Model {
  const graph = new g.Graph();
  const input = (name: string) => {
    const { shape, dtype } = c.batches[0]![name]!;
    return graph.inputs.get(name) ?? graph.input(name, [g.N, ...shape.slice(1)], dtype as g.DType);
  };
  const parameters = new Map(
    c.params.map((p) => [p.name, graph.parameter(p.name, p.shape, g.values(numbers(p.data)))]),
  );
  const build = builders[c.model];
  expect(build, `no builder for ${c.model}`).toBeDefined();
  const logits = build!(c, input, (name) => parameters.get(name)!, graph);
  const loss = g.crossEntropy(logits, input('labels' in c.batches[0]! ? 'labels' : 'targets'));
  if (c.clip_global_norm !== null) g.clipByGlobalNorm(graph, c.clip_global_norm);
  return { graph, loss, outputs: { logits } };
}

function optimizerSpec(name: string, hyper: Record<string, unknown>): OptimizerSpec {
  const camel = Object.entries(hyper).map(([key, value]) => [
    key.replace(/_(\w)/g, (_, l: string) => l.toUpperCase()),
    value,
  ]);
  return { name, ...Object.fromEntries(camel) } as OptimizerSpec;
}

describe.skipIf(!hasShared('vectors/training.json'))(
  'training follows PyTorch (needs the vectors folder, TRIBUTARY_SHARED)',
  () => {
    const cases = hasShared('vectors/training.json') ? readVectors<TrainingCase>('training.json') : [];
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
      want: Record<string, number[]>,
      tolerance: Tolerance,
      what: string,
    ) => {
      expect(Object.keys(got).sort()).toEqual(Object.keys(want).sort());
      for (const [name, values] of Object.entries(want))
        expect(firstDifference(got[name]!, values, tolerance), `${what} of ${name}`).toBeUndefined();
    };
    const withReplica = (
      c: TrainingCase,
      optimizer: OptimizerSpec,
      run: (replica: Replica, rows: number) => void,
      groups?: string[][],
    ) => {
      const model = buildModel(c);
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
          expect(
            firstDifference([normOf(grads)], [c.step0.grad_norm], c.tolerance.grad_norms),
          ).toBeUndefined();
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
      it.each(runs.map((run) => [run.optimizer, run] as const))(
        'follows 20 steps of %s',
        (_optimizer, run) => {
          withReplica(c, optimizerSpec(run.optimizer, run.hyper), (replica, rows) => {
            run.losses.forEach((want, step) => {
              load(replica, c.batches[c.batch_order[step]!]!);
              const loss = replica.computeGradients(ids(rows));
              expect(
                firstDifference([loss], [want], c.tolerance.losses),
                `loss of step ${step}`,
              ).toBeUndefined();
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
                firstDifference(
                  logits!.view as Float32Array,
                  run.final_eval.logits.data,
                  c.tolerance.final_eval,
                ),
              ).toBeUndefined();
            }
          });
        },
      );
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
  },
);
