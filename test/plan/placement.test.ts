import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { cutIntoChunks, largestFirstRatio, placeChunks, printPlacement } from '../../src/plan/index.ts';
import { makespanLowerBound, sum } from './makespan-bounds.ts';

const counts = fc.integer({ min: 1, max: 6 });
const resources = fc.record({ servers: counts, coresPerServer: counts, interfacesPerServer: counts });
/** Long keys with many full chunks beside short ones, as in a model. */
const keyLists = fc
  .array(fc.oneof(fc.nat(40), fc.nat(2000)), { maxLength: 40 })
  .map((lengths) => lengths.map((length, i) => ({ key: `layer ${i}`, length })));
const CHUNK_BYTES = 256;

function expectBalanced(loads: readonly number[], sizes: readonly number[]): void {
  const most = largestFirstRatio(loads.length) * makespanLowerBound(sizes, loads.length);
  expect(Math.max(...loads)).toBeLessThanOrEqual(most * (1 + 1e-12));
}

function isFrozenThroughout(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return true;
  return Object.isFrozen(value) && Object.values(value).every(isFrozenThroughout);
}

describe('a placement', () => {
  it('gives every chunk one server, core and interface that exist, and changes nothing else of it', () => {
    fc.assert(
      fc.property(keyLists, resources, (keys, places) => {
        const chunks = cutIntoChunks(keys, CHUNK_BYTES);
        const placed = placeChunks(chunks, places).chunks;
        expect(placed.map(({ key, index, start, length }) => ({ key, index, start, length }))).toEqual(
          chunks,
        );
        for (const chunk of placed) {
          expect([...Array(places.servers).keys()]).toContain(chunk.server);
          expect([...Array(places.coresPerServer).keys()]).toContain(chunk.core);
          expect([...Array(places.interfacesPerServer).keys()]).toContain(chunk.interface);
        }
      }),
    );
  });

  it('reports the loads that its chunks make', () => {
    fc.assert(
      fc.property(keyLists, resources, (keys, places) => {
        const { chunks, servers } = placeChunks(cutIntoChunks(keys, CHUNK_BYTES), places);
        const bytesOf = (own: typeof chunks) => 4 * sum(own.map(({ length }) => length));
        expect(servers).toHaveLength(places.servers);
        servers.forEach((load, server) => {
          const own = chunks.filter((chunk) => chunk.server === server);
          expect(load.chunks).toBe(own.length);
          expect(load.bytes).toBe(bytesOf(own));
          expect(load.bytesByCore).toEqual(
            Array.from({ length: places.coresPerServer }, (_, core) =>
              bytesOf(own.filter((chunk) => chunk.core === core)),
            ),
          );
          expect(load.bytesByInterface).toEqual(
            Array.from({ length: places.interfacesPerServer }, (_, i) =>
              bytesOf(own.filter((chunk) => chunk.interface === i)),
            ),
          );
        });
      }),
    );
  });

  it('keeps the bound of largest first between servers, and inside each between cores and between interfaces', () => {
    fc.assert(
      fc.property(keyLists, resources, (keys, places) => {
        const { chunks, servers } = placeChunks(cutIntoChunks(keys, CHUNK_BYTES), places);
        const bytesOf = (own: typeof chunks) => own.map(({ length }) => 4 * length);
        expectBalanced(
          servers.map(({ bytes }) => bytes),
          bytesOf(chunks),
        );
        servers.forEach((load, server) => {
          const own = bytesOf(chunks.filter((chunk) => chunk.server === server));
          expectBalanced(load.bytesByCore, own);
          expectBalanced(load.bytesByInterface, own);
        });
      }),
    );
  });

  it('uses all interfaces though every core has one chunk only', () => {
    const chunks = cutIntoChunks([{ key: 'w', length: 64 }], 64);
    const { servers } = placeChunks(chunks, { servers: 1, coresPerServer: 4, interfacesPerServer: 2 });
    expect(servers[0]).toMatchObject({ bytesByCore: [64, 64, 64, 64], bytesByInterface: [128, 128] });
  });

  it('gives each core an interface of its own if there are as many and all chunks are full', () => {
    const chunks = cutIntoChunks([{ key: 'w', length: 16 * 60 }], 64);
    const placed = placeChunks(chunks, { servers: 2, coresPerServer: 3, interfacesPerServer: 3 }).chunks;
    for (const chunk of placed) expect(chunk.interface).toBe(chunk.core);
  });

  it('is the same for equal chunks that are other objects, and for what JSON makes of them', () => {
    fc.assert(
      fc.property(keyLists, resources, (keys, places) => {
        const chunks = cutIntoChunks(keys, CHUNK_BYTES);
        const first = placeChunks(chunks, places);
        expect(placeChunks(structuredClone(chunks), { ...places })).toEqual(first);
        expect(placeChunks(first.chunks, places)).toEqual(first);
        expect(JSON.parse(JSON.stringify(first))).toEqual(first);
      }),
    );
  });

  it('is what it always was, as workers and servers of different releases must agree on it', () => {
    const keys = [20, 5, 40, 0, 16].map((length, i) => ({ key: 'abcde'[i]!, length }));
    const { chunks } = placeChunks(cutIntoChunks(keys, 64), {
      servers: 2,
      coresPerServer: 2,
      interfacesPerServer: 2,
    });
    expect(chunks.map((c) => `${c.key}${c.index}: ${c.server}.${c.core}.${c.interface}`)).toEqual([
      'a0: 0.0.0',
      'a1: 1.1.1',
      'b0: 1.0.0',
      'c0: 1.0.0',
      'c1: 0.1.1',
      'c2: 0.0.0',
      'e0: 1.1.1',
    ]);
  });

  it('is frozen throughout', () => {
    const placement = placeChunks(cutIntoChunks([{ key: 'w', length: 100 }], 64), { servers: 2 });
    expect(isFrozenThroughout(placement)).toBe(true);
  });

  it('prints a line for each server', () => {
    const chunks = cutIntoChunks([{ key: 'w', length: 3 * 2 ** 18 }], 2 ** 20);
    const placement = placeChunks(chunks, { servers: 2, coresPerServer: 2 });
    expect(printPlacement(placement).split('\n')).toEqual([
      '3.00 MB in 3 chunks on 2 servers with 2 cores and 1 interface',
      'server  chunks     load  to the mean  busiest core  busiest interface',
      '     0       2  2.00 MB      +33.3 %      0: 0.0 %           0: 0.0 %',
      '     1       1  1.00 MB      -33.3 %   0: +100.0 %           0: 0.0 %',
    ]);
  });

  it('prints that there is nothing to place', () => {
    expect(printPlacement(placeChunks([], { servers: 1 }))).toContain(
      '0.00 MB in 0 chunks on 1 server with 1 core',
    );
  });

  it.each(['servers', 'coresPerServer', 'interfacesPerServer'])('is refused for 0 %s', (name) => {
    expect(() => placeChunks([], { servers: 1, [name]: 0 })).toThrow(
      expect.objectContaining({
        code: 'INVALID_ARGUMENT',
        message: `${name} is 0; pass a positive integer.`,
      }),
    );
  });
});
