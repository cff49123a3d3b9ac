/** What an exchange with servers on other hosts reports of its messages: parameters are not read in place there. */
import { expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { ServerExchange, type OnMessage, type ServerExchangeOptions } from '../../src/exchange/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { stepProgram } from '../../src/plan/index.ts';
import { Replica, replicaOperations, StepContext, StepWalk } from '../../src/runtime/index.ts';
import { traced } from '../runner/traced.ts';

it('are named by what they carry', async () => {
  const compute = new OnnxCompute();
  const space = SharedSpace.create();
  const { model } = traced({ trace: '' });
  const replica = new Replica(model, {
    ...{ compute, space, optimizer: { name: 'sgd', lr: 0.1 }, maxBatch: 4 },
  });
  const { memory, kernels } = replica;
  const names = [...memory.gradients.keys()];
  const segment = space.allocate(1 << 16);
  // Answers at once; where parameters are is what matters here.
  const answer = () => Promise.resolve({ sumOfSquares: 1 });
  const answers = () => Promise.resolve([{ sumOfSquares: 1 }]);
  const store = {
    ...{ init: answer, value: () => undefined, pull: answers, push: answers, apply: answer },
    ...{ pullRows: answer, pushRows: answer, settle: () => undefined },
    allocate: (length: number) => segment.allocate('float32', length),
  };
  const step = new StepContext();
  const exchange = await ServerExchange.open({
    ...{ servers: { store, close: answer, abort: answer }, memory, kernels, names: new Set(names) },
    ...{ step, hasExactRows: true, steps: 0 },
    ...{ operations: new Map(), firstSlots: new Map() },
    thread: { world: { rank: 0, size: 1, hosts: ['a'] } },
  } as unknown as ServerExchangeOptions);
  step.elsewhere = exchange.elsewhere;
  const messages: string[] = [];
  const told: OnMessage = (operation, name, startedMs, endedMs, bytes) => {
    expect(endedMs).toBeGreaterThanOrEqual(startedMs);
    messages.push(`${operation}: ${name}, ${bytes}`);
  };
  const groups = [names.slice(0, 2), names.slice(2)];
  replica.setGroups(groups);
  const operations = stepProgram({
    ...{ parameters: [...memory.parameters.keys()], groups, tables: new Set(['embedding.table']) },
    ...{
      routes: new Map(
        names.map((name) => [name, name === 'embedding.table' ? 'server rows' : 'server dense']),
      ),
    },
    ...{ fetched: new Set(exchange.fetched), hasStates: true, hasAverages: false },
    transforms: [{ kind: 'norm', name: 'norm' }],
  }).operations.filter(({ kind }) => kind !== 'reduce');
  const walk = StepWalk.bind(
    { operations },
    {
      parts: [
        ({ kind }) => (kind === 'load' ? () => step.begin([0, 1, 2, 3], undefined) : undefined),
        replicaOperations({ replica, step, checkLoss: () => undefined }),
        exchange.handlers(),
      ],
      finishedSteps: () => replica.step,
      onMessage: ({ kind, name }, { startedMs, endedMs, bytes }) =>
        told(kind, name, startedMs, endedMs, bytes),
    },
  );
  await walk.step();
  await walk.settle();
  exchange.traceTo(told);
  messages.length = 0;
  await walk.step();
  await walk.settle();
  await exchange.fetchAll();
  expect(new Set(exchange.fetched)).toEqual(new Set(names));
  // All samples look up row 0. Elements: table 40 x 8, first 96 + 12, norm 12 + 12, output 24 + 2.
  const pushes = messages.splice(2, 3).sort();
  expect(pushes).toEqual([
    ...['push: push embedding, 36', 'push: push first..norm, 528', 'push: push output, 104'],
  ]);
  expect(messages).toEqual([
    // In the order of the program, in which they are waited for.
    'pull: pull first..output, 632',
    'pull rows: pull rows embedding, 32',
    'apply: apply, undefined',
    'pull: pull embedding..output, 1912',
  ]);
  await exchange.close();
  replica.close();
  compute.close();
});
