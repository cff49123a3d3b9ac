/** Training through clients of workers, which servers see as one worker each, follows the single process. */
import { afterAll, beforeAll, describe } from 'vitest';
import { createClientStore } from '../../src/kvstore/index.ts';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { inGroupsOf } from './collective-ranks.ts';
import { Servers } from './servers.ts';
import { onRanks, STORE_SETTINGS, trainingSuite } from './training-support-suite.ts';

describe.skipIf(!hasSharedMemory())('workers of clients', () => {
  let ground: Servers;
  beforeAll(async () => {
    ground = await Servers.start(2, { cores: 2 });
  });
  afterAll(() => ground.close());

  const open = (workersOfClient: number) => async (workers: number) => {
    const sizes = inGroupsOf(workersOfClient, workers);
    const access = ground.createService();
    const behind = await ground.connect(sizes.length, { ...STORE_SETTINGS, access });
    return onRanks({ sizes }, (group, worker) => {
      const store = group.rank === 0 ? behind[group.id - 1] : undefined;
      return createClientStore({ group, store, worker, workers, combine: STORE_SETTINGS.combine });
    });
  };

  // Three workers are two clients of different sizes.
  trainingSuite('clients of two workers', open(2), 5);
});
