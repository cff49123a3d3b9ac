/** The conformance suite of transports, over TCP with one and with three connections for each peer. */
import { describe, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import { closingScenario, scenarios } from './conformance.ts';
import { runRanks } from './ranks.ts';
import { SECRET } from '../support/secrets.ts';

describe.skipIf(!hasSharedMemory()).each([1, 3])(
  'the TCP transport, %i connections',
  (connectionsPerPeer) => {
    for (const scenario of [...scenarios, closingScenario]) {
      it.each(scenario.sizes)(`${scenario.name}, %i ranks`, async (size) => {
        await runRanks(scenario, size, async () => {
          const space = SharedSpace.create({ maxBytes: 256 * 2 ** 20 });
          const transport = await createTcpTransport({ space, secret: SECRET, connectionsPerPeer });
          return { transport, space, segment: (byteLength) => space.allocate(byteLength) };
        });
      });
    }
  },
);
