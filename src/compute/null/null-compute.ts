/**
 * Compute that costs nothing: outputs get a fixed pattern when a graph is compiled, and a run does no work. For
 * benchmarks of the exchange alone (PHub's zero-compute engine) and for tests of everything around compute.
 */
import { elementCount, resolveShape } from '../../graph/index.ts';
import type { CompiledGraph, CompileRequest, Compute } from '../compute.ts';

export interface NullComputeOptions {
  /** The value of element i of an output, in order of compilation. Default: small and different. */
  readonly pattern?: (output: number, element: number) => number;
}

const smallAndDifferent = (output: number, element: number) => ((output * 7 + element) % 13) / 1024;

export class NullCompute implements Compute {
  readonly name = 'null';
  readonly #pattern: (output: number, element: number) => number;

  constructor({ pattern = smallAndDifferent }: NullComputeOptions = {}) {
    this.#pattern = pattern;
  }

  compile({ segments, batch, place }: CompileRequest): CompiledGraph {
    segments.flat().forEach((tensor, output) => {
      if (tensor.dtype !== 'float32') return;
      const view = place(tensor).view as Float32Array;
      const length = elementCount(resolveShape(tensor.shape, batch));
      for (let i = 0; i < length; i++) view[i] = this.#pattern(output, i);
    });
    return { segmentCount: segments.length, run: () => undefined, close: () => undefined };
  }

  close(): void {
    // Nothing is held.
  }
}
