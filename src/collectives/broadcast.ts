/**
 * Broadcast: every rank's region becomes the root's. Down a binomial tree; a long vector between hosts is first
 * scattered and then gathered, so that no link carries more than about twice its bytes. Invariant: returns when all
 * ranks have agreed on the call, so a mismatch is an error on every rank.
 */
import type { Group } from '../cluster/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation, Steps } from '../progress/index.ts';
import { Ranks, settle } from './algorithms/ranks.ts';
import { spreadDown } from './algorithms/tree.ts';
import { gather } from './all-gather.ts';
import { confirm } from './barrier.ts';
import { checkCall, startCall } from './call.ts';
import type { CallPlan, CollectiveOptions } from './call.ts';
import { cut, evenParts } from './parts.ts';
import { checkRoot } from './root.ts';

export interface BroadcastOptions extends CollectiveOptions {
  /** The rank whose values all get. Default 0. */
  readonly root?: number | undefined;
}

/** From here on two passes over parts beat log2 n passes over the whole. */
const SCATTER_BYTES = 512 * 1024;
const GATHER = 64;
const CONFIRM = 128;

export function broadcast(group: Group, region: Region, options: BroadcastOptions & CallPlan = {}): Handle {
  checkCall(group, 'broadcast', options);
  const root = checkRoot(group, 'broadcast', options.root ?? 0);
  const { dtype, length } = region;
  const fields = { collective: 'broadcast', dtype, length, root, name: options.name };
  return startCall(group, fields, options, (operation) => spread(operation, region, root, group));
}

/** Also the way of lists between hosts. */
export function* spread(operation: Operation, region: Region, root: number, group: Group): Steps {
  const ranks = Ranks.all(operation);
  if (region.byteLength >= SCATTER_BYTES && ranks.size > 2 && ranks.inPlace === undefined) {
    const parts = evenParts(region.length, ranks.size);
    yield* scatter(ranks, region, root, parts, group);
    const own = cut(region, parts[ranks.position]!);
    yield* gather(operation, own, region, parts, group, GATHER);
  } else {
    yield* spreadDown(ranks, root, region, group.kernels);
  }
  yield* confirm(operation, CONFIRM);
}

function* scatter(
  ranks: Ranks,
  region: Region,
  root: number,
  parts: ReturnType<typeof evenParts>,
  { kernels }: Group,
): Steps {
  const { size, position } = ranks;
  if (position === root) {
    const sends = [];
    for (let i = 1; i < size; i++) {
      const to = (root + i) % size;
      sends.push(ranks.send(to, 0, cut(region, parts[to]!)));
    }
    for (const sending of sends) yield sending;
  } else {
    const own = cut(region, parts[position]!);
    const receiving = ranks.receive(root, 0, own);
    yield receiving;
    settle(receiving, own, kernels);
  }
}
