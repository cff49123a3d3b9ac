/**
 * Whether the replicas of all workers are still the same: a number for each parameter, which is equal on two workers if the bits
 * are. A difference is an error that names parameters and workers; it would else be found in the results, or never.
 */
import { InternalError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAll } from '../exchange/index.ts';
import type { ExchangePlan } from '../plan/index.ts';
import type { Replica } from '../runtime/index.ts';

/** All workers call it at the same step. What lives on servers is there once and cannot differ. */
export function compareReplicas(
  thread: CommunicationThread,
  { memory, kernels, step }: Replica,
  { parameters }: ExchangePlan,
): void {
  const elsewhere = new Set(
    parameters.filter(({ route }) => route.startsWith('server')).map(({ name }) => name),
  );
  const names = [...memory.parameters.keys()].filter((name) => !elsewhere.has(name));
  const own = names.map((name) => kernels.absSum(memory.parameters.get(name)!));
  const all = tellAll(thread, own, 'checksums of the replicas');
  const drifted = names.flatMap((name, i) => {
    const ranks = all.flatMap((sums, rank) => (Object.is(sums[i], all[0]![i]) ? [] : [rank]));
    return ranks.length === 0 ? [] : [{ name, ranks, values: all.map((sums) => sums[i]) }];
  });
  if (drifted.length === 0) return;
  const [first] = drifted;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `after step ${step} parameter ${first!.name} of worker ${first!.ranks.join(', ')} is not that of worker 0 (sums of absolute values ${first!.values.join(', ')})${drifted.length > 1 ? `, nor are ${drifted.length - 1} others` : ''}; update all workers from the same gradients, and change parameters on none by hand`,
    { step, parameters: drifted },
  );
}
