/** What an exchange with servers on other hosts reports of its messages: parameters are not read in place there. */
import { expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { ServerExchange, type ServerExchangeOptions } from '../../src/exchange/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';
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
  const exchange = await ServerExchange.open({
    ...{ servers: { store, close: answer, abort: answer }, memory, kernels, names: new Set(names) },
    ...{ groups: [names.slice(0, 2), names.slice(2)], hasExactRows: true, steps: 0 },
    thread: { world: { rank: 0, size: 1, hosts: ['a'] } },
  } as unknown as ServerExchangeOptions);
  const messages: string[] = [];
  const step = async () => {
    await exchange.prepare(4);
    exchange.begin(4);
    replica.computeGradients([0, 1, 2, 3]);
    exchange.start(0);
    exchange.start(1);
    await exchange.finish();
    exchange.apply({ scale: 1 });
  };
  await step();
  exchange.traceTo((operation, name, startedMs, endedMs, bytes) => {
    expect(endedMs).toBeGreaterThanOrEqual(startedMs);
    messages.push(`${operation}: ${name}, ${bytes}`);
  });
  await step();
  await exchange.fetchAll();
  expect(exchange.fetches).toBe('pull');
  // All samples look up row 0. Elements: table 40 x 8, first 96 + 12, norm 12 + 12, output 24 + 2.
  const pushes = messages.splice(2, 3).sort();
  expect(pushes).toEqual([
    ...['push: push embedding, 36', 'push: push first..norm, 528', 'push: push output, 104'],
  ]);
  expect(messages).toEqual([
    'pull rows: pull rows embedding, 32',
    'pull: pull first..output, 632',
    'apply: apply, undefined',
    'pull: pull embedding..output, 1912',
  ]);
  await exchange.close();
  replica.close();
  compute.close();
});
