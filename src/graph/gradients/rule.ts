/** What a gradient rule sees and gives; the tables in this folder are mapped types over the catalogue. */
import type { DifferentiableName, Operations } from '../catalogue.ts';
import type { Tensor } from '../graph.ts';
import { zerosLike } from '../operations/index.ts';

export interface GradientContext<K extends DifferentiableName> {
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  readonly attributes: Operations[K];
  /** The adjoint of the first output; zero where only others have one. */
  readonly dy: Tensor;
  /** The adjoint of each output, zeros where there is none. */
  readonly adjoint: (output: number) => Tensor;
  /** Whether anything asks for the gradient of an input; a rule may skip the others. */
  readonly needs: (input: number) => boolean;
}

/** The adjoints of the inputs, in order; undefined where an input has none. */
export type GradientRule<K extends DifferentiableName> = (
  context: GradientContext<K>,
) => readonly (Tensor | undefined)[];

export type GradientTable<Names extends DifferentiableName> = { readonly [K in Names]: GradientRule<K> };

export function orZeros(adjoint: Tensor | undefined, output: Tensor): Tensor {
  return adjoint ?? zerosLike(output);
}
