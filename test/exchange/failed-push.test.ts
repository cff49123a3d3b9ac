/**
 * Steps on servers that must not be made: a push that fails while the backward pass goes on, and a
 * loss that is not a number. Nothing is updated then, here or there, and no promise is left alone.
 */
import { expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { ServerExchange, type ServerExchangeOptions } from '../../src/exchange/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { stepProgram } from '../../src/plan/index.ts';
import { Replica, replicaOperations, StepContext, StepWalk } from '../../src/runtime/index.ts';
import { circlesModel } from '../runner/circles.ts';

interface FakeAnswers {
  readonly push: () => Promise<unknown>;
  readonly apply?: () => Promise<unknown>;
  readonly checkLoss?: () => void;
}

/** One step of a worker all of whose parameters are on servers that answer so. */
async function open({ push, apply = () => Promise.resolve(), checkLoss = () => undefined }: FakeAnswers) {
  const compute = new OnnxCompute();
  const replica = new Replica(circlesModel(), {
    ...{ compute, space: SharedSpace.create(), optimizer: { name: 'sgd', lr: 0.1 }, maxBatch: 4 },
  });
  const { memory, kernels } = replica;
  const names = [...memory.gradients.keys()];
  let isAborted = false;
  // The fault is forced: a server that goes between two groups of a step cannot be timed from outside.
  const store = {
    ...{ init: () => Promise.resolve(), value: () => undefined, settle: () => undefined },
    ...{ push, apply },
  };
  const servers = {
    store,
    close: () => Promise.resolve(),
    abort: () => Promise.resolve(void (isAborted = true)),
  };
  const step = new StepContext();
  const exchange = await ServerExchange.open({
    ...{ servers, memory, kernels, names: new Set(names), step, hasExactRows: true, steps: 0 },
    ...{ operations: new Map(), firstSlots: new Map() },
    thread: { world: { rank: 0, size: 1, hosts: ['a'] } },
  } as unknown as ServerExchangeOptions);
  step.begin([0, 1, 2, 3], undefined);
  step.elsewhere = exchange.elsewhere;
  replica.setGroups(names.map((name) => [name]));
  const operations = stepProgram({
    ...{ parameters: names, groups: names.map((name) => [name]), tables: new Set<string>(), transforms: [] },
    ...{ routes: new Map(names.map((name) => [name, 'server dense'])), hasStates: false, hasAverages: false },
  }).operations.filter(({ kind }) => kind !== 'load' && kind !== 'reduce');
  const walk = StepWalk.bind(
    { operations },
    {
      parts: [replicaOperations({ replica, step, checkLoss }), exchange.handlers()],
      finishedSteps: () => replica.step,
    },
  );
  const values = () => names.map((name) => [...memory.parameters.get(name)!.view]);
  const close = async () => {
    await exchange.abort();
    expect(isAborted).toBe(true);
    replica.close();
    compute.close();
  };
  return { walk, replica, values, close };
}

it('a failed push is thrown by the step, before anything is updated, and by nothing else', async () => {
  const { walk, replica, values, close } = await open({
    push: () => Promise.reject(new Error('the server is gone')),
  });
  const before = values();
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => void unhandled.push(reason);
  process.on('unhandledRejection', note);
  const walked = Promise.resolve(walk.step());
  walked.catch(() => undefined);
  // Those that nobody handles are told when the microtasks are done.
  await new Promise(setImmediate);
  process.off('unhandledRejection', note);
  expect(unhandled).toEqual([]);
  await expect(walked).rejects.toThrow('the server is gone');
  expect(values()).toEqual(before);
  expect(replica.step).toBe(0);
  await close();
});

it('a loss that is refused updates nothing, here or on servers, and another step may follow', async () => {
  let [applied, isRefused] = [0, true];
  const { walk, replica, values, close } = await open({
    push: () => Promise.resolve([{ sumOfSquares: 1 }]),
    apply: () => Promise.resolve(void applied++),
    checkLoss: () => {
      if (isRefused) throw new Error('not a number');
    },
  });
  const before = values();
  await expect(Promise.resolve(walk.step())).rejects.toThrow('not a number');
  expect({ values: values(), applied, step: replica.step }).toEqual({ values: before, applied: 0, step: 0 });
  isRefused = false;
  await walk.step();
  await walk.settle();
  expect({ applied, step: replica.step }).toEqual({ applied: 1, step: 1 });
  await close();
});
