/** A model for one device: a graph, the loss to train and the outputs people want to see. */
import type { Graph, Tensor } from './graph.ts';

export interface Model {
  readonly graph: Graph;
  /** A scalar; training lowers it. */
  readonly loss: Tensor;
  /** By name, for evaluation, prediction and export: usually `logits`. */
  readonly outputs: Readonly<Record<string, Tensor>>;
}
