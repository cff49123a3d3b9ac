/** What is left when a communication thread dies, and what joining says when it cannot succeed. */
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { Scheduler } from '../../src/cluster/index.ts';
import { CommunicationThread } from '../../src/communication/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { RankProcesses } from '../support/rank-processes.ts';
import { OTHER_SECRET, SECRET } from '../support/secrets.ts';

const PROGRAM = fileURLToPath(new URL('./dying-program.ts', import.meta.url));

describe.each(['shm', 'tcp'] as const)('a communication thread over %s that dies', (transport) => {
  let ranks: RankProcesses | undefined;
  afterEach(() => ranks?.close());

  it('fails every handle and request of its caller, and is lost to its peers', async () => {
    ranks = await RankProcesses.start({ program: PROGRAM, transport, size: 2 });
    await ranks.untilEnded();
    const lines = ranks.said('ended');
    const own = lines.filter(({ rank }) => rank === 1);
    expect(own.map(({ how }) => how)).toEqual(['wait', 'await', 'later', 'request', 'new']);
    for (const { name, message } of own) {
      expect(name).toBe('InternalError');
      expect(message).toContain('the communication thread of process');
    }
    const [peer] = lines.filter(({ rank }) => rank === 0);
    expect(peer).toMatchObject({ how: 'peer', name: 'PeerError', code: 'PEER_LOST' });
    expect(peer!['message']).toContain('rank 1 (process ');
  });
});

describe('starting a communication thread', () => {
  const space = SharedSpace.create({ maxBytes: 16 * 2 ** 20 });
  const options = { space, secret: SECRET, transport: 'tcp', measure: false } as const;

  it('fails with the error of joining', async () => {
    const scheduler = await Scheduler.start({ size: 2, secret: OTHER_SECRET });
    try {
      await expect(
        CommunicationThread.start({ ...options, scheduler: scheduler.address }),
      ).rejects.toMatchObject({
        name: 'PeerError',
        code: 'REFUSED',
      });
    } finally {
      await scheduler.close();
    }
  });

  it('can be given up by a signal', async () => {
    const scheduler = await Scheduler.start({ size: 2, secret: options.secret });
    const lines: string[] = [];
    const abort = new AbortController();
    try {
      const starting = CommunicationThread.start({
        ...options,
        scheduler: scheduler.address,
        signal: abort.signal,
        reportAfterMs: 20,
        // Once it waits for the other member.
        log: (line) => lines.push(line) === 1 && abort.abort(),
      });
      await expect(starting).rejects.toMatchObject({ code: 'CANCELLED' });
      expect(lines).not.toEqual([]);
    } finally {
      await scheduler.close();
    }
  });

  it('takes more operations than there are slots when nobody waits for them', async () => {
    const scheduler = await Scheduler.start({ size: 1, secret: options.secret });
    const thread = await CommunicationThread.start({ ...options, scheduler: scheduler.address });
    try {
      for (let round = 0; round < 3; round++) {
        for (let i = 0; i < 30_000; i++) thread.barrier();
        thread.barrier().wait();
      }
    } finally {
      await thread.close();
      await scheduler.close();
    }
  });

  it('refuses regions of another space', async () => {
    const scheduler = await Scheduler.start({ size: 1, secret: options.secret });
    const thread = await CommunicationThread.start({ ...options, scheduler: scheduler.address });
    try {
      const stranger = SharedSpace.create({ maxBytes: 2 ** 20 })
        .allocate(64)
        .allocate('float32', 1);
      expect(() => thread.allReduce(stranger)).toThrow(expect.objectContaining({ code: 'INVALID_ARGUMENT' }));
      const own = space.allocate(64).allocate('float32', 1);
      own.view[0] = 5;
      thread.allReduce(own).wait();
      expect(own.view[0]).toBe(5);
    } finally {
      await thread.close();
      await scheduler.close();
    }
  });
});
