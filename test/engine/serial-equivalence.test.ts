/**
 * The law of the engine: whatever the delays, each operation ends as if all had run one after the other in push order.
 * A value is a text that tells its own history, so that equal values have equal histories.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/base/index.ts';
import { DependencyEngine } from '../../src/engine/index.ts';
import { concurrencies, operationLists } from './random-operations.ts';
import type { RandomOperation } from './random-operations.ts';

const HALF_WRITTEN = 'half-written';

/** Reads, as one text. */
function read(values: ReadonlyMap<string, string>, { reads }: RandomOperation): string {
  return reads.map((variable) => values.get(variable) ?? '-').join(',');
}

/** What a run one after the other gives: results, or who is to blame. */
function runSerially(list: readonly RandomOperation[]): string[] {
  const values = new Map<string, string>();
  const culprits = new Map<string, number>();
  return list.map((operation, i) => {
    const bad = operation.reads.find((variable) => culprits.has(variable));
    const culprit = bad === undefined ? (operation.isFailing ? i : undefined) : culprits.get(bad)!;
    const result = hash(`${i}(${read(values, operation)})`);
    for (const variable of operation.mutates) {
      values.set(variable, result);
      if (culprit === undefined) culprits.delete(variable);
      else culprits.set(variable, culprit);
    }
    if (culprit === undefined) return result;
    return bad === undefined ? `failed ${i}` : `kept by ${culprit} from reading ${bad}`;
  });
}

/** Histories double with every step; their digests do not. */
function hash(text: string): string {
  let digest = 0;
  for (const character of text) digest = (Math.imul(digest, 31) + character.charCodeAt(0)) | 0;
  return `${text.slice(0, text.indexOf('('))}#${digest}`;
}

describe('any operations with any delays', () => {
  it('end as if run one after the other in push order, within the limit, lanes in order', async () => {
    await fc.assert(
      fc.asyncProperty(
        operationLists,
        concurrencies,
        fc.scheduler(),
        async (list, concurrency, scheduler) => {
          const engine = new DependencyEngine({ concurrency });
          const values = new Map<string, string>();
          const begun: number[] = [];
          let underWay = 0;

          const work = async (operation: RandomOperation, i: number): Promise<string> => {
            begun.push(i);
            underWay++;
            expect(underWay).toBeLessThanOrEqual(concurrency);
            const before = read(values, operation);
            for (const variable of operation.mutates) values.set(variable, HALF_WRITTEN);
            for (let turn = 0; turn < operation.turns; turn++) await scheduler.schedule(Promise.resolve());
            underWay--;
            // Nobody wrote meanwhile what this one reads or writes.
            for (const variable of operation.mutates) expect(values.get(variable)).toBe(HALF_WRITTEN);
            const isOnlyRead = (variable: string) => !operation.mutates.includes(variable);
            const reads = operation.reads.filter(isOnlyRead);
            const old = operation.reads.flatMap((variable, at) =>
              isOnlyRead(variable) ? [before.split(',')[at]!] : [],
            );
            expect(reads.map((variable) => values.get(variable) ?? '-')).toEqual(old);
            if (operation.isFailing) throw new Error(`failed ${i}`);
            const result = hash(`${i}(${before})`);
            for (const variable of operation.mutates) values.set(variable, result);
            return result;
          };

          const pushed = list.map((operation, i) => {
            const { reads, mutates, priority, lane } = operation;
            const run = () => work(operation, i);
            return engine
              .push({ name: `${i}`, reads, mutates, priority, inOrder: lane, run })
              .catch(describeFailure);
          });
          const results = await scheduler.waitFor(Promise.all(pushed));

          expect(results).toEqual(runSerially(list));
          for (const lane of ['lane 1', 'lane 2']) {
            const inLane = begun.filter((i) => list[i]!.lane === lane);
            expect(inLane).toEqual(inLane.toSorted((a, b) => a - b));
          }
          await engine.idle();
        },
      ),
      { numRuns: 300 },
    );
  });
});

function describeFailure(error: unknown): string {
  if (!(error instanceof TributaryError)) return (error as Error).message;
  const { culprit, variable } = error.facts as { culprit: string; variable: string };
  return `kept by ${culprit} from reading ${variable}`;
}
