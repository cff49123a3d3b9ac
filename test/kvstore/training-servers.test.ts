/** Training through servers follows the single process: gradients in place and over TCP, dense and by rows. */
import { afterAll, beforeAll, describe } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { Servers } from './servers.ts';
import { opened, STORE_SETTINGS, trainingSuite } from './training-support-suite.ts';

describe.skipIf(!hasSharedMemory())('workers of servers', () => {
  let ground: Servers;
  beforeAll(async () => {
    ground = await Servers.start(2, { cores: 2 });
  });
  afterAll(() => ground.close());

  const open = (sharedMemory: boolean) => async (workers: number) =>
    opened(
      await ground.connect(workers, { ...STORE_SETTINGS, access: ground.createService(), sharedMemory }),
    );

  trainingSuite('servers in place', open(true));
  trainingSuite('servers over TCP', open(false));
});
