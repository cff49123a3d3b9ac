/** The oracle vectors of collectives, by every algorithm, in one process and with messages in random order. */
import { describe, expect, it } from 'vitest';
import { algorithmsFor, collectiveCases, collectiveWorlds, runCase } from '../support/collective-cases.ts';
import { runGroup } from '../support/run-group.ts';

describe('collectives.json', () => {
  for (const shared of [false, true]) {
    for (const size of collectiveWorlds()) {
      it(`passes on ${size} ranks ${shared ? 'that lend memory' : 'that send messages'}`, async () => {
        const hosts = Array.from({ length: size }, (_, rank) => (shared || rank < size / 2 ? 'a' : 'b'));
        const faults = await runGroup({ size, shared, hosts, seed: size }, async ({ group, region }) => {
          const found: string[] = [];
          for (const one of collectiveCases(size)) {
            for (const algorithm of algorithmsFor(one, group)) {
              found.push(...(await runCase(one, group, region, algorithm)));
            }
          }
          return found;
        });
        expect(faults.flat()).toEqual([]);
      });
    }
  }
});
