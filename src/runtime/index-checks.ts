/**
 * Checks the integers of a batch before they are used as positions: labels against the number of classes, indices
 * against the rows of the table they look up. ONNX would count a negative one from the end and train on silently.
 */
import { UsageError } from '../base/index.ts';
import { elementCount, isNode, resolveShape, type Graph, type Tensor } from '../graph/index.ts';
import type { ModelMemory } from './model-memory.ts';

interface Check {
  readonly input: Tensor;
  /** Exclusive upper bound. */
  readonly bound: number;
  readonly ignored: number | null;
  /** The table that is looked up, if it is that. */
  readonly table?: string;
  /** What the bound counts: `classes`, `rows of embedding.table`. */
  readonly counts: string;
}

export class IndexChecks {
  readonly #checks: readonly Check[];
  readonly #memory: ModelMemory;
  readonly #numberOf: (sample: number) => number;

  /** `numberOf`: the number by which people know a sample. */
  constructor(graph: Graph, memory: ModelMemory, numberOf: (sample: number) => number) {
    this.#numberOf = numberOf;
    this.#checks = graph.nodes.flatMap((node) => {
      const input = node.inputs[1] && inputBehind(node.inputs[1]);
      if (!input) return [];
      if (isNode(node, 'cross_entropy')) {
        const bound = node.inputs[0]!.shape[1] as number;
        return [{ input, bound, ignored: node.attributes.ignoreLabel, counts: 'classes' }];
      }
      if (!isNode(node, 'embedding')) return [];
      const table = node.inputs[0]!;
      const bound = table.shape[0] as number;
      return [{ input, bound, ignored: null, table: table.label, counts: `rows of ${table.label}` }];
    });
    this.#memory = memory;
  }

  /**
   * Throws at the first value of the batch that is out of bounds. `tables`: looks only at lookups
   * in these.
   */
  run(batch: number, tables?: { has(table: string): boolean }): void {
    for (const { input, bound, ignored, counts, table } of this.#checks) {
      if (tables && !(table !== undefined && tables.has(table))) continue;
      const values = this.#memory.source(input).view as Int32Array;
      const length = elementCount(resolveShape(input.shape, batch));
      for (let i = 0; i < length; i++) {
        const value = values[i]!;
        if ((value >= 0 && value < bound) || value === ignored) continue;
        const sample = this.#numberOf(this.#memory.sampleIds.view[Math.floor((i * batch) / length)]!);
        throw new UsageError(
          'INVALID_DATA',
          `Input ${input.label} of sample ${sample} holds ${value}, but the model has ${bound} ${counts}. Correct the data, or build the model for it.`,
          { input: input.label, sample, value, bound },
        );
      }
    }
  }
}

/** The input of which a tensor is only another view. */
export function inputBehind(tensor: Tensor): Tensor | undefined {
  let source = tensor;
  while (isNode(source.node, 'reshape') || isNode(source.node, 'transpose')) source = source.node.inputs[0]!;
  return isNode(source.node, 'input') && source.dtype === 'int32' ? source : undefined;
}
