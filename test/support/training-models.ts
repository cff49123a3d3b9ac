/**
 * The cases of training.json as models of ours: their graphs, their optimizers, and how their batches are divided among
 * workers. Reads no expectation other than which run a division of the batch is to follow. Everything comes from the
 * file, so that cases with other sizes and seeds run as well.
 */
import * as g from '../../src/graph/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import { numbers, readVectors } from './shared.ts';
import type { Tolerance, VectorTensor } from './shared.ts';

export type Batch = Readonly<Record<string, VectorTensor>>;

export interface TrainingRun {
  readonly world: number;
  readonly optimizer: string;
  readonly hyper: Readonly<Record<string, unknown>>;
  readonly losses: readonly number[];
  readonly final_params: Readonly<Record<string, readonly number[]>>;
  /** By worker. */
  readonly final_buffers?: readonly Readonly<Record<string, readonly number[]>>[];
}

export interface TrainingCase {
  readonly name: string;
  readonly model: string;
  readonly config: Readonly<Record<string, any>>; // eslint-disable-line @typescript-eslint/no-explicit-any
  readonly clip_global_norm: number | null;
  readonly params: readonly VectorTensor[];
  readonly buffers: readonly VectorTensor[];
  readonly batches: readonly Batch[];
  readonly batch_order: readonly number[];
  readonly splits: readonly { readonly sizes: readonly number[] }[];
  readonly runs: readonly TrainingRun[];
  readonly tolerance: Readonly<Record<'losses' | 'final_params' | 'final_buffers', Tolerance>>;
}

export function trainingCases(): TrainingCase[] {
  return readVectors<TrainingCase>('training.json');
}

export const rowsOf = (batch: Batch): number => Object.values(batch)[0]!.shape[0]!;

/** So many consecutive parts, the first ones longer by one where it does not divide. */
export function evenParts(rows: number, workers: number): number[] {
  return Array.from(
    { length: workers },
    (_, worker) => Math.floor(rows / workers) + Number(worker < rows % workers),
  );
}

/** How the batch is divided among 2 and 3 workers: evenly, and as the file does. */
export function divisionsOf(c: TrainingCase): number[][] {
  const rows = rowsOf(c.batches[0]!);
  const all = [evenParts(rows, 2), evenParts(rows, 3), ...c.splits.map(({ sizes }) => [...sizes])];
  return [...new Map(all.map((sizes) => [sizes.join(), sizes])).values()].filter(
    ({ length }) => length === 2 || length === 3,
  );
}

/** The runs that such workers must follow: with batch statistics, which each worker has of its own part, those of as many. */
export function runsOf(c: TrainingCase, sizes: readonly number[]): readonly TrainingRun[] {
  if (c.buffers.length === 0) return c.runs.filter(({ world }) => world === 1);
  const isEven = sizes.join() === evenParts(rowsOf(c.batches[0]!), sizes.length).join();
  return isEven ? c.runs.filter(({ world }) => world === sizes.length) : [];
}

export function optimizerSpec({ optimizer, hyper }: TrainingRun): OptimizerSpec {
  const camel = Object.entries(hyper).map(([key, value]) => [
    key.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()),
    value,
  ]);
  return { name: optimizer, ...Object.fromEntries(camel) } as OptimizerSpec;
}

/* eslint-disable @typescript-eslint/no-unsafe-argument, @typescript-eslint/no-unsafe-member-access, @typescript-eslint/no-unsafe-assignment, @typescript-eslint/no-unsafe-call */
type Build = (
  c: TrainingCase,
  input: (name: string) => g.Tensor,
  p: (name: string) => g.Tensor,
  graph: g.Graph,
) => g.Tensor;

const builders: Record<string, Build> = {
  mlp: ({ params }, input, p) => {
    let h = input('x');
    const layers = params.length / 2;
    for (let k = 1; k < layers; k++) h = g.relu(g.affine(h, p(`w${k}`), p(`b${k}`)));
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

/** The model without clipping, which is not a worker's business: it concerns the average of all gradients. */
export function buildModel(c: TrainingCase): g.Model {
  const graph = new g.Graph();
  const first = c.batches[0]!;
  const input = (name: string) => {
    const { shape, dtype } = first[name]!;
    return graph.inputs.get(name) ?? graph.input(name, [g.N, ...shape.slice(1)], dtype as g.DType);
  };
  const parameters = new Map(
    c.params.map((p) => [p.name, graph.parameter(p.name, p.shape, g.values(numbers(p.data)))]),
  );
  const build = builders[c.model];
  if (!build) throw new Error(`there is no builder for ${c.model}; write one by its definition`);
  const logits = build(c, input, (name) => parameters.get(name)!, graph);
  const loss = g.crossEntropy(logits, input('labels' in first ? 'labels' : 'targets'));
  return { graph, loss, outputs: { logits } };
}
