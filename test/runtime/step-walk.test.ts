/**
 * What walks a step program: it comes to what the list does one after the other, whatever other lanes
 * do meanwhile; it waits where it must and nowhere else.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Operation } from '../../src/plan/index.ts';
import { StepWalk, type Handler, type LaneHandler } from '../../src/runtime/index.ts';

const VARIABLES = ['a', 'b', 'c', 'd'];
const variables = fc.uniqueArray(fc.constantFrom(...VARIABLES), { maxLength: 3 });
const operation: fc.Arbitrary<Operation> = fc.record({
  kind: fc.constant('update' as const),
  name: fc.constant(''),
  lane: fc.constantFrom('compute', 'communication', 'servers'),
  reads: variables,
  mutates: variables,
  every: fc.constantFrom(undefined, undefined, undefined, 1, 2, 3),
});
const programs = fc.array(operation, { minLength: 1, maxLength: 8 });
const STEPS = 5;

/** A variable's value is the history of what made it. */
class State {
  readonly #values = new Map<string, string>(VARIABLES.map((name) => [name, name]));

  run(one: Operation, at: number, step: number): void {
    const read = [...one.reads, ...one.mutates].map((name) => this.#values.get(name)!);
    for (const name of one.mutates) {
      // Its text in short: two histories are equal if their texts are.
      this.#values.set(name, `${at}@${step}#${hashOf(`${at}@${step}:${name}(${read.join()})`)}`);
    }
  }

  get values(): [string, string][] {
    return [...this.#values];
  }
}

function hashOf(text: string): number {
  let hash = 0;
  for (const character of text) hash = (Math.imul(hash, 31) + character.charCodeAt(0)) | 0;
  return hash;
}

function isDue({ every }: Operation, step: number): boolean {
  return every === undefined || (step > 0 && step % (every as number) === 0);
}

function oneByOne(operations: readonly Operation[]): [string, string][] {
  const state = new State();
  for (let step = 0; step < STEPS; step++) {
    operations.forEach((one, at) => {
      if (isDue(one, step)) state.run(one, at, step);
    });
  }
  return state.values;
}

/** Threads of lanes, which run what they were given in order, whenever a number of the list lets them. */
class Lanes {
  readonly state = new State();
  step = 0;
  /** Waits with promises, where this says so. */
  readonly #waitsLater: boolean;
  readonly #given: Record<'communication' | 'servers', { readonly act: () => void }[]> = {
    ...{ communication: [], servers: [] },
  };
  readonly #speeds: readonly number[];
  #turn = 0;

  constructor(speeds: readonly number[], waitsLater: boolean) {
    this.#speeds = speeds;
    this.#waitsLater = waitsLater;
  }

  handlerOf(operations: readonly Operation[]): (one: Operation) => Handler {
    return (one) => {
      const at = operations.indexOf(one);
      const { lane } = one;
      if (lane === 'compute') {
        return () => {
          this.#letRun();
          this.state.run(one, at, this.step);
          this.#letRun();
        };
      }
      let hasEnded = true;
      // It may be started a step later.
      const due = Array.from({ length: STEPS }, (_, step) => step).filter((step) => isDue(one, step));
      const handler: LaneHandler = {
        start: () => {
          expect(hasEnded).toBe(true);
          hasEnded = false;
          const step = due.shift()!;
          const act = () => {
            this.state.run(one, at, step);
            hasEnded = true;
          };
          this.#given[lane].push({ act });
          this.#letRun();
        },
        hasEnded: () => {
          this.#letRun();
          return hasEnded;
        },
        wait: () => {
          const run = () => {
            while (!hasEnded) this.#given[lane].shift()!.act();
          };
          if (!this.#waitsLater) return run();
          return Promise.resolve().then(run);
        },
      };
      return handler;
    };
  }

  /** Some of what was given. */
  #letRun(): void {
    const speed = this.#speeds[this.#turn++ % this.#speeds.length]!;
    for (const [i, lane] of (['communication', 'servers'] as const).entries()) {
      for (let left = Math.floor(speed / 4 ** i) % 4; left > 0; left--) this.#given[lane].shift()?.act();
    }
  }
}

async function walked(
  operations: readonly Operation[],
  speeds: readonly number[],
  waitsLater: boolean,
): Promise<[string, string][]> {
  const lanes = new Lanes(speeds, waitsLater);
  const walk = StepWalk.bind(
    { operations },
    { parts: [lanes.handlerOf(operations)], finishedSteps: () => lanes.step },
  );
  for (; lanes.step < STEPS; lanes.step++) await walk.step();
  await walk.settle();
  return lanes.state.values;
}

const speeds = fc.array(fc.nat(15), { minLength: 40, maxLength: 40 });

describe('a walk through a program', () => {
  it('computes what one after the other does, with lanes as fast as they like', async () => {
    await fc.assert(
      fc.asyncProperty(programs, speeds, fc.boolean(), async (operations, fast, waitsLater) => {
        expect(await walked(operations, fast, waitsLater)).toEqual(oneByOne(operations));
      }),
      { numRuns: 1000 },
    );
  });

  /** A lane whose operations end when the test says so. */
  function lane(log: string[]): { part: (one: Operation) => Handler; end: (name: string) => void } {
    const ended = new Set<string>();
    return {
      end: (name) => void ended.add(name),
      part: ({ name, lane: where }) => {
        if (where === 'compute') return () => void log.push(name);
        return {
          start: () => {
            ended.delete(name);
            log.push(`start ${name}`);
          },
          hasEnded: () => ended.has(name),
          wait: () => {
            log.push(`wait for ${name}`);
            ended.add(name);
          },
        };
      },
    };
  }

  const one = (
    name: string,
    where: Operation['lane'],
    reads: string[],
    mutates: string[],
    more: Partial<Operation> = {},
  ): Operation => ({ kind: 'update', name, lane: where, reads, mutates, ...more });

  const EXCHANGE = [
    one('compute a', 'compute', [], ['a']),
    one('reduce a', 'communication', [], ['a']),
    one('push a', 'servers', ['a'], ['held']),
    one('compute b', 'compute', [], ['b']),
    one('reduce b', 'communication', [], ['b']),
    one('use a', 'compute', ['a'], []),
    one('apply', 'servers', ['b'], ['held']),
    one('look', 'compute', ['held'], [], { kind: 'evaluate', every: 'call' }),
  ];

  it('starts what waits for another lane as soon as that has ended, and not before', async () => {
    const log: string[] = [];
    const { part, end } = lane(log);
    const walk = StepWalk.bind(
      { operations: EXCHANGE },
      {
        parts: [
          (asked) => (asked.name === 'compute b' ? () => (log.push('b'), end('reduce a')) : part(asked)),
        ],
        finishedSteps: () => 0,
      },
    );
    expect(walk.step()).toBeUndefined();
    expect(log).toEqual([...['compute a', 'start reduce a', 'b', 'start reduce b', 'start push a', 'use a']]);
    // The push of the step before reads what is computed anew.
    log.length = 0;
    expect(walk.step()).toBeUndefined();
    expect(log.slice(0, 2)).toEqual(['wait for push a', 'compute a']);
    log.length = 0;
    await walk.call('evaluate', () => log.push('look'));
    expect(log.at(-1)).toBe('look');
    expect(log).toContain('wait for apply');
  });

  it('fails by the name of an operation that no part can do, before the first step', () => {
    const bind = () => StepWalk.bind({ operations: EXCHANGE }, { parts: [], finishedSteps: () => 0 });
    expect(bind).toThrow("no part of this worker can do 'compute a' (update, lane compute)");
  });

  it('asks for what is behind a step when it is due', () => {
    let finished = 0;
    const operations = [
      one('evaluate', 'compute', [], [], { kind: 'evaluate', every: 'call' }),
      one('checkpoint', 'compute', [], [], { kind: 'checkpoint', every: 3 }),
    ];
    const walk = StepWalk.bind({ operations }, { parts: [], finishedSteps: () => finished });
    const due = [1, 2, 3, 4].map((step) => {
      finished = step;
      return walk.isDue('checkpoint', step === 4);
    });
    expect(due).toEqual([false, false, true, true]);
    expect(walk.isDue('check', true)).toBe(false);
  });

  it('goes on with another step behind one that failed', async () => {
    const log: string[] = [];
    const { part } = lane(log);
    let fails = true;
    const walk = StepWalk.bind(
      { operations: EXCHANGE },
      {
        parts: [
          (asked) =>
            asked.name === 'use a'
              ? () => {
                  if (fails) throw new Error('not a number');
                }
              : part(asked),
        ],
        finishedSteps: () => 0,
      },
    );
    expect(() => walk.step()).toThrow('not a number');
    expect(log).not.toContain('start apply');
    fails = false;
    expect(walk.step()).toBeUndefined();
    await walk.settle();
    expect(log.filter((line) => line === 'start apply')).toHaveLength(1);
  });
});
