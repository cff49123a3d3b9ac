/**
 * Reverse-mode automatic differentiation. It walks the nodes backwards once and writes the backward pass into
 * the same graph, out of catalogue operations. The gradient of a table that is only looked up stays sparse:
 * the looked-up indices and the adjoint of each lookup, never a dense table.
 */
import { UsageError } from '../base/index.ts';
import type { DifferentiableName } from './catalogue.ts';
import { gradientTable, orZeros, type GradientContext, type GradientRule } from './gradients/index.ts';
import { isNode, type Node, type Parameter, type Tensor } from './graph.ts';
import { addN, reshape } from './operations/index.ts';

export interface DenseGradient {
  readonly kind: 'dense';
  readonly parameter: Parameter;
  readonly value: Tensor;
}

/** One use of a table: `rows[i]` is the adjoint of the row `indices[i]`; indices may repeat. */
export interface Lookup {
  /** `[M]` int32 */
  readonly indices: Tensor;
  /** `[M, size]` */
  readonly rows: Tensor;
  /** This row takes no gradient. */
  readonly paddingIndex: number | null;
}

export interface SparseGradient {
  readonly kind: 'sparse';
  readonly parameter: Parameter;
  readonly lookups: readonly Lookup[];
}

export type Gradient = DenseGradient | SparseGradient;

export interface Seed {
  readonly output: Tensor;
  /** The adjoint of the output, of its shape. */
  readonly adjoint: Tensor;
}

/** The gradients of a scalar loss for all trainable parameters it depends on, in the order backward makes them. */
export function gradients(loss: Tensor): Gradient[] {
  if (loss.shape.length > 0) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `gradients: the loss must be a scalar; take the mean of ${loss.label} first.`,
    );
  }
  const { graph } = loss;
  const parameters = [...graph.parameters.values()].filter((parameter) => parameter.trainable);
  const tables = new Set(
    parameters.filter((parameter) => onlyLookedUp(parameter.tensor, loss)).map((p) => p.tensor),
  );
  const adjoints = backward(
    [{ output: loss, adjoint: graph.scalar(1) }],
    parameters.map((p) => p.tensor),
    tables,
  );
  const result: Gradient[] = [];
  // A gradient may be changed where it lies as soon as it is there, so it must be nobody's input, and nobody else's gradient.
  const inputs = new Set(graph.nodes.flatMap((node) => node.inputs));
  const values = parameters.map(({ tensor }) => adjoints.dense.get(tensor));
  const isItsOwn = (value: Tensor) =>
    !inputs.has(value) && values.indexOf(value) === values.lastIndexOf(value);
  for (const parameter of parameters) {
    const lookups = adjoints.lookups.get(parameter.tensor);
    const value = adjoints.dense.get(parameter.tensor);
    if (lookups) result.push({ kind: 'sparse', parameter, lookups });
    else if (value) {
      // Two biases may share a value; that of a normalization's scale is used further down.
      const own = isItsOwn(value) ? value : graph.apply('add_n', [value], {})[0]!;
      result.push({ kind: 'dense', parameter, value: own });
    }
  }
  const finished = (gradient: Gradient) =>
    gradient.kind === 'dense'
      ? gradient.value.node.id
      : Math.max(...gradient.lookups.map((l) => l.rows.node.id));
  return result.sort((a, b) => finished(a) - finished(b));
}

/** The gradients of the sum of `<adjoint, output>` for each target, dense; undefined where there is no path. */
export function differentiate(seeds: readonly Seed[], targets: readonly Tensor[]): (Tensor | undefined)[] {
  const { dense } = backward(seeds, targets, new Set());
  return targets.map((target) => dense.get(target));
}

interface Adjoints {
  readonly dense: Map<Tensor, Tensor>;
  readonly lookups: Map<Tensor, Lookup[]>;
}

function backward(seeds: readonly Seed[], targets: readonly Tensor[], tables: ReadonlySet<Tensor>): Adjoints {
  const { graph } = seeds[0]!.output;
  const last = Math.max(...seeds.map((seed) => seed.output.node.id));
  const active = dependents(graph.nodes, last, new Set(targets));
  const contributions = new Map<Tensor, Tensor[]>();
  const contribute = (tensor: Tensor, adjoint: Tensor) => {
    const list = contributions.get(tensor);
    if (list) list.push(adjoint);
    else contributions.set(tensor, [adjoint]);
  };
  for (const { output, adjoint } of seeds) contribute(output, adjoint);

  const lookups = new Map<Tensor, Lookup[]>();
  const total = (tensor: Tensor): Tensor | undefined => {
    const list = contributions.get(tensor);
    if (!list) return undefined;
    const sum = addN(list);
    contributions.set(tensor, [sum]);
    return sum;
  };

  for (let id = last; id >= 0; id--) {
    const node = graph.nodes[id]!;
    if (node.inputs.length === 0 || !node.outputs.some((output) => active.has(output))) continue;
    const adjoints = node.outputs.map(total);
    if (adjoints.every((adjoint) => adjoint === undefined)) continue;
    const table = node.inputs[0]!;
    if (isNode(node, 'embedding') && tables.has(table)) {
      const lookup: Lookup = {
        indices: reshape(node.inputs[1]!, [-1]),
        rows: reshape(adjoints[0]!, [-1, table.shape[1]!]),
        paddingIndex: node.attributes.paddingIndex,
      };
      lookups.set(table, [...(lookups.get(table) ?? []), lookup]);
      continue;
    }
    inputAdjoints(node, adjoints, active).forEach((adjoint, i) => {
      if (adjoint && active.has(node.inputs[i]!)) contribute(node.inputs[i]!, adjoint);
    });
  }
  const dense = new Map<Tensor, Tensor>();
  for (const target of targets) {
    const sum = total(target);
    if (sum) dense.set(target, sum);
  }
  return { dense, lookups };
}

function inputAdjoints(
  node: Node,
  adjoints: readonly (Tensor | undefined)[],
  active: ReadonlySet<Tensor>,
): readonly (Tensor | undefined)[] {
  const rule = (gradientTable as unknown as Record<string, GradientRule<DifferentiableName> | undefined>)[
    node.op
  ];
  if (!rule) {
    throw new UsageError(
      'NOT_DIFFERENTIABLE',
      `The gradient goes through ${node.outputs[0]!.label}, but ${node.op} has none. Leave it out of the path from the parameters to the loss.`,
    );
  }
  const adjoint = (output: number) => orZeros(adjoints[output], node.outputs[output]!);
  const context: GradientContext<DifferentiableName> = {
    inputs: node.inputs,
    outputs: node.outputs,
    attributes: node.attributes,
    get dy() {
      return adjoint(0);
    },
    adjoint,
    needs: (input) => active.has(node.inputs[input]!),
  };
  return rule(context);
}

/** All float tensors up to node `last` that depend on a target. */
function dependents(nodes: readonly Node[], last: number, targets: ReadonlySet<Tensor>): Set<Tensor> {
  const active = new Set<Tensor>(targets);
  for (const node of nodes.slice(0, last + 1)) {
    if (!node.inputs.some((input) => active.has(input))) continue;
    for (const output of node.outputs) if (output.dtype === 'float32') active.add(output);
  }
  return active;
}

/** Whether every use of a table on the way to the loss is a lookup. */
function onlyLookedUp(table: Tensor, loss: Tensor): boolean {
  const uses = table.graph.nodes.slice(0, loss.node.id + 1).filter((node) => node.inputs.includes(table));
  return uses.length > 0 && uses.every((node) => node.op === 'embedding' && node.inputs[1] !== table);
}
