/**
 * The program of a training step: what is in it, what an operation waits for, and when two programs
 * are the same. That what they wait for is enough is held by test/runtime/step-walk.test.ts, on what
 * walks them.
 */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  clientProgram,
  dependenciesOf,
  lastOfLanes,
  stepProgram,
  type ClientFacts,
  type Operation,
  type StepFacts,
} from '../../src/plan/index.ts';

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

  it('has what servers do around updates at their apply, and it counts for the hash', () => {
    const facts = { ...ON_SERVERS, aroundUpdates: ['clip', 'average slow'] };
    const [bare, full] = [stepProgram(ON_SERVERS), stepProgram(facts)];
    const apply = full.operations.find(({ kind }) => kind === 'apply')!;
    expect(apply.around).toEqual(['clip', 'average slow']);
    expect(full.hash).not.toBe(bare.hash);
  });

  it('numbers what workers do to gradients as the model does, also where servers do some of it', () => {
    const { operations } = stepProgram({
      ...ON_SERVERS,
      transforms: [
        { kind: 'norm', name: 'norm', number: 1 },
        { kind: 'update', name: 'weight decay', number: 3 },
      ],
    });
    const transforms = operations.filter(({ form }) => form === 'transform');
    expect(transforms.map(({ number }) => number)).toEqual([1, 3]);
  });

  it('waits for other lanes only, in this step and the one before', () => {
    const { operations } = stepProgram(ON_SERVERS);
    const waits = dependenciesOf(operations);
    const [stepBefore, sameStep] = ([1, 0] as const).map((before) =>
      waits.map((all) => all.filter((wait) => wait.stepsBefore === before).map((wait) => wait.at)),
    ) as [number[][], number[][]];
    const at = (name: string) => operations.findIndex((one) => one.name === name);
    const namesOf = (numbers: readonly number[]) => numbers.map((number) => operations[number]!.name);
    expect(namesOf(sameStep[at('forward')]!)).toEqual(['pull output', 'pull rows words']);
    expect(namesOf(stepBefore[at('forward')]!)).toEqual(['allreduce loss', 'apply']);
    expect(namesOf(sameStep[at('push output')]!)).toEqual(['backward output']);
    expect(namesOf(sameStep[at('apply')]!)).toEqual([
      ...['forward', 'backward output', 'allreduce loss', 'backward words..first', 'update'],
    ]);
    // A push that failed leaves parameters as they were.
    expect(namesOf(sameStep[at('update')]!)).toEqual(['allreduce loss', 'allreduce first.w', 'push words']);
    expect(namesOf(stepBefore[at('backward output')]!)).toEqual(['push output', 'apply']);
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

  it('name operations of other lanes only, and none behind themselves', () => {
    fc.assert(
      fc.property(programs, (operations) => {
        dependenciesOf(operations).forEach((waits, at) => {
          const lanes = waits.map((wait) => operations[wait.at]!.lane);
          expect(lanes).not.toContain(operations[at]!.lane);
          expect(waits.every((wait) => wait.stepsBefore === 1 || wait.at < at)).toBe(true);
          const last = lastOfLanes(operations, waits).map((wait) => operations[wait.at]!.lane);
          expect(new Set(last)).toEqual(new Set(lanes));
          expect(new Set(last).size).toBe(last.length);
        });
      }),
    );
  });

  it('are not hidden by an operation that is not due in every step', () => {
    const program = (every: 1 | undefined, ...mutated: string[]): Operation[] => [
      { kind: 'update', name: 'first', lane: 'communication', reads: [], mutates: ['a'] },
      {
        ...{ kind: 'update', name: 'second', lane: 'servers', reads: [], mutates: mutated },
        ...(every === undefined ? {} : { every }),
      },
      { kind: 'update', name: 'third', lane: 'compute', reads: ['a'], mutates: [] },
    ];
    expect(dependenciesOf(program(undefined, 'a'))[2]).toEqual([{ at: 1, stepsBefore: 0 }]);
    expect(dependenciesOf(program(1, 'a'))[2]).toEqual([
      { at: 0, stepsBefore: 0 },
      { at: 1, stepsBefore: 0 },
    ]);
  });
});

const CLIENT: ClientFacts = {
  ...{ parameters: FACTS.parameters, tables: FACTS.tables, trained: FACTS.groups.flat() },
  ...{ hasStates: true, hasAverages: true, transforms: [{ kind: 'norm', name: 'norm' }] },
  ...{ servers: 'sums', hasSeveral: true, compareEverySteps: 9 },
};

describe('the program of a client', () => {
  it('combines gradients in the client, then with servers, and shares what came of it', () => {
    expect(named(clientProgram(CLIENT))).toEqual([
      ...['compute: load batch', 'compute: check', 'compute: forward', 'compute: backward words..output'],
      ...['communication: allreduce first..output', 'communication: row counts', 'communication: rows words'],
      ...['servers: push words..output', 'servers: pull words..output'],
      ...['communication: broadcast words..output', 'compute: states', 'compute: norm', 'compute: update'],
      ...['compute: average', 'compute: evaluate'],
    ]);
  });

  it('of one worker, whose servers update, clips before it pushes, and shares nothing', () => {
    expect(named(clientProgram({ ...CLIENT, servers: 'updates', hasSeveral: false }))).toEqual([
      ...['compute: load batch', 'servers: pull rows words', 'compute: forward'],
      ...['compute: backward words..output', 'compute: states', 'compute: norm'],
      ...['servers: push words..output', 'servers: pull first..output', 'compute: average'],
      'compute: evaluate',
    ]);
  });

  it('meets the centre now and then, behind the update of its own', () => {
    const { operations } = clientProgram({ ...CLIENT, servers: 'centre', averageEverySteps: 64 });
    const names = operations.map(({ name, every }) => (every ? `${name} (${every})` : name));
    expect(names.slice(-4)).toEqual(['update', 'average', 'elastic exchange (64)', 'evaluate (call)']);
  });
});
