/**
 * Turns of the sides of `bench allreduce`: how many operations each takes, and the alternation whose medians are compared.
 * Not the sides themselves. Invariant: a turn whose sums are wrong is an error, never a figure.
 */
import { InternalError } from '../../base/index.ts';
import type { Turn, TurnResult } from './control.ts';
import type { PeerGroup } from './peer-group.ts';
import { longestBurst } from './test-vector.ts';

/** A side with the turn that it repeats. */
export interface Contender {
  readonly group: Pick<PeerGroup, 'turn' | 'command'>;
  readonly turn: Turn;
  /** The algorithm that the side says it took. */
  readonly chosen: string | undefined;
}

export interface TurnSettings {
  readonly bytes: number;
  readonly ranks: number;
  /** About how long a turn takes. */
  readonly turnMs: number;
}

const LEAST_ITERATIONS = 3;
const MOST_ITERATIONS = 200_000;

/** Warms the side up, finds how many operations make a turn, and takes the fastest of its variants. */
export async function calibrate(
  group: Contender['group'],
  variants: readonly string[],
  { bytes, ranks, turnMs }: TurnSettings,
): Promise<Contender> {
  const burst = longestBurst(ranks);
  const countFor = (shareOfTurn: number, micros: number): number =>
    Math.round(Math.min(MOST_ITERATIONS, Math.max(LEAST_ITERATIONS, (turnMs * 1e3 * shareOfTurn) / micros)));
  let best: { readonly contender: Contender; readonly micros: number } | undefined;
  for (const algorithm of variants) {
    // The first operations touch new memory and connect; they say little about the rest.
    const first = await timed(group, { bytes, iterations: LEAST_ITERATIONS, burst, algorithm });
    const second = await timed(group, { bytes, iterations: countFor(0.2, first.micros), burst, algorithm });
    const { micros, algorithm: chosen } = await timed(group, {
      bytes,
      iterations: countFor(0.5, second.micros),
      burst,
      algorithm,
    });
    const turn = { bytes, iterations: countFor(1, micros), burst, algorithm };
    if (!best || micros < best.micros) best = { contender: { group, turn, chosen }, micros };
  }
  return best!.contender;
}

/** The median microseconds of each; one turn each, round after round. */
export async function race(
  contenders: readonly Contender[],
  rounds: number,
): Promise<ReadonlyMap<Contender, number>> {
  const times = new Map<Contender, number[]>(contenders.map((contender) => [contender, []]));
  for (let round = 0; round < rounds; round++) {
    // Another one begins each round, so that nobody always follows the same side.
    const order = contenders.map((_, i) => contenders[(i + round) % contenders.length]!);
    for (const contender of order)
      times.get(contender)!.push((await timed(contender.group, contender.turn)).micros);
  }
  return new Map([...times].map(([contender, list]) => [contender, median(list)]));
}

async function timed(group: Contender['group'], turn: Turn): Promise<TurnResult> {
  const result = await group.turn(turn);
  if (result.ok) return result;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `${group.command.name} (${turn.algorithm}) gave wrong sums of ${turn.bytes} bytes; the comparison would be void, please report it`,
    { peer: group.command.name, ...turn },
  );
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
