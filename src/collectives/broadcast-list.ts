/**
 * Broadcast of a list: every rank's regions become those of rank 0, in one operation. On one host every rank copies them
 * straight from where they lie at rank 0; between hosts they travel as one vector. Invariant: returns when all ranks have
 * their copy, so rank 0's regions are free again.
 */
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import type { InPlace } from '../transport/index.ts';
import { Ranks } from './algorithms/ranks.ts';
import { confirm } from './barrier.ts';
import { spread } from './broadcast.ts';
import { checkCall, startCall } from './call.ts';
import type { CollectiveOptions } from './call.ts';
import { elementsIn, gathered, listFields, scattered } from './region-list.ts';
import { Staging } from './staging.ts';

const CONFIRM = 1 << 20;

export function broadcastList(
  group: Group,
  regions: readonly Region[],
  options: CollectiveOptions = {},
): Handle {
  checkCall(group, 'broadcast of a list', options);
  const fields = { ...listFields('broadcast of a list', regions), name: options.name };
  return startCall(group, fields, options, (operation) => run(operation, regions, group));
}

function* run(operation: Operation, regions: readonly Region[], group: Group): Steps {
  const ranks = Ranks.all(operation);
  if (ranks.size === 1) return;
  const { inPlace } = ranks;
  if (inPlace) return yield* readInPlace(ranks, inPlace, regions, group);
  if (regions.length === 1) return yield* spread(operation, regions[0]!, 0, group);
  const whole =
    ranks.position === 0
      ? gathered(operation, regions, group.kernels)
      : operation.scratch(regions[0]!.dtype, elementsIn(regions));
  yield* spread(operation, whole, 0, group);
  if (ranks.position > 0) scattered(whole, regions, group.kernels);
}

function* readInPlace(ranks: Ranks, inPlace: InPlace, regions: readonly Region[], group: Group): Steps {
  const { operation, size, position } = ranks;
  if (position === 0) {
    const lent = new Staging(operation, inPlace, regions, group.kernels).regions;
    for (let at = 1; at < size; at++) {
      lent.forEach((region, i) => inPlace.lend(ranks.memberAt(at), ranks.envelope(i, 1), region));
    }
  } else {
    const root = ranks.memberAt(0);
    const borrowed = regions.map(({ dtype, length }, i) =>
      inPlace.borrow(root, ranks.envelope(i, 0), dtype, length),
    );
    for (const [i, borrowing] of borrowed.entries()) {
      if (!borrowing.done) yield borrowing;
      if (regions[i]!.length > 0) group.kernels.copy(regions[i]!, borrowing.region);
      borrowing.release();
    }
  }
  yield* confirm(operation, CONFIRM);
}
