/**
 * Random graphs over the whole differentiable catalogue, in smooth regions: each step takes any tensor and gives
 * another, and what has a kink is kept away from it. The table is a mapped type, so that no operation is forgotten.
 */
import { Random } from '../../src/base/index.ts';
import * as t from '../../src/graph/index.ts';
import { Graph, type DifferentiableName, type Tensor } from '../../src/graph/index.ts';

const count = (shape: readonly number[]) => shape.reduce((product, dim) => product * dim, 1);

export class GraphBuilder {
  readonly graph = new Graph();
  readonly random: Random;
  /** Values of the inputs that are differentiated. */
  readonly leaves = new Map<Tensor, Float32Array>();

  constructor(seed: number) {
    this.random = new Random(seed);
  }

  leaf(shape: readonly number[]): Tensor {
    const tensor = this.graph.input(`x${this.leaves.size}`, shape);
    this.leaves.set(
      tensor,
      Float32Array.from({ length: count(shape) }, () => 2 * this.random.uniform() - 1),
    );
    return tensor;
  }

  constant(shape: readonly number[], value: (i: number) => number): Tensor {
    return this.graph.constant(Float32Array.from({ length: count(shape) }, (_, i) => value(i)), shape); // prettier-ignore
  }

  indices(shape: readonly number[], below: number): Tensor {
    return this.graph.constant(
      Int32Array.from({ length: count(shape) }, () => this.random.below(below)),
      shape,
    );
  }

  pick<T>(...choices: readonly T[]): T {
    return choices[this.random.below(choices.length)]!;
  }

  some(axes: number): number[] {
    const chosen = Array.from({ length: axes }, (_, i) => i).filter(() => this.random.below(2) === 1);
    return chosen.length > 0 ? chosen : [this.random.below(axes)];
  }

  /** The elements of x, cut or filled up with a new leaf, as another shape. */
  shaped(x: Tensor, ...shape: readonly number[]): Tensor {
    const flat = t.reshape(x, [-1]);
    const have = flat.shape[0] as number;
    const want = count(shape);
    const fitted =
      have === want
        ? flat
        : have > want
          ? t.sliceAxis(flat, 0, 0, want)
          : t.concat([flat, this.leaf([want - have])], 0);
    return t.reshape(fitted, shape);
  }

  /** Within (0.6, 1.4). */
  positive(x: Tensor): Tensor {
    return t.add(t.mul(t.tanh(x), 0.4), 1);
  }

  /** Within 0.6 to 1.4 on one side of zero, far from the kink there. */
  signed(x: Tensor): Tensor {
    return t.mul(
      this.positive(x),
      this.constant(x.shape as number[], () => this.pick(-1, 1)),
    );
  }

  /** Elements further apart than any perturbation. */
  distinct(x: Tensor): Tensor {
    const shape = x.shape as number[];
    const order = Array.from({ length: count(shape) }, (_, i) => i);
    this.random.shuffle(order);
    return t.add(
      t.mul(t.tanh(x), 0.1),
      this.constant(shape, (i) => 0.5 * order[i]! - 0.25 * order.length),
    );
  }

  /** A leaf that broadcasts against x. */
  partner(x: Tensor): Tensor {
    const shape = (x.shape as number[]).map((dim) => this.pick(dim, dim, 1));
    return this.leaf(shape.slice(this.random.below(shape.length + 1)));
  }
}

type Step = (b: GraphBuilder, x: Tensor) => Tensor;

const reduction =
  (f: (x: Tensor, axes: number[], keep: boolean) => Tensor, prepare: Step = (_b, x) => x): Step =>
  (b, x) =>
    f(prepare(b, b.shaped(x, 2, 3, 4)), b.some(3), b.pick(true, false));

function weights(b: GraphBuilder, gates: number, inputs: number, hidden: number): t.RecurrentWeights {
  return {
    wIh: b.leaf([gates * hidden, inputs]),
    wHh: b.leaf([gates * hidden, hidden]),
    bIh: b.leaf([gates * hidden]),
    bHh: b.leaf([gates * hidden]),
  };
}

function convolution(b: GraphBuilder, x: Tensor): Tensor {
  const groups = b.pick(1, 2);
  if (b.pick(true, false)) {
    const options = { stride: [b.pick(1, 2)], padding: [b.pick(0, 1)], dilation: [b.pick(1, 2)], groups };
    return t.convolve(b.shaped(x, 2, 2, 7), b.leaf([4, 2 / groups, 3]), b.leaf([4]), options);
  }
  const options = {
    stride: [b.pick(1, 2), 1],
    padding: [b.pick(0, 1), b.pick(0, 1)],
    dilation: [1, b.pick(1, 2)],
    groups,
  };
  // By its name: `convolve` may choose another way.
  const inputs = [b.shaped(x, 2, 2, 4, 5), b.leaf([2, 2 / groups, 2, 2]), ...b.pick([b.leaf([2])], [])];
  return b.graph.apply('conv', inputs, options)[0]!;
}

const poolOptions = (b: GraphBuilder) => ({
  kernel: [2, b.pick(2, 3)],
  stride: [b.pick(1, 2), 2],
  padding: [b.pick(0, 1), b.pick(0, 1)],
});

export const steps: { readonly [K in DifferentiableName]: Step } = {
  add: (b, x) => t.add(x, b.partner(x)),
  sub: (b, x) => t.sub(b.partner(x), x),
  mul: (b, x) => t.mul(x, b.partner(x)),
  div: (b, x) => t.div(x, b.positive(b.partner(x))),
  pow: (b, x) => t.pow(b.positive(x), b.partner(x)),
  add_n: (b, x) => t.addN([x, b.leaf(x.shape as number[]), t.mul(x, 0.5), x]),
  neg: (_b, x) => t.neg(x),
  exp: (_b, x) => t.exp(t.tanh(x)),
  log: (b, x) => t.log(b.positive(x)),
  sqrt: (b, x) => t.sqrt(b.positive(x)),
  abs: (b, x) => t.abs(b.signed(x)),
  relu: (b, x) => t.relu(b.signed(x)),
  tanh: (_b, x) => t.tanh(x),
  sigmoid: (_b, x) => t.sigmoid(x),
  erf: (_b, x) => t.erf(x),
  gelu: (_b, x) => t.gelu(x),
  softplus: (b, x) => t.softplus(x, b.pick(1, 2)),
  leaky_relu: (b, x) => t.leakyRelu(b.signed(x), 0.2),
  clamp: (b, x) => t.clamp(b.signed(x), b.pick(-0.5, null), b.pick(0.5, null)),
  where: (b, x) => {
    const bits = Uint8Array.from({ length: count(x.shape as number[]) }, () => b.random.below(2));
    return t.where(b.graph.constant(bits, x.shape as number[]), x, b.partner(x));
  },
  dropout: (b, x) => t.applyDropout(x, b.constant(x.shape as number[], () => b.pick(0, 1 / 0.75)), 0.25), // prettier-ignore

  sum: reduction(t.sum),
  mean: reduction(t.mean),
  max: reduction(t.max, (b, x) => b.distinct(x)),
  min: reduction(t.min, (b, x) => b.distinct(x)),
  logsumexp: reduction(t.logsumexp),
  cumsum: (b, x) => t.cumsum(b.shaped(x, 2, 3, 4), b.random.below(3), b.pick(true, false)),
  reshape: (b, x) => t.reshape(b.shaped(x, 2, 3, 4), b.pick([6, 4], [4, -1], [2, 2, 6])),
  transpose: (b, x) => t.transpose(b.shaped(x, 2, 3, 4), b.pick([2, 1, 0], [1, 2, 0], [0, 2, 1])),
  concat: (b, x) => t.concat([b.shaped(x, 2, 3), b.leaf([2, 2]), b.leaf([2, 1])], 1),
  split: (b, x) => {
    const [first, second, third] = t.split(b.shaped(x, 2, 6), [1, 3, 2], 1);
    return t.concat(b.pick([t.tanh(second!), first!], [third!, first!, t.sigmoid(second!)]), 1);
  },
  slice: (b, x) => t.slice(b.shaped(x, 3, 8), [b.pick(0, 1), b.pick(0, 2)], [3, b.pick(7, Infinity)], [1, b.pick(1, 2, 3)]), // prettier-ignore
  pad: (b, x) => t.pad(b.shaped(x, 2, 3), [[b.pick(0, 1), 0], [1, 2]], 0.5), // prettier-ignore
  expand: (b, x) => t.expand(b.shaped(x, 2, 1, 3), [b.pick(2, 2), 4, 3]),
  gather: (b, x) => t.gather(b.shaped(x, 3, 4), b.indices([2, 4], 3), 0),
  index_select: (b, x) => t.indexSelect(b.shaped(x, 3, 4), b.indices([5], 4), 1),
  scatter_add: (b, x) => t.scatterAdd(b.indices([3, 4], 5), b.shaped(x, 3, 4), 1, [3, 5]),

  matmul: (b, x) => {
    const [transposeA, transposeB] = [b.pick(true, false), b.pick(true, false)];
    const left = b.shaped(x, ...b.pick([2], []), ...(transposeA ? [3, 4] : [4, 3]));
    return t.matmul(left, b.leaf([...b.pick([2], [1], []), ...(transposeB ? [2, 3] : [3, 2])]), {
      transposeA,
      transposeB,
    });
  },
  affine: (b, x) =>
    t.affine(b.shaped(x, ...b.pick([4], [2, 2]), 3), b.leaf([3, 5]), b.pick(b.leaf([5]), undefined)),
  unfold: (b, x) => t.unfold(b.shaped(x, 2, 5, 3), b.pick(2, 3)),
  fold: (b, x) => b.graph.apply('fold', [b.shaped(x, 2, 3, 6)], { width: b.pick(2, 3) })[0]!,
  conv: convolution,
  max_pool: (b, x) => t.maxPool(b.distinct(b.shaped(x, 1, 2, 4, 5)), poolOptions(b)),
  avg_pool: (b, x) =>
    t.avgPool(b.shaped(x, 2, 1, 4, 5), { ...poolOptions(b), countPadding: b.pick(true, false) }),
  batch_norm: (b, x) => t.batchNormalize(b.distinct(b.shaped(x, 3, 2, 3)), b.leaf([2]), b.leaf([2])).y,
  batch_norm_inference: (b, x) => {
    const vector = (value: () => number) => b.constant([2], value);
    const [mean, variance] = [vector(() => b.random.normal()), vector(() => 0.5 + b.random.uniform())];
    return t.batchNormalizeWith(b.shaped(x, 3, 2, 2), b.leaf([2]), b.leaf([2]), mean, variance);
  },
  layer_norm: (b, x) => {
    const affineParameters = b.pick({ gamma: b.leaf([3, 4]), beta: b.leaf([3, 4]) }, undefined);
    return t.layerNormalize(b.distinct(b.shaped(x, 2, 3, 4)), affineParameters, { normalizedAxes: 2 });
  },
  softmax: (b, x) => t.softmax(b.shaped(x, 2, 3, 4), b.random.below(3)),
  log_softmax: (b, x) => t.logSoftmax(b.shaped(x, 2, 3, 4), b.random.below(3)),
  cross_entropy: (b, x) =>
    t.crossEntropy(b.shaped(x, 4, 3), b.graph.constant(Int32Array.of(0, 2, 1, b.random.below(3)), [4]), {
      reduction: b.pick('mean', 'sum'),
      labelSmoothing: b.pick(0, 0.1),
      ignoreLabel: b.pick(null, 1),
    }),
  embedding: (b, x) => t.lookup(b.shaped(x, 4, 3), b.indices([2, 3], 4)),
  lstm: (b, x) => {
    const state = { h: b.leaf([2, 3]), c: b.leaf([2, 3]) };
    const { y, h, c } = t.lstmSequence(b.shaped(x, b.pick(1, 3), 2, 2), state, weights(b, 4, 2, 3));
    return b.pick(y, t.add(h, c), t.concat([t.reshape(y, [-1, 3]), c], 0));
  },
  gru: (b, x) => {
    const { y, h } = t.gruSequence(b.shaped(x, b.pick(1, 3), 2, 2), b.leaf([2, 3]), weights(b, 3, 2, 3));
    return b.pick(y, h, t.concat([t.reshape(y, [-1, 3]), h], 0));
  },
};

export const differentiableNames = Object.keys(steps) as DifferentiableName[];
