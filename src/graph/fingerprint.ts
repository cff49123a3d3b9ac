/**
 * A short text that is equal for equal models, so that processes can compare what they built.
 * Compares nothing itself. Invariant: gradients that were added to a graph do not change it.
 */
import { createHash } from 'node:crypto';
import type { Model } from './model.ts';

/** A text of every number of an array would take seconds for a large table. */
function withoutBytes(_: string, value: unknown): unknown {
  if (!ArrayBuffer.isView(value)) return value;
  return createHash('sha256')
    .update(new Uint8Array(value.buffer, value.byteOffset, value.byteLength))
    .digest('hex');
}

/**
 * Equal for models with the same nodes, parameters and first values, also when gradients were added
 * to the graph of one of them.
 */
export function fingerprintOf({ graph, loss, outputs }: Model): string {
  const values = graph.stateUpdates.map(({ value }) => value);
  const used = new Set([loss, ...Object.values(outputs), ...values].map(({ node }) => node));
  // A set goes on with what is added while it is gone through.
  for (const node of used) for (const input of node.inputs) used.add(input.node);
  const parameters = [...graph.parameters.values()].map(({ name, shape, trainable, initialiser }) => [
    ...[name, shape, trainable, initialiser],
  ]);
  const nodes = graph.nodes
    .filter((node) => used.has(node))
    .map(({ id, op, attributes, inputs }) => [id, op, attributes, inputs.map(({ node }) => node.id)]);
  return createHash('sha256')
    .update(JSON.stringify([parameters, nodes], withoutBytes))
    .digest('hex');
}
