/**
 * What a store sends to a server that was started again before anything was trained, while pushes to
 * its other cores are answered.
 */
import { expect, it } from 'vitest';
import type { CoreLine } from '../../src/kvstore/remote/core-line.ts';
import type { KeyTable } from '../../src/kvstore/remote/key-table.ts';
import { StoreRecovery } from '../../src/kvstore/remote/recovery.ts';
import type { StoreCheckpoints } from '../../src/kvstore/remote/store-checkpoints.ts';

it('sends first values and optimizer to a core though pushes to another one are answered meanwhile', async () => {
  const sent: string[] = [];
  const line = {
    options: { title: 'server 0' },
    request: ({ op }: { readonly op: string }) => Promise.resolve(void sent.push(op)),
    announceAgain: () => Promise.resolve(),
  } as unknown as CoreLine;
  const keys = {
    leaveValues: () => false,
    openAgain: () => {
      recovery.hasBegun();
      return Promise.resolve(false);
    },
    sendFirstValuesAgain: () => Promise.resolve(void sent.push('values')),
    forgetFirstValues: () => void sent.push('values forgotten'),
  } as unknown as KeyTable;
  const recovery = new StoreRecovery({
    ...{ worker: 0, lines: [line], keys, told: [], isSynchronous: false },
    ...{ checkpoints: {} as StoreCheckpoints, host: { randomHex: () => '00' } },
  });
  recovery.setOptimizer(0, { name: 'sgd', lr: 1 });
  await recovery.onRestart(line);
  expect(sent).toEqual(['values', 'optimizer', 'values forgotten']);
});
