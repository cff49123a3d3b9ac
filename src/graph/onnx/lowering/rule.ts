/** What a lowering rule sees and gives; the tables of this folder are mapped types over the catalogue. */
import type { ComputedName } from '../../catalogue.ts';
import type { Node } from '../../graph.ts';
import type { Emitter } from '../emitter.ts';

/** Emits a node; `inputs` are the names of its inputs. Gives the names of its outputs. */
export type LoweringRule<K extends ComputedName> = (
  emitter: Emitter,
  inputs: readonly string[],
  node: Node<K>,
) => readonly string[];

export type LoweringTable<Names extends ComputedName> = { readonly [K in Names]: LoweringRule<K> };
