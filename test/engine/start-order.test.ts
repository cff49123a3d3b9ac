/**
 * When operations begin, compared with a model that looks at all pairs after every event: as early as conflicts, lanes
 * and places allow, and by priority. The engine must begin the same ones in the same order.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { DependencyEngine } from '../../src/engine/index.ts';
import { ControlledOperations } from './controlled-operations.ts';
import { concurrencies, conflict, operationLists } from './random-operations.ts';
import type { RandomOperation } from './random-operations.ts';

class Model {
  readonly begun: number[] = [];
  readonly #list: readonly RandomOperation[];
  readonly #concurrency: number;
  readonly #ended = new Set<number>();
  #pushed = 0;

  constructor(list: readonly RandomOperation[], concurrency: number) {
    this.#list = list;
    this.#concurrency = concurrency;
  }

  get underWay(): number[] {
    return this.begun.filter((i) => !this.#ended.has(i));
  }

  push(): void {
    this.#pushed++;
    this.#start();
  }

  end(i: number): void {
    this.#ended.add(i);
    this.#start();
  }

  #start(): void {
    while (this.underWay.length < this.#concurrency) {
      const ready = [...Array(this.#pushed).keys()].filter((i) => this.#mayBegin(i));
      const [next] = ready.sort((a, b) => this.#list[b]!.priority - this.#list[a]!.priority || a - b);
      if (next === undefined) return;
      this.begun.push(next);
    }
  }

  #mayBegin(i: number): boolean {
    const operation = this.#list[i]!;
    if (this.begun.includes(i)) return false;
    return this.#list.slice(0, i).every((earlier, j) => {
      const isInTheWay = conflict(earlier, operation) && !this.#ended.has(j);
      const isAheadInLane =
        operation.lane !== undefined && earlier.lane === operation.lane && !this.begun.includes(j);
      return !isInTheWay && !isAheadInLane;
    });
  }
}

describe('any operations, pushed and ended in any order', () => {
  it('begin exactly when the model says', async () => {
    const choices = fc.infiniteStream(fc.nat());
    await fc.assert(
      fc.asyncProperty(operationLists, concurrencies, choices, async (list, concurrency, stream) => {
        const engine = new DependencyEngine({ concurrency });
        const operations = new ControlledOperations(engine);
        const model = new Model(list, concurrency);
        const pushed: Promise<string>[] = [];
        while (pushed.length < list.length || model.underWay.length > 0) {
          const choice = stream.next().value as number;
          const { underWay } = model;
          if (pushed.length < list.length && (underWay.length === 0 || choice % 2 === 0)) {
            const { reads, mutates, priority, lane } = list[pushed.length]!;
            pushed.push(operations.push(`${pushed.length}`, { reads, mutates, priority, inOrder: lane }));
            model.push();
          } else {
            const ending = underWay[choice % underWay.length]!;
            await operations.end(`${ending}`);
            model.end(ending);
          }
          expect(operations.begun).toEqual(model.begun.map(String));
        }
        expect(await Promise.all(pushed)).toEqual(list.map((_, i) => `${i}`));
        expect(engine.size).toBe(0);
      }),
      { numRuns: 300 },
    );
  });
});
