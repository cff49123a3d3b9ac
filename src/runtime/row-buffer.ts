/**
 * The rows of one table that a batch looks up, where the table itself lives elsewhere: each row
 * once, in the order of their indices, and for each lookup which of them it reads. Brings no rows
 * here; who does finds in `indices` which are needed. Invariants: it has room for any batch,
 * however little repeats; in training and in evaluation lookups read the bits that they would read
 * in the table.
 */
import { fillElements, isSeeded } from '../base/index.ts';
import {
  elementCount,
  isNode,
  parameterSeed,
  resolveShape,
  type Graph,
  type Model,
  type Parameter,
  type Tensor,
} from '../graph/index.ts';
import { numberRows, planRows, type Kernels, type RowPlan } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';

export interface RowBufferPlaces {
  /** The looked-up indices, one input after the other, and the number of the row of each. */
  readonly positions: Region<'int32'>;
  readonly numbers: Region<'int32'>;
  readonly plan: RowPlan;
}

/** Elements that lie in a file. */
export interface StoredElements {
  readonly length: number;
  /** Fills the target with those from `first` on. */
  read(first: number, target: Float32Array): void;
}

/** A table of a checkpoint, with the optimizer's slots. */
export interface StoredTable {
  readonly value: StoredElements;
  readonly slots: Readonly<Record<string, StoredElements>>;
}

export class RowBuffer {
  readonly parameter: Parameter;
  readonly rowLength: number;
  /** Most rows at once. */
  readonly capacity: number;
  /** Rows that the batch looks up. */
  count = 0;
  /** By which the first values of the table are made. */
  readonly seed: number;
  /** The table, where it was in a checkpoint, before servers have it. */
  stored: StoredTable | undefined;
  readonly #inputs: readonly Tensor[];
  readonly #places: RowBufferPlaces;

  constructor(parameter: Parameter, graph: Graph, maxBatch: number, seed: number, places: RowBufferPlaces) {
    this.parameter = parameter;
    this.seed = parameterSeed(seed, parameter.name);
    this.rowLength = parameter.shape[1]!;
    this.#inputs = lookupInputs(graph, parameter) as readonly Tensor[];
    this.capacity = heldRows(graph, parameter, maxBatch);
    this.#places = places;
  }

  get tableRows(): number {
    return this.parameter.shape[0]!;
  }

  /** The rows of the table that the batch needs, ascending, each once. */
  get indices(): Int32Array {
    return this.#places.plan.indices.view.slice(0, this.count);
  }

  /**
   * Finds out which rows the batch in the model's inputs looks up; `source`: where an input lies.
   */
  plan(kernels: Kernels, batch: number, source: (input: Tensor) => Region): void {
    const { positions, numbers, plan } = this.#places;
    let count = 0;
    for (const input of this.#inputs) {
      const length = lengthOf(input, batch);
      positions.view.set((source(input).view as Int32Array).subarray(0, length), count);
      count += length;
    }
    this.count = planRows(kernels, { indices: positions, count, tableRows: this.tableRows, plan });
    numberRows(kernels, { plan, unique: this.count, numbers: numbers.slice(0, count) });
  }

  /**
   * Brings the rows from where the table was before servers had it; `isTrial`: first values will
   * do. `slot`: of an average, which begins at the first values.
   */
  fill(rows: Region<'float32'>, isTrial = false, slot?: string): void {
    const { rowLength } = this;
    this.indices.forEach((row, i) => {
      const target = rows.view.subarray(i * rowLength, (i + 1) * rowLength);
      const first = row * rowLength;
      const stored = slot === undefined ? this.stored?.value : this.stored?.slots[slot];
      if (stored && !isTrial) stored.read(first, target);
      else fillElements(target, this.parameter.initialiser, this.seed, first);
    });
  }

  /** The whole table as it is before the first step. */
  get firstValues(): StoredElements {
    const { seed, parameter, tableRows, rowLength } = this;
    return {
      length: tableRows * rowLength,
      read: (first, target) => fillElements(target, parameter.initialiser, seed, first),
    };
  }

  /** The numbers of the rows that lookups by this input, or by another view of it, read. */
  numbersOf(indices: Tensor, batch: number): Region<'int32'> {
    const name = inputWithSameBytes(indices)!.label;
    let start = 0;
    for (const input of this.#inputs) {
      if (input.label === name) return this.#places.numbers.slice(start, lengthOf(input, batch));
      start += lengthOf(input, batch);
    }
    return this.#places.numbers.slice(start, 0);
  }
}

/** Lookups of a batch in a table: positions, of which some may be the same row. */
export function lookups(graph: Graph, parameter: Parameter, batch: number): number {
  const inputs = lookupInputs(graph, parameter) as readonly Tensor[];
  return inputs.reduce((sum, input) => sum + lengthOf(input, batch), 0);
}

/** Rows of a table that a batch can need at most. */
export function heldRows(graph: Graph, parameter: Parameter, maxBatch: number): number {
  return Math.max(1, Math.min(parameter.shape[0]!, lookups(graph, parameter, maxBatch)));
}

/**
 * Why a table cannot live elsewhere, with only the rows of a batch here, as the end of a sentence
 * about it; undefined if it can. By the graph alone: what is done with its gradient is not asked
 * here.
 */
export function whyNeededWhole({ graph, loss, outputs }: Model, parameter: Parameter): string | undefined {
  const { tensor, shape, initialiser, trainable } = parameter;
  if (shape.length !== 2) return `has the shape [${shape.join(', ')}], which is no table of rows`;
  if (!trainable) return 'is not trained';
  if (!isSeeded(initialiser)) return 'has first values of its own, which do not follow from a seed';
  const values = graph.stateUpdates.map(({ value }) => value);
  if ([loss, ...Object.values(outputs), ...values].includes(tensor)) return 'is an output itself';
  const inputs = lookupInputs(graph, parameter);
  return typeof inputs === 'string' ? inputs : undefined;
}

/**
 * The inputs of the model by which a table is looked up, each once; or what else is done with it.
 */
function lookupInputs(graph: Graph, { tensor }: Parameter): readonly Tensor[] | string {
  const inputs = new Map<string, Tensor>();
  for (const node of graph.nodes) {
    if (!node.inputs.includes(tensor)) continue;
    const [table, indices] = node.inputs;
    if (!isNode(node, 'embedding') || table !== tensor || indices === tensor) {
      return `is read by ${node.outputs[0]!.label}, which is no lookup`;
    }
    const input = inputWithSameBytes(indices!);
    if (!input) return `is looked up by ${indices!.label}, which the model computes`;
    inputs.set(input.label, input);
  }
  return inputs.size > 0 ? [...inputs.values()] : 'is not looked up';
}

/** The input of the model that a tensor is, but for its shape; undefined if it is computed. */
export function inputWithSameBytes(tensor: Tensor): Tensor | undefined {
  let source = tensor;
  while (isNode(source.node, 'reshape')) source = source.node.inputs[0]!;
  return isNode(source.node, 'input') ? source : undefined;
}

function lengthOf(input: Tensor, batch: number): number {
  return elementCount(resolveShape(input.shape, batch));
}
