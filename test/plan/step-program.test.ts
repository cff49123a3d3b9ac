/** The program of a training step: what is in it, what an operation waits for, and when two programs are the same. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { dependenciesOf, stepProgram, type Operation, type StepFacts } from '../../src/plan/index.ts';

const FACTS: StepFacts = {
  parameters: ['words', 'first.w', 'first.b', 'output.w'],
  groups: [['output.w'], ['first.w', 'first.b', 'words']],
  tables: new Set(['words']),
  hasStates: false,
  hasAverages: false,
  transforms: [],
};
const ON_SERVERS = {
  ...FACTS,
  routes: new Map([
    ['words', 'server rows'],
    ['first.w', 'collective'],
    ['first.b', 'server dense'],
    ['output.w', 'server dense'],
  ] as const),
  fetched: new Set(['words', 'output.w']),
};

function named({ operations }: { readonly operations: readonly Operation[] }): string[] {
  return operations.map(({ lane, name }) => `${lane}: ${name}`);
}

describe('a step program', () => {
  it('of one device has no lane but that which computes', () => {
    const program = stepProgram({
      ...{ ...FACTS, hasStates: true, hasAverages: true, checkpointEverySteps: 50 },
      transforms: [{ kind: 'norm', name: 'norm' }],
    });
    expect(new Set(program.operations.map(({ lane }) => lane))).toEqual(new Set(['compute']));
    expect(program.operations.map(({ name, every }) => (every ? `${name} (${every})` : name))).toEqual([
      ...['load batch', 'forward', 'backward output', 'backward words..first', 'states', 'norm', 'update'],
      ...['average', 'evaluate (call)', 'checkpoint (50)'],
    ]);
  });

  it('sends the gradients of each group behind its segment, cut where one goes to servers', () => {
    expect(named(stepProgram(ON_SERVERS))).toEqual([
      ...['compute: load batch', 'servers: pull output', 'servers: pull rows words', 'compute: forward'],
      ...['compute: backward output', 'communication: allreduce loss', 'servers: push output'],
      ...['compute: backward words..first', 'communication: allreduce first.w', 'servers: push first.b'],
      ...['servers: push words', 'compute: update', 'servers: apply', 'compute: evaluate'],
    ]);
  });

  it('makes every update and apply read the loss, and with clipping the scale of all gradients', () => {
    const { operations } = stepProgram({ ...ON_SERVERS, transforms: [{ kind: 'norm', name: 'norm' }] });
    const norm = operations.find(({ kind }) => kind === 'norm')!;
    expect(norm.reads).toEqual(expect.arrayContaining(['loss', 'held gradients']));
    expect(norm.mutates).toEqual(expect.arrayContaining(['scale', 'gradients 0', 'gradients 1']));
    for (const kind of ['update', 'apply']) {
      expect(operations.find((one) => one.kind === kind)!.reads).toEqual(
        expect.arrayContaining(['loss', 'scale']),
      );
    }
  });

  it('waits for other lanes only, in this step and the one before', () => {
    const { operations } = stepProgram(ON_SERVERS);
    const { sameStep, stepBefore } = dependenciesOf(operations);
    const at = (name: string) => operations.findIndex((one) => one.name === name);
    const namesOf = (numbers: readonly number[]) => numbers.map((number) => operations[number]!.name);
    expect(namesOf(sameStep[at('forward')]!)).toEqual(['pull rows words']);
    expect(namesOf(stepBefore[at('forward')]!)).toEqual(['allreduce loss']);
    expect(namesOf(sameStep[at('push output')]!)).toEqual(['backward output']);
    expect(namesOf(sameStep[at('apply')]!)).toEqual(['allreduce loss', 'backward words..first']);
    expect(namesOf(sameStep[at('update')]!)).toEqual(['allreduce first.w']);
  });

  it('has another hash if something is done otherwise, and the same for other times', () => {
    const { hash } = stepProgram(ON_SERVERS);
    const predicted = { forwardMs: 1, backwardMs: [2, 3], messageMs: new Map([['words', 4]]) };
    expect(stepProgram({ ...ON_SERVERS, predicted }).hash).toBe(hash);
    expect(stepProgram({ ...ON_SERVERS, fetched: new Set(['words']) }).hash).not.toBe(hash);
    expect(stepProgram({ ...ON_SERVERS, checkpointEverySteps: 5 }).hash).not.toBe(hash);
  });

  it('is frozen', () => {
    const { operations } = stepProgram(FACTS);
    expect(() => (operations as Operation[]).pop()).toThrow(TypeError);
    expect(() => (operations[0]!.mutates as string[]).push('loss')).toThrow(TypeError);
  });
});

describe('dependencies', () => {
  const VARIABLES = ['a', 'b', 'c', 'd'];
  const variables = fc.uniqueArray(fc.constantFrom(...VARIABLES), { maxLength: 3 });
  const operation: fc.Arbitrary<Operation> = fc.record({
    kind: fc.constant('update' as const),
    name: fc.constant(''),
    lane: fc.constantFrom('compute', 'communication', 'servers'),
    reads: variables,
    mutates: variables,
    every: fc.constantFrom(1, 1, 1, 2, 3),
  });
  const programs = fc.array(operation, { minLength: 1, maxLength: 8 });

  it('are enough: lanes that run as fast as they like compute what one after the other does', () => {
    fc.assert(
      fc.property(programs, fc.array(fc.nat(2), { minLength: 60, maxLength: 60 }), (operations, order) => {
        expect(inAnyOrder(operations, order)).toEqual(oneByOne(operations));
      }),
      { numRuns: 300 },
    );
  });

  it('name one operation of each other lane at most, and none behind themselves', () => {
    fc.assert(
      fc.property(programs, (operations) => {
        const { sameStep, stepBefore } = dependenciesOf(operations);
        operations.forEach(({ lane }, at) => {
          const lanes = [...sameStep[at]!, ...stepBefore[at]!].map((before) => operations[before]!.lane);
          expect(new Set([...lanes, lane]).size).toBe(lanes.length + 1);
          expect(sameStep[at]!.every((before) => before < at)).toBe(true);
        });
      }),
    );
  });

  const STEPS = 4;

  /** A variable's value is the history of what made it. */
  class State {
    readonly #values = new Map<string, string>(VARIABLES.map((name) => [name, name]));

    run(operation: Operation, at: number, step: number): void {
      if (step % (operation.every as number) !== 0) return;
      const read = [...operation.reads, ...operation.mutates].map((name) => this.#values.get(name)!);
      for (const name of operation.mutates) {
        const text = `${at}@${step}:${name}(${read.join()})`;
        // Its text in short: two histories are equal if their texts are.
        this.#values.set(name, `${at}@${step}#${hashOf(text)}`);
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

  function oneByOne(operations: readonly Operation[]): [string, string][] {
    const state = new State();
    for (let step = 0; step < STEPS; step++) operations.forEach((one, at) => state.run(one, at, step));
    return state.values;
  }

  /** `order` says which lane goes on next, where it can. */
  function inAnyOrder(operations: readonly Operation[], order: readonly number[]): [string, string][] {
    const { sameStep, stepBefore } = dependenciesOf(operations);
    const lanes = ['compute', 'communication', 'servers'].map((lane) =>
      Array.from({ length: STEPS }, (_, step) =>
        operations.flatMap((one, at) => (one.lane === lane ? [{ at, step }] : [])),
      ).flat(),
    );
    const ended = new Set<string>();
    const hasEnded = (at: number, step: number) => step < 0 || ended.has(`${at}@${step}`);
    const state = new State();
    const total = STEPS * operations.length;
    for (let turn = 0; ended.size < total; turn++) {
      const preferred = order[turn % order.length]!;
      const able = [0, 1, 2]
        .map((i) => lanes[(preferred + i) % 3]!)
        .find(([next]) => {
          if (!next) return false;
          const { at, step } = next;
          return (
            sameStep[at]!.every((one) => hasEnded(one, step)) &&
            stepBefore[at]!.every((one) => hasEnded(one, step - 1))
          );
        });
      if (!able) throw new Error('all lanes wait for each other');
      const { at, step } = able.shift()!;
      state.run(operations[at]!, at, step);
      ended.add(`${at}@${step}`);
    }
    return state.values;
  }
});
