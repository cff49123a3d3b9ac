/** A push that fails while the backward pass goes on: nobody waits for it yet, and the process must not end by it. */
import { expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { ServerExchange, type ServerExchangeOptions } from '../../src/exchange/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { Replica } from '../../src/runtime/index.ts';
import { circlesModel } from '../runner/circles.ts';

it('is told by finish, and by nothing else', async () => {
  const compute = new OnnxCompute();
  const space = SharedSpace.create();
  const replica = new Replica(circlesModel(), {
    ...{ compute, space, optimizer: { name: 'sgd', lr: 0.1 }, maxBatch: 4 },
  });
  const { memory, kernels } = replica;
  const names = [...memory.gradients.keys()];
  let isAborted = false;
  // The fault is forced: a server that goes between two groups of a step cannot be timed from outside.
  const store = {
    init: () => Promise.resolve(),
    value: () => undefined,
    push: () => Promise.reject(new Error('the server is gone')),
    settle: () => undefined,
  };
  const servers = {
    store,
    close: () => Promise.resolve(),
    abort: () => Promise.resolve(void (isAborted = true)),
  };
  const exchange = await ServerExchange.open({
    ...{ servers, memory, kernels, names: new Set(names), groups: names.map((name) => [name]) },
    ...{ hasExactRows: true, steps: 0, thread: { world: { rank: 0, size: 1, hosts: ['a'] } } },
  } as unknown as ServerExchangeOptions);
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => void unhandled.push(reason);
  process.on('unhandledRejection', note);
  exchange.begin(4);
  exchange.start(0);
  // Those that nobody handles are told when the microtasks are done.
  await new Promise(setImmediate);
  process.off('unhandledRejection', note);
  expect(unhandled).toEqual([]);
  await expect(exchange.finish()).rejects.toThrow('the server is gone');
  await exchange.abort();
  expect(isAborted).toBe(true);
  replica.close();
  compute.close();
});
