/** What cores know by the number of a list is what the worker means by it, whatever announcements are refused. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import type { CoreLine } from '../../src/kvstore/remote/core-line.ts';
import { ExchangeLists } from '../../src/kvstore/remote/exchange-lists.ts';
import type { KnownKey } from '../../src/kvstore/remote/key-table.ts';
import type { StoreMemory } from '../../src/kvstore/remote/tensors.ts';
import type { Header, ListEntry } from '../../src/server/index.ts';

const MAX_LISTS = 3;
const CORES = 2;
const KEYS = 7;
const CALL = {
  ...{ push: true, pull: false, fromHeld: false, steps: [1], samples: 1, skipped: [], isHeld: false },
};

/** It may refuse a list before or after it has taken it, and answers exchanges when it is let. */
class Core {
  refuses: 'no' | 'before' | 'after' = 'no';
  /** Number of the key that exchanges are of. */
  meant = 0;
  readonly faults: string[] = [];
  readonly #lists = new Map<number, readonly number[]>();
  #open: { readonly list: number; readonly go: () => void }[] = [];

  readonly line = {
    announce: async (_name: string, header: object): Promise<void> => {
      const { list, entries } = header as { list: number; entries: ListEntry[] };
      await Promise.resolve();
      if (this.refuses === 'before') throw refused();
      if (this.#open.some((one) => one.list === list)) this.faults.push(`replaced list ${list} while in use`);
      const pieces = entries.map(({ piece }) => piece);
      this.#lists.set(list, pieces);
      if (this.refuses === 'after') throw refused();
    },
    request: (header: object): Promise<Header> => {
      const { list } = header as { list: number };
      const pieces = String(this.#lists.get(list));
      if (pieces !== String(this.meant)) this.faults.push(`took key ${this.meant} for ${pieces}`);
      return new Promise((resolve) => {
        this.#open.push({ list, go: () => resolve({ results: [[1, 0]] }) });
      });
    },
  } as unknown as CoreLine;

  answer(): void {
    for (const { go } of this.#open.splice(0)) go();
  }
}

const refused = () => new UsageError('OUT_OF_SHARED_MEMORY', 'no room', {});

/** The first is on one core only, the others on both. */
function keyOf(number: number): KnownKey {
  const cores = number === 0 ? [0] : [0, 1];
  const pieces = cores.map((core) => ({ core, number, start: 0, ranges: [], elements: 0, length: 1 }));
  return { key: `key ${number}`, length: 1, pieces } as unknown as KnownKey;
}

it('a number of a list means to every core what it means to the worker', async () => {
  const step = fc.record({
    key: fc.nat(KEYS - 1),
    refusals: fc.array(fc.constantFrom('no', 'no', 'before', 'after'), {
      minLength: CORES,
      maxLength: CORES,
    }),
    /** Whether everything before was answered. */
    isQuiet: fc.boolean(),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
      const cores = Array.from({ length: CORES }, () => new Core());
      const answerAll = async (): Promise<void> => {
        for (const core of cores) core.answer();
        await new Promise(setImmediate);
      };
      const lines = cores.map(({ line }) => line);
      const lists = new ExchangeLists(
        lines,
        {} as StoreMemory,
        lines.map(() => false),
        MAX_LISTS,
      );
      for (const { key, refusals, isQuiet } of steps) {
        if (isQuiet) await answerAll();
        cores.forEach((core, i) => Object.assign(core, { refuses: refusals[i], meant: key }));
        let outcome: unknown;
        const entries = [{ key: keyOf(key), gradient: undefined, into: undefined, isInPlace: true }];
        const sent = lists.exchange(entries, CALL).then(
          () => (outcome = 'sent'),
          (error: unknown) => (outcome = error),
        );
        await new Promise(setImmediate);
        // All lists are in use: it waits for answers.
        if (outcome === undefined) await answerAll();
        await sent;
        if (outcome !== 'sent') expect(outcome).toMatchObject({ code: 'OUT_OF_SHARED_MEMORY' });
        expect(cores.flatMap(({ faults }) => faults)).toEqual([]);
      }
    }),
    { numRuns: 300 },
  );
});
