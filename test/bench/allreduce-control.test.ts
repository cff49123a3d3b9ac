/** The conversation between the coordinator of `bench allreduce` and its ranks, and the vector they sum. */
import { once } from 'node:events';
import { connect } from 'node:net';
import fc from 'fast-check';
import { afterEach, describe, expect, it } from 'vitest';
import {
  ControlServer,
  fillVector,
  isSummed,
  longestBurst,
  median,
  parseTurn,
  serveTurns,
} from '../../src/bench/allreduce/index.ts';
import type { Turn, TurnResult } from '../../src/bench/allreduce/index.ts';

const servers: ControlServer[] = [];
afterEach(() => {
  for (const server of servers.splice(0)) server.close();
});

async function listen(): Promise<ControlServer> {
  const server = await ControlServer.listen();
  servers.push(server);
  return server;
}

function arrival(server: ControlServer, count: number): Promise<void> {
  return new Promise((resolve) => {
    server.onRank(() => {
      if (server.count === count) resolve();
    });
  });
}

const TURN: Turn = { bytes: 1024, iterations: 10, burst: 5, algorithm: 'ring-2' };

describe('the control connection', () => {
  it('gives every rank its turns and brings back what it says, in the order of ranks', async () => {
    const server = await listen();
    const here = arrival(server, 2);
    const seen: Turn[] = [];
    const handler =
      (rank: number) =>
      (turn: Turn): Promise<TurnResult> => {
        seen.push(turn);
        return Promise.resolve({
          micros: 1.5 + rank,
          ok: rank === 0,
          ...(rank === 0 ? { algorithm: 'ring' } : {}),
        });
      };
    const ranks = [1, 0].map((rank) => serveTurns(server.address, rank, handler(rank)));
    await here;
    const links = server.links();
    expect(links.map(({ rank, pid }) => [rank, pid])).toEqual([
      [0, process.pid],
      [1, process.pid],
    ]);
    for (let i = 0; i < 2; i++) {
      expect(await Promise.all(links.map((link) => link.turn(TURN)))).toEqual([
        { micros: 1.5, ok: true, algorithm: 'ring' },
        { micros: 2.5, ok: false, algorithm: undefined },
      ]);
    }
    expect(seen).toEqual([TURN, TURN, TURN, TURN]);
    for (const link of links) link.quit();
    await Promise.all(ranks);
  });

  it('passes on why a turn failed, and goes on', async () => {
    const server = await listen();
    const here = arrival(server, 1);
    let calls = 0;
    const rank = serveTurns(server.address, 0, () =>
      calls++ === 0 ? Promise.reject(new Error('no such\nring')) : Promise.resolve({ micros: 1, ok: true }),
    );
    await here;
    const link = server.links()[0]!;
    await expect(link.turn(TURN)).rejects.toThrow(/rank 0 answered 'error no such ring'/);
    expect((await link.turn(TURN)).ok).toBe(true);
    link.quit();
    await rank;
  });

  it('turns strangers, and a rank that is there already, away', async () => {
    const server = await listen();
    const here = arrival(server, 1);
    const done = serveTurns(server.address, 0, () => Promise.resolve({ micros: 1, ok: true }));
    await here;
    const { port, host, token } = server.address;
    for (const line of ['hello 0123 1 1', 'GET / HTTP/1.1', `hello ${token} 0 1`, '']) {
      const socket = connect(port, host);
      socket.on('error', () => undefined);
      socket.write(`${line}\n`);
      await once(socket, 'close');
    }
    expect(server.count).toBe(1);
    server.links()[0]!.quit();
    await done;
  });

  it('fails the turn of a rank that goes away, and ends a rank whose coordinator goes away', async () => {
    const server = await listen();
    const here = arrival(server, 2);
    const stuck = new Promise<TurnResult>(() => undefined);
    const ranks = [0, 1].map((rank) => serveTurns(server.address, rank, () => stuck));
    await here;
    const turn = server.links()[0]!.turn(TURN);
    server.close();
    await expect(turn).rejects.toMatchObject({ code: 'PEER_EXITED', facts: { rank: 0 } });
    await ranks[1];
  });
});

describe('the lines', () => {
  it('are read back as they were written', () => {
    const positive = fc.integer({ min: 1, max: 2 ** 40 });
    const turns = fc.tuple(positive, positive, positive, fc.stringMatching(/^[a-z][a-z0-9.+-]{0,20}$/));
    fc.assert(
      fc.property(turns, ([bytes, iterations, burst, algorithm]) => {
        const line = `turn ${bytes} ${iterations} ${burst} ${algorithm}`;
        expect(parseTurn(line)).toEqual({ bytes, iterations, burst, algorithm });
      }),
    );
  });

  it.each([
    '',
    'turn',
    'turn 4 1 1',
    'turn 4 0 1 ring',
    'turn 4 1 1 a\u0000b',
    'turn x 1 1 ring',
    'quit 4 1 1 ring',
  ])('that are no turn are refused: %j', (line) => {
    expect(() => parseTurn(line)).toThrow(expect.objectContaining({ code: 'PROTOCOL_VIOLATION' }) as Error);
  });
});

describe('the vector', () => {
  it.each([1, 2, 3, 5, 8])(
    'summed in place by %i ranks again and again is recognised, and only that',
    (ranks) => {
      for (const length of [1, 7, 8, 9, 1000]) {
        const vectors = Array.from({ length: ranks }, (_, rank) => {
          const vector = new Float32Array(length);
          fillVector(vector, rank);
          return vector;
        });
        const burst = Math.min(longestBurst(ranks), 40);
        for (let sums = 1; sums <= burst; sums++) {
          const sum = vectors[0]!.map((_, i) => vectors.reduce((total, vector) => total + vector[i]!, 0));
          for (const vector of vectors) vector.set(sum);
          expect(isSummed(sum, ranks, sums)).toBe(true);
          sum[length - 1]! *= 1.001;
          expect(isSummed(sum, ranks, sums)).toBe(false);
          sum[length - 1] = NaN;
          expect(isSummed(sum, ranks, sums)).toBe(false);
        }
      }
    },
  );
});

it('takes the middle of an odd number of values, and the mean of both middles of an even one', () => {
  expect(median([3, 1, 2])).toBe(2);
  expect(median([4, 1, 2, 3])).toBe(2.5);
});
