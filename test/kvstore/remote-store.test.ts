/** Stores whose parameters are on servers: the contract, on shared memory and over TCP, with one to four servers. */
import { afterAll, beforeAll, describe } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { storeConformance } from './conformance.ts';
import { Servers } from './servers.ts';

const layouts = [
  { servers: 1, cores: 2, sharedMemory: true },
  { servers: 2, cores: 2, sharedMemory: true },
  { servers: 4, cores: 1, sharedMemory: true },
  { servers: 1, cores: 3, sharedMemory: false },
  { servers: 4, cores: 2, sharedMemory: false },
];

describe.skipIf(!hasSharedMemory()).each(layouts)(
  'stores on $servers servers of $cores cores, shared memory: $sharedMemory',
  ({ servers, cores, sharedMemory }) => {
    let ground: Servers;
    beforeAll(async () => {
      ground = await Servers.start(servers, { cores });
    });
    afterAll(() => ground.close());

    storeConformance('the contract', ({ workers, ...settings }) =>
      ground.connect(workers, { ...settings, access: ground.createService(), sharedMemory }),
    );
  },
);
