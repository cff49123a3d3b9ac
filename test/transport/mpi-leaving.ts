/**
 * Scenarios of the MPI transport's own promises: a sender takes back what it may overwrite, and a rank that leaves is
 * named to the others. In the form of the conformance suite.
 */
import { expect } from 'vitest';
import type { Envelope } from '../../src/transport/index.ts';
import type { Endpoint, Scenario } from './conformance.ts';

const LENGTH = 200_000;

function envelope(tag: number, step = 0): Envelope {
  return { group: 9, tag, sequence: 0, step, signature: 1, weight: 1 };
}

/** Returns when rank 0 and rank 1 are both here. */
async function meet(endpoint: Endpoint, step: number): Promise<void> {
  const { transport, rank } = endpoint;
  const receiving = transport.receive(1 - rank, envelope(0, step), endpoint.allocate('uint8', 1));
  transport.send(1 - rank, envelope(0, step), endpoint.allocate('uint8', 1));
  await endpoint.until(() => receiving.done);
}

export const withdrawScenarios: readonly Pick<Scenario, 'name' | 'run'>[] = [
  {
    name: 'takes back a message whose operation the sender forgets',
    async run(endpoint) {
      const { transport, rank } = endpoint;
      if (rank > 1) return;
      const region = endpoint.allocate('float32', LENGTH);
      region.view.fill(1);
      const sending = rank === 0 ? transport.send(1, envelope(1), region) : undefined;
      await meet(endpoint, 0);
      if (rank === 0) {
        transport.forget(envelope(1));
        region.view.fill(2);
      }
      await meet(endpoint, 1);
      const late = rank === 1 ? transport.receive(0, envelope(1), region) : undefined;
      await meet(endpoint, 2);
      await endpoint.until(() => !transport.poll());
      expect(sending?.done ?? false).toBe(false);
      expect(late?.done ?? false).toBe(false);
      expect(transport.idle).toBe(true);
    },
  },
];

export const leaveScenarios: readonly Pick<Scenario, 'name' | 'run'>[] = [
  {
    name: 'names a rank that gave up, with its reason',
    async run(endpoint) {
      const { transport, told, rank } = endpoint;
      await meet(endpoint, 0);
      if (rank === 1) {
        transport.abort(new Error('the loss is not a number'));
        await endpoint.until(() => false);
      }
      const posted = transport.receive(1, envelope(5), endpoint.allocate('float32', 4));
      await endpoint.until(() => told.lost.length > 0);
      const large = transport.send(1, envelope(6), endpoint.allocate('float32', LENGTH));
      transport.notify(1, 'too late');
      await endpoint.until(() => transport.idle);
      expect([posted.done, large.done]).toEqual([false, false]);
      await expect(
        transport.connect(0, [{ member: 1, title: 'rank 1', host: 'here', address: {} }]),
      ).rejects.toMatchObject({ code: 'PEER_LOST' });
      const [{ peer, error }] = told.lost as [(typeof told.lost)[0]];
      expect(peer).toBe(1);
      expect(error.code).toBe('PEER_LOST');
      expect(error.message).toMatch(/rank 1 left: the loss is not a number/);
    },
  },
];
