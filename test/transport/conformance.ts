/**
 * What every transport must do, as scenarios that all ranks run alike: each rank calls `run` with its own endpoint,
 * whether the ranks are objects of one process or processes under `mpirun`. It knows no transport; a harness makes the
 * endpoints. Invariants: a scenario uses its own group number and ends with a meeting of all ranks with nothing under
 * way, so that scenarios can follow one another on the same endpoints (those that end connections come last).
 */
import { expect } from 'vitest';
import type { Receiving, Transfer } from '../../src/transport/index.ts';
import type { Scenario } from './endpoint.ts';
import { contentSeed, DTYPES, fill, Ground } from './ground.ts';
import type { Place } from './ground.ts';
import { runRandomPlans } from './random-plans.ts';

export { recordEvents } from './endpoint.ts';
export type { Endpoint, Scenario, Told } from './endpoint.ts';

type Body = (ground: Ground) => Promise<void>;

const bodies: { name: string; sizes: readonly number[]; ends?: boolean; body: Body }[] = [
  {
    name: 'completes a receive that was posted before its message was sent',
    sizes: [2, 3],
    async body(ground) {
      const receives = ground.peers.map((peer) => ground.receive(peer, { tag: 1 }, 'float32', 100));
      await ground.meet();
      expect(receives.some((receiving) => receiving.done)).toBe(false);
      await ground.meet();
      const sends = ground.peers.map((peer) => ground.send(peer, { tag: 1 }, 5, 'float32', 100));
      await ground.allDone([...sends, ...receives]);
      for (const receiving of receives) ground.check(receiving, 5);
    },
  },
  {
    name: 'completes a receive that was posted after its message had come',
    sizes: [2, 3],
    async body(ground) {
      const sends = ground.peers.map((peer) => ground.send(peer, { tag: 1 }, 6, 'float64', 100));
      await ground.meet();
      const receives = ground.peers.map((peer) => ground.receive(peer, { tag: 1 }, 'float64', 100));
      await ground.allDone([...receives, ...sends]);
      for (const receiving of receives) ground.check(receiving, 6);
    },
  },
  {
    name: 'tells tags, sequences and steps apart in any order',
    sizes: [2, 3],
    async body(ground) {
      const place = (i: number): Place => ({ tag: i % 5, sequence: Math.floor(i / 5) % 4, step: i });
      const sends: Transfer[] = [];
      for (let i = 0; i < 60; i++) {
        for (const peer of ground.peers) sends.push(ground.send(peer, place(i), i, 'int32', i));
      }
      const receives: [number, Receiving][] = [];
      for (const i of shuffled(60)) {
        for (const peer of ground.peers) receives.push([i, ground.receive(peer, place(i), 'int32', i)]);
      }
      await ground.allDone([...sends, ...receives.map(([, receiving]) => receiving)]);
      for (const [i, receiving] of receives) ground.check(receiving, i);
    },
  },
  {
    name: 'takes the largest numbers in an envelope',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      const place = { tag: 0xfffffffe, sequence: 0xffffffff, step: 0xffffffff, signature: 0xffffffff };
      const receiving = ground.receive(peer, place, 'uint8', 3);
      await ground.allDone([ground.send(peer, place, 1, 'uint8', 3), receiving]);
      ground.check(receiving, 1);
    },
  },
  {
    name: 'moves any length, from nothing to 5 MB',
    sizes: [2, 3],
    async body(ground) {
      const lengths = [0, 1, 2, 15, 16, 17, 255, 1023, 4095, 4096, 4097, 16_385, 65_537, 262_145, 1_310_720];
      for (const [i, length] of lengths.entries()) {
        const receives = ground.peers.map((peer) => ground.receive(peer, { step: i }, 'float32', length));
        const sends = ground.peers.map((peer) => ground.send(peer, { step: i }, i, 'float32', length));
        await ground.allDone(receives);
        for (const receiving of receives) ground.check(receiving, i);
        await ground.allDone(sends);
      }
    },
  },
  {
    name: 'moves every element type',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      for (const length of [3, 40_000]) {
        for (const [i, dtype] of DTYPES.entries()) {
          const receiving = ground.receive(peer, { tag: length, step: i }, dtype, length);
          const sending = ground.send(peer, { tag: length, step: i }, i, dtype, length);
          await ground.allDone([receiving]);
          expect([receiving.region.dtype, receiving.region.length]).toEqual([dtype, length]);
          ground.check(receiving, i);
          await ground.allDone([sending]);
        }
      }
    },
  },
  {
    name: 'sends large messages both ways at once',
    sizes: [2, 3],
    async body(ground) {
      const sends: Transfer[] = [];
      for (let i = 0; i < 4; i++) {
        for (const peer of ground.peers) sends.push(ground.send(peer, { step: i }, i, 'float32', 300_000));
      }
      for (let i = 0; i < 4; i++) {
        const receives = ground.peers.map((peer) => ground.receive(peer, { step: i }, 'float32', 300_000));
        await ground.allDone(receives);
        for (const receiving of receives) ground.check(receiving, i);
      }
      await ground.allDone(sends);
    },
  },
  {
    name: 'keeps 1000 messages that nobody asked for until they are received in reverse',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      const sends: Transfer[] = [];
      for (let i = 0; i < 1000; i++) sends.push(ground.send(peer, { step: i }, i, 'uint16', i % 700));
      await ground.meet();
      for (let i = 999; i >= 0; i--) {
        const receiving = ground.receive(peer, { step: i }, 'uint16', i % 700);
        await ground.allDone([receiving]);
        ground.check(receiving, i);
      }
      await ground.allDone(sends);
    },
  },
  {
    name: 'lets messages pass while many received ones are not released',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      const receives: Receiving[] = [];
      const sends: Transfer[] = [];
      for (let i = 0; i < 300; i++) {
        receives.push(ground.receive(peer, { step: i }, 'uint8', i % 50 === 0 ? 100_000 : 3000));
        sends.push(ground.send(peer, { step: i }, i, 'uint8', i % 50 === 0 ? 100_000 : 3000));
      }
      await ground.allDone(receives);
      for (const [i, receiving] of [...receives.entries()].reverse()) ground.check(receiving, i);
      await ground.allDone(sends);
    },
  },
  {
    name: 'sends from private memory, which may be changed once the send is done',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      const segment = ground.endpoint.space.allocate(2 ** 20);
      for (const [i, length] of [10, 250_000, 250_000].entries()) {
        const region = segment.region('float32', 0, length);
        fill(region, contentSeed(ground.rank, peer, i));
        const receiving = ground.receive(peer, { step: i }, 'float32', length);
        const sending = ground.transport.send(peer, ground.envelope({ step: i }), region);
        await ground.allDone([receiving]);
        ground.check(receiving, i);
        await ground.allDone([sending]);
        region.view.fill(0);
      }
      segment.close();
    },
  },
  {
    name: 'receives into private memory',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      const segment = ground.endpoint.space.allocate(2 ** 20);
      for (const [i, length] of [10, 250_000].entries()) {
        const into = segment.region('float32', 0, length);
        const receiving = ground.transport.receive(peer, ground.envelope({ step: i }), into);
        const sending = ground.send(peer, { step: i }, i, 'float32', length);
        await ground.allDone([receiving]);
        ground.check(receiving, i);
        await ground.allDone([sending]);
      }
      segment.close();
    },
  },
  {
    name: 'carries the weight',
    sizes: [2, 3],
    async body(ground) {
      for (const [i, weight] of [0, 0.1, 7, 2 ** 40].entries()) {
        for (const length of [4, 100_000]) {
          const place = { tag: length, step: i, weight };
          const receives = ground.peers.map((peer) =>
            ground.receive(peer, { ...place, weight: -1 }, 'uint8', length),
          );
          const sends = ground.peers.map((peer) => ground.send(peer, place, i, 'uint8', length));
          await ground.allDone(receives);
          for (const receiving of receives) ground.check(receiving, i, weight);
          await ground.allDone(sends);
        }
      }
    },
  },
  {
    name: 'delivers notices in order, also between messages',
    sizes: [2, 3],
    async body(ground) {
      const { notices } = ground.endpoint.told;
      notices.length = 0;
      await ground.meet();
      const texts = Array.from({ length: 50 }, (_, i) => `${i}: ${'ä€'.repeat((i * i) % 70)}`);
      texts.push('', 'x'.repeat(32 * 1024), '{"end":true}');
      const sends: Transfer[] = [];
      for (const [i, text] of texts.entries()) {
        for (const peer of ground.peers) {
          ground.transport.notify(peer, text);
          if (i % 3 === 0) sends.push(ground.send(peer, { step: i }, i, 'uint8', 1000));
        }
      }
      const receives: [number, Receiving][] = [];
      for (let i = 0; i < texts.length; i += 3) {
        for (const peer of ground.peers) receives.push([i, ground.receive(peer, { step: i }, 'uint8', 1000)]);
      }
      await ground.allDone([...sends, ...receives.map(([, receiving]) => receiving)]);
      for (const [i, receiving] of receives) ground.check(receiving, i);
      await ground.until(() => notices.length >= texts.length * ground.peers.length);
      for (const peer of ground.peers) {
        expect(notices.filter((notice) => notice.peer === peer).map((notice) => notice.text)).toEqual(texts);
      }
    },
  },
  {
    name: 'tells of another signature, whoever came first, and goes on',
    sizes: [2, 3],
    body: (ground) =>
      mismatch(ground, (peer, step, length) =>
        ground.send(peer, { step, signature: 77 }, step, 'float32', length),
      ),
  },
  {
    name: 'tells of another length, whoever came first, and goes on',
    sizes: [2, 3],
    body: (ground) =>
      mismatch(ground, (peer, step, length) => ground.send(peer, { step }, step, 'float32', length - 1)),
  },
  {
    name: 'drops what comes for a forgotten operation and goes on',
    sizes: [2, 3],
    async body(ground) {
      const lengths = [10, 100_000];
      const early = ground.peers.flatMap((peer) =>
        lengths.map((length, step) => ground.send(peer, { tag: 3, step }, step, 'float32', length)),
      );
      await ground.meet();
      const late = ground.peers.flatMap((peer) =>
        lengths.map((length, step) => ground.receive(peer, { tag: 4, step }, 'float32', length)),
      );
      ground.transport.forget({ group: ground.group, tag: 3, sequence: 0 });
      ground.transport.forget({ group: ground.group, tag: 4, sequence: 0 });
      await ground.meet();
      for (const peer of ground.peers) {
        for (const [step, length] of lengths.entries()) {
          ground.send(peer, { tag: 4, step }, step, 'float32', length);
        }
      }
      const receives = ground.peers.map((peer) => ground.receive(peer, { tag: 5 }, 'float32', 100_000));
      const sends = ground.peers.map((peer) => ground.send(peer, { tag: 5 }, 9, 'float32', 100_000));
      await ground.allDone(receives);
      for (const receiving of receives) ground.check(receiving, 9);
      await ground.allDone(sends);
      expect(late.some((receiving) => receiving.done)).toBe(false);
      expect(early.length).toBe(2 * ground.peers.length);
    },
  },
  {
    name: 'is idle when nothing is under way, and only then',
    sizes: [2],
    async body(ground) {
      const peer = 1 - ground.rank;
      await ground.until(() => ground.transport.idle);
      const receiving = ground.receive(peer, { step: 1 }, 'float32', 10);
      expect(ground.transport.idle).toBe(false);
      await ground.meet();
      const sending = ground.send(peer, { step: 1 }, 1, 'float32', 10);
      await ground.allDone([receiving, sending]);
      ground.check(receiving, 1);
      await ground.until(() => ground.transport.idle);
    },
  },
  {
    name: 'carries out random plans of messages',
    sizes: [2, 3, 5],
    body: runRandomPlans,
  },
  {
    name: 'disconnects from a peer without touching the others',
    sizes: [2, 3],
    ends: true,
    async body(ground) {
      const { rank, transport } = ground;
      await ground.meet();
      // Each receive below is posted before the first disconnect, which withdraws it.
      const withdrawn = rank < 2 ? ground.receive(1 - rank, { tag: 1 }, 'float32', 4) : undefined;
      await ground.meet();
      if (rank < 2) transport.disconnect(1 - rank);
      const left = ground.peers.filter((peer) => rank === 2 || peer === 2);
      const receives = left.map((peer) => ground.receive(peer, { tag: 2 }, 'float32', 50_000));
      const sends = left.map((peer) => ground.send(peer, { tag: 2 }, 8, 'float32', 50_000));
      await ground.allDone(receives);
      for (const receiving of receives) ground.check(receiving, 8);
      await ground.allDone(sends);
      expect(withdrawn?.done ?? false).toBe(false);
      expect(ground.endpoint.told.lost).toEqual([]);
    },
  },
];

/** For transports whose ranks can be had once only it comes apart from the others: rank 1 is closed afterwards. */
export const closingScenario: Scenario = {
  name: 'lets a peer that is done leave, and counts it as lost once something more is expected of it',
  sizes: [2, 3],
  endsConnections: true,
  async run(endpoint) {
    const ground = new Ground(endpoint, 900);
    const { transport } = ground;
    await ground.meet();
    if (ground.rank === 1) {
      for (const peer of ground.peers) ground.send(peer, { tag: 1 }, 4, 'float32', 20);
      return transport.close();
    }
    await ground.until(() => transport.hasLeft(1));
    const sent = ground.receive(1, { tag: 1 }, 'float32', 20);
    await ground.allDone([sent]);
    ground.check(sent, 4);
    for (const peer of ground.peers.filter((one) => one !== 1)) {
      const receiving = ground.receive(peer, { tag: 2 }, 'float32', 50_000);
      const sending = ground.send(peer, { tag: 2 }, 5, 'float32', 50_000);
      await ground.allDone([receiving]);
      ground.check(receiving, 5);
      await ground.allDone([sending]);
    }
    expect(endpoint.told.lost).toEqual([]);
    const missing = ground.receive(1, { tag: 3 }, 'float32', 20);
    await ground.until(() => endpoint.told.lost.length > 0);
    expect(missing.done).toBe(false);
    expect(transport.hasLeft(1)).toBe(false);
    expect(endpoint.told.lost.map(({ peer, error }) => [peer, error.code])).toEqual([[1, 'PEER_LOST']]);
  },
};

/** Every rank sends a wrong and a right message to every other, small and large, before and after the receive is there. */
async function mismatch(
  ground: Ground,
  sendWrong: (peer: number, step: number, length: number) => Transfer,
): Promise<void> {
  const { mismatches } = ground.endpoint.told;
  mismatches.length = 0;
  await ground.meet();
  const lengths = [20, 100_000];
  const receives: Receiving[] = [];
  for (const posted of [true, false]) {
    const post = (): void => {
      for (const peer of ground.peers) {
        for (const [i, length] of lengths.entries()) {
          receives.push(ground.receive(peer, { step: i + (posted ? 0 : 2) }, 'float32', length));
        }
      }
    };
    if (posted) post();
    await ground.meet();
    for (const peer of ground.peers) {
      for (const [i, length] of lengths.entries()) sendWrong(peer, i + (posted ? 0 : 2), length);
    }
    await ground.meet();
    if (!posted) post();
  }
  await ground.until(() => mismatches.length >= 4 * ground.peers.length);
  for (const peer of ground.peers) {
    const steps = mismatches.filter((entry) => entry.peer === peer).map((entry) => entry.envelope.step);
    expect(steps.sort()).toEqual([0, 1, 2, 3]);
  }
  for (const { envelope } of mismatches) expect(envelope.group).toBe(ground.group);
  expect(receives.some((receiving) => receiving.done)).toBe(false);
  const right = ground.peers.map((peer) => ground.receive(peer, { tag: 1 }, 'float32', 100_000));
  const sends = ground.peers.map((peer) => ground.send(peer, { tag: 1 }, 3, 'float32', 100_000));
  await ground.allDone(right);
  for (const receiving of right) ground.check(receiving, 3);
  await ground.allDone(sends);
}

/** The same shuffle on every rank. */
function shuffled(count: number): number[] {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1, state = 12345; i > 0; i--) {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    const j = state % (i + 1);
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}

export const scenarios: readonly Scenario[] = bodies.map(({ name, sizes, ends = false, body }, index) => ({
  name,
  sizes,
  endsConnections: ends,
  async run(endpoint) {
    const ground = new Ground(endpoint, 0xc0000000 + index);
    await body(ground);
    if (!ends) await ground.meet();
  },
}));
