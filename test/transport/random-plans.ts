/**
 * The property test of the conformance suite: random plans of messages, which every rank derives from the same seed and
 * carries out in its own order. Invariant: every message of a plan arrives once, whole, with its weight.
 */
import fc from 'fast-check';
import type { Receiving, Transfer } from '../../src/transport/index.ts';
import { DTYPES } from './ground.ts';
import type { Ground } from './ground.ts';

export async function runRandomPlans(ground: Ground): Promise<void> {
  const { seed, size } = ground.endpoint;
  const message = fc.record({
    from: fc.nat(size - 1),
    hop: fc.integer({ min: 1, max: size - 1 }),
    dtype: fc.constantFrom(...DTYPES),
    length: fc.oneof(
      { weight: 6, arbitrary: fc.nat(40) },
      { weight: 3, arbitrary: fc.nat(5000) },
      { weight: 1, arbitrary: fc.nat(60_000) },
    ),
    tag: fc.nat(3),
    weight: fc.nat(100),
  });
  const plan = fc.record({
    messages: fc.array(message, { maxLength: 60, size: 'max' }),
    receiveFirst: fc.array(fc.boolean(), { minLength: size, maxLength: size }),
    reverse: fc.array(fc.boolean(), { minLength: size, maxLength: size }),
  });
  for (const [number, { messages, receiveFirst, reverse }] of fc
    .sample(plan, { seed, numRuns: 8 })
    .entries()) {
    const sends: Transfer[] = [];
    const receives: (() => void)[] = [];
    const transfers: Receiving[] = [];
    const sendAll = (): void => {
      for (const [step, { from, hop, dtype, length, tag, weight }] of messages.entries()) {
        if (from !== ground.rank) continue;
        const to = (from + hop) % size;
        sends.push(ground.send(to, { tag, sequence: number, step, weight }, step, dtype, length));
      }
    };
    const receiveAll = (): void => {
      const mine = [...messages.entries()].filter(([, { from, hop }]) => (from + hop) % size === ground.rank);
      if (reverse[ground.rank]) mine.reverse();
      for (const [step, { from, dtype, length, tag, weight }] of mine) {
        const receiving = ground.receive(from, { tag, sequence: number, step }, dtype, length);
        transfers.push(receiving);
        receives.push(() => ground.check(receiving, step, weight));
      }
    };
    if (receiveFirst[ground.rank]) receiveAll();
    sendAll();
    if (!receiveFirst[ground.rank]) receiveAll();
    await ground.allDone(transfers);
    for (const check of receives) check();
    await ground.allDone(sends);
  }
}
