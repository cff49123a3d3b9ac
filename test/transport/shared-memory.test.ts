import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';
import { createSharedMemoryTransport } from '../../src/transport/shared-memory/index.ts';
import { closingScenario, scenarios } from './conformance.ts';
import { runRanks } from './ranks.ts';
import type { RankSetup } from './ranks.ts';

describe.skipIf(!hasSharedMemory())('the shared-memory transport', () => {
  let directory = '';
  beforeEach(() => {
    directory = mkdtempSync('/dev/shm/test-tributary-');
  });
  afterEach(() => {
    const left = readdirSync(directory);
    rmSync(directory, { recursive: true, force: true });
    expect(left).toEqual([]);
  });

  function makeRank(rank: number): RankSetup {
    const space = SharedSpace.create({ maxBytes: 256 * 2 ** 20 });
    let segments = 0;
    return {
      space,
      transport: createSharedMemoryTransport({ space, directory, session: 'test' }),
      segment: (byteLength) => space.createSegment(`data-${rank}-${segments++}`, byteLength, { directory }),
    };
  }

  for (const scenario of [...scenarios, closingScenario]) {
    for (const size of scenario.sizes) {
      it(`${scenario.name}, ${size} ranks`, () => runRanks(scenario, size, makeRank));
    }
  }
});
