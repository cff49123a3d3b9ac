/**
 * Cuts a graph into segments: each node runs in the first segment that needs it, and a value that a later
 * segment reads is handed over. Pure; it knows nothing of any engine.
 */
import type { Node, Tensor } from '../graph/index.ts';

export interface CutSegment {
  /** Handed to the caller. */
  readonly outputs: readonly Tensor[];
  /** Computed here, read by a later segment, and not among the outputs. */
  readonly kept: readonly Tensor[];
  /** Computed by earlier segments and read here. */
  readonly given: readonly Tensor[];
}

export function cutSegments(segments: readonly (readonly Tensor[])[]): CutSegment[] {
  const segmentOf = new Map<Node, number>();
  segments.forEach((outputs, index) => claim(outputs, index, segmentOf));
  const given = segments.map(() => new Set<Tensor>());
  const handed = segments.map(() => new Set<Tensor>());
  const read = (tensor: Tensor, by: number) => {
    const owner = segmentOf.get(tensor.node)!;
    if (owner === by || tensor.node.inputs.length === 0) return;
    given[by]!.add(tensor);
    handed[owner]!.add(tensor);
  };
  for (const [node, index] of segmentOf) for (const input of node.inputs) read(input, index);
  segments.forEach((outputs, index) => outputs.forEach((output) => read(output, index)));
  return segments.map((outputs, index) => ({
    outputs,
    kept: [...handed[index]!].filter((tensor) => !outputs.includes(tensor)),
    given: [...given[index]!],
  }));
}

function claim(outputs: readonly Tensor[], index: number, segmentOf: Map<Node, number>): void {
  const stack = outputs.map((output) => output.node);
  while (stack.length > 0) {
    const node = stack.pop()!;
    if (segmentOf.has(node)) continue;
    segmentOf.set(node, index);
    for (const input of node.inputs) stack.push(input.node);
  }
}
