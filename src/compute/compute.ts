/**
 * The compute contract: a graph is compiled once for a batch size, cut into segments that run in order, and
 * every tensor that crosses the border has its place in shared memory before the first run. A run reads and
 * writes those places and nothing else.
 */
import type { Tensor } from '../graph/index.ts';
import type { DType, Region } from '../memory/index.ts';

export interface CompileRequest {
  /** What each segment hands over, in the order in which segments run. */
  readonly segments: readonly (readonly Tensor[])[];
  readonly batch: number;
  /** The place of a source (input, parameter, state, mask) or of an output. It may be larger than the tensor. */
  readonly place: (tensor: Tensor, numbersIn?: Tensor) => Region;
  /**
   * How many rows of a table have a place, where it is not all of them. Then `place` is asked, with
   * the table, for the numbers among them that a lookup reads instead of its indices, which are the
   * tensor. Default: all.
   */
  readonly heldRows?: ((table: Tensor) => number | undefined) | undefined;
  /** Memory for values that one segment leaves for a later one. */
  readonly allocate: (dtype: DType, length: number) => Region;
}

export interface CompiledGraph {
  readonly segmentCount: number;
  /** Blocks until the segment's outputs are written. Segments run in order, 0 first. */
  run(segment: number): void;
  close(): void;
}

export interface Compute {
  readonly name: string;
  compile(request: CompileRequest): CompiledGraph;
  close(): void;
}
