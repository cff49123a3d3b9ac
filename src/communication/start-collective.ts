/**
 * Starts in the communication thread the collective that the caller called, with the same options. One table, so that a
 * collective that is missing does not compile. Invariant: what is returned is the engine's own operation, whose end can
 * be learnt without the event loop.
 */
import type { Group } from '../cluster/index.ts';
import {
  allGather,
  allReduce,
  allToAll,
  barrier,
  broadcast,
  join,
  reduce,
  reduceScatter,
} from '../collectives/index.ts';
import type { Codec } from '../collectives/index.ts';
import type { Region } from '../memory/index.ts';
import type { Handle, Operation } from '../progress/index.ts';
import type { CallCommand, CallOptions, CollectiveName, PackedRegion } from './messages.ts';

type Unpack = (region: PackedRegion) => Region;

type Starters = {
  readonly [Name in CollectiveName]: (
    group: Group,
    regions: readonly Region[],
    options: CallOptions[Name],
    unpack: Unpack,
  ) => Handle;
};

const starters: Starters = {
  allReduce: (group, vectors, { codec, residual, ...options }, unpack) =>
    allReduce(group, vectors, {
      ...options,
      codec: codec && ({ ...codec, residual: residual && unpack(residual) } as Codec),
    }),
  reduceScatter: (group, [input, output], options) => reduceScatter(group, input!, output!, options),
  allGather: (group, [input, output], options) => allGather(group, input!, output!, options),
  allToAll: (group, [input, output], options) => allToAll(group, input!, output!, options),
  broadcast: (group, [region], options) => broadcast(group, region!, options),
  reduce: (group, [region], options) => reduce(group, region!, options),
  barrier: (group, _, options) => barrier(group, options),
  join: (group, _, options) => join(group, options),
};

export function startCollective<Name extends CollectiveName>(
  group: Group,
  command: CallCommand<Name>,
  regions: readonly Region[],
  unpack: Unpack,
): Operation {
  const start: Starters[Name] = starters[command.collective];
  // Collectives promise their callers a handle; it is the operation that the engine started.
  return start(group, regions, command.options, unpack) as Operation;
}
