/**
 * A client's pushes of which several fail at once: its workers get one error, and the others end no
 * process.
 */
import { expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { ClientServers, type ClientServersOptions } from '../../src/exchange/client-servers.ts';
import { ClientLink } from '../../src/exchange/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Operation } from '../../src/plan/index.ts';
import { Replica } from '../../src/runtime/index.ts';
import { smallModels } from '../runner/small-models.ts';

it.each(['sums', 'updates'] as const)('rejects once where servers keep %s', async (kind) => {
  const compute = new OnnxCompute();
  const space = SharedSpace.create();
  const { model, optimizer } = smallModels.rows();
  const replica = new Replica(model, { compute, space, optimizer, maxBatch: 4 });
  const { memory, kernels } = replica;
  const segment = space.allocate(2 ** 20);
  const thread = {
    allocate: (...args: Parameters<typeof segment.allocate>) => segment.allocate(...args),
    free: () => Promise.resolve(),
  } as unknown as ClientServersOptions['thread'];
  const workers = { group: 0, size: 1, index: 0 };
  // The fault is forced: all requests to a server that goes away fail at the same moment.
  const gone = () => Promise.reject(new Error('the server is gone'));
  const store = {
    allocate: (length: number) => segment.allocate('float32', length),
    ...{ pushRows: gone, pushpull: gone, close: () => Promise.resolve() },
  };
  const servers = new ClientServers(
    { thread, memory, kernels, kind, leaders: workers, link: new ClientLink(thread, workers) },
    store as never,
  );
  const unhandled: unknown[] = [];
  const note = (reason: unknown) => void unhandled.push(reason);
  process.on('unhandledRejection', note);
  const handlers = servers.handlers({
    ...{ samples: () => 4, push: () => ({ samples: 4, lr: undefined }) },
    ...{ checkLoss: () => undefined, onAveraged: () => undefined },
  });
  const [push, pull] = (['push', 'pull'] as const).map((one) => handlers({ kind: one } as Operation)!);
  push!.start();
  pull!.start();
  await expect(pull!.wait()).rejects.toThrow('the server is gone');
  // Those that nobody handles are told when the microtasks are done.
  await new Promise(setImmediate);
  process.off('unhandledRejection', note);
  expect(unhandled).toEqual([]);
  await servers.close();
  replica.close();
  compute.close();
});
