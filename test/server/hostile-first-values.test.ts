/**
 * Workers that ask for first values by hand: numbers and kinds that are none, nested without end,
 * values sent where none are wanted. A server refuses each and goes on.
 */
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import { Servers } from '../kvstore/servers.ts';
import { bytesOf, FAULT, floatsOf, RawWorker, SETTINGS } from './raw-worker.ts';

const UNIFORM = { kind: 'uniform', limit: 1 };
const RANGES = [[0, 8]];

function opening(firstValues: unknown) {
  const keys = [
    { key: 'sent', length: 8 },
    { key: 'made', length: 8, rowLength: 2, firstValues },
  ];
  const pieces = [0, 1].map((key) => ({ key, start: 0, length: 8, ranges: RANGES }));
  return { op: 'open', batch: 0, keys, pieces, firstPiece: 0, awaitsValues: false };
}

function nested(depth: number): object {
  return depth === 0 ? UNIFORM : { kind: 'zeroed', start: 0, length: 1, base: nested(depth - 1) };
}

describe.skipIf(!hasSharedMemory())('a server that is asked to make first values', () => {
  let ground: Servers;
  const open: RawWorker[] = [];
  beforeAll(async () => {
    ground = await Servers.start(1, { cores: 1 });
  });
  afterAll(() => ground.close());
  afterEach(async () => {
    for (const raw of open.splice(0)) await raw.close();
  });
  async function worker(): Promise<RawWorker> {
    const raw = await RawWorker.admitted(ground.servers[0]!, ground.createService(), { settings: SETTINGS });
    open.push(raw);
    return raw;
  }

  it.each([
    ['a kind that there is not', { initialiser: { kind: 'data' }, seed: 1, first: 0 }],
    ['no initialiser', { seed: 1, first: 0 }],
    ['a limit that is no number', { initialiser: { kind: 'uniform', limit: '1' }, seed: 1, first: 0 }],
    ['no deviation', { initialiser: { kind: 'normal' }, seed: 1, first: 0 }],
    ['a seed beyond 32 bits', { initialiser: UNIFORM, seed: 2 ** 32, first: 0 }],
    ['a negative seed', { initialiser: UNIFORM, seed: -1, first: 0 }],
    ['half an element', { initialiser: UNIFORM, seed: 1, first: 0.5 }],
    ['a negative padding row', { initialiser: { ...nested(1), start: -1 }, seed: 1, first: 0 }],
    ['a base in a base, and so on', { initialiser: nested(40), seed: 1, first: 0 }],
    ['a text', 'uniform'],
    ['null', null],
  ])('refuses %s', async (_, firstValues) => {
    const raw = await worker();
    raw.say({ id: 1, ...opening(firstValues) });
    expect(await raw.hear()).toMatchObject(FAULT);
    // The same connection is served.
    await raw.done(opening({ initialiser: nested(4), seed: 1, first: 0 }));
  });

  it('takes values only of keys that have no seed, and makes the others once', async () => {
    const raw = await worker();
    await raw.done(opening({ initialiser: UNIFORM, seed: 5, first: 4 }));
    raw.say({ id: 50, op: 'values', batch: 0 }, new Uint8Array(64));
    expect(await raw.hear()).toMatchObject(FAULT);
    const sent = Float32Array.from({ length: 8 }, (_, i) => i);
    await raw.done({ op: 'values', batch: 0 }, bytesOf(sent));
    const rows = async () => {
      const { body } = await raw.done(
        { op: 'pull-rows', piece: 1, count: 4 },
        bytesOf(Int32Array.of(0, 1, 2, 3)),
      );
      return [...floatsOf(body)];
    };
    const before = await rows();
    expect(new Set(before).size).toBe(8);
    await raw.done(
      { op: 'push-rows', piece: 1, step: 1, samples: 1, count: 1, isSkipped: false },
      Buffer.concat([bytesOf(Int32Array.of(0)), bytesOf(Float32Array.of(1, 1))]),
    );
    // As after an answer that was lost.
    await raw.done({ op: 'values', batch: 0 }, bytesOf(sent));
    const after = await rows();
    expect(after.slice(2)).toEqual(before.slice(2));
    expect(after[0]).toBeCloseTo(before[0]! + 1, 6);
  });
});
