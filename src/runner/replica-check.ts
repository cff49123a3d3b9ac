/**
 * Whether the replicas of all workers are still the same: a number for each parameter and state, which is equal on two workers if
 * the bits are. A difference is an error that names them and the workers; it would else be found in the results, or never.
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
  { parameters }: Pick<ExchangePlan, 'parameters'>,
): void {
  const elsewhere = new Set(
    parameters.filter(({ route }) => route.startsWith('server')).map(({ name }) => name),
  );
  const here = [...memory.parameters].filter(([name]) => !elsewhere.has(name));
  const compared = [
    ...here.map(([name, region]) => [`parameter ${name}`, region] as const),
    ...[...memory.states].map(([name, region]) => [`state ${name}`, region] as const),
  ];
  const own = compared.map(([, region]) => kernels.absSum(region));
  const all = tellAll(thread, own, 'checksums of the replicas');
  const drifted = compared.flatMap(([name], i) => {
    const ranks = all.flatMap((sums, rank) => (Object.is(sums[i], all[0]![i]) ? [] : [rank]));
    return ranks.length === 0 ? [] : [{ name, ranks, values: all.map((sums) => sums[i]) }];
  });
  if (drifted.length === 0) return;
  const [first] = drifted;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `after step ${step} ${first!.name} of worker ${first!.ranks.join(', ')} is not that of worker 0 (sums of absolute values ${first!.values.join(', ')})${drifted.length > 1 ? `, nor are ${drifted.length - 1} others` : ''}; update all workers from the same gradients, and change parameters on none by hand`,
    { step, drifted },
  );
}
