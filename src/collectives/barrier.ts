/**
 * Barrier: nobody returns before everybody has come. Dissemination: in round k each rank tells the one 2^k further.
 * Invariant: after log2 n rounds every rank has heard of all others, directly or not.
 */
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { Ranks } from './algorithms/ranks.ts';
import { startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';

export function barrier(group: Group, options: CollectiveOptions & CallPlan = {}): Handle {
  return startCall(group, { collective: 'barrier', name: options.name }, options, (operation) =>
    disseminate(Ranks.all(operation), operation.scratch('int32', 0)),
  );
}

export function* disseminate(ranks: Ranks, nothing: Region): Steps {
  const { size, position } = ranks;
  for (let distance = 1, step = 0; distance < size; distance *= 2, step++) {
    const sending = ranks.send(position + distance, step, nothing);
    const receiving = ranks.receive(position - distance, step, nothing);
    yield receiving;
    receiving.release();
    yield sending;
  }
}

/** The end of a collective in which not every rank hears from every other: errors reach all before any returns. */
export function* confirm(operation: Operation, firstStep: number): Steps {
  yield* disseminate(Ranks.all(operation).withSteps(firstStep), operation.scratch('int32', 0));
}
