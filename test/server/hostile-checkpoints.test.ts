/**
 * Whatever a worker says that all servers of its training have in common: it costs its own tenant a
 * bounded number of checkpoints, and no other tenant anything.
 */
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasSharedMemory } from '../../src/memory/index.ts';
import type { ServiceAccess } from '../../src/server/index.ts';
import { Servers } from '../kvstore/servers.ts';
import { FAULT, RawWorker, SETTINGS } from './raw-worker.ts';
import { Victim } from './tenant-victim.ts';

/** What a worker may name, each with a later step. */
const NAMED = [0, 1, 2, 2 ** 40, 3, null, undefined, 7, 2 ** 40 - 1, 5, 0];
const MALFORMED = ['-1', '1.5', '1e300', '"1"', '[]', '{}', 'true', String(2 ** 40 + 1)];

describe.skipIf(!hasSharedMemory()).each(['synchronous', 'asynchronous'] as const)(
  'a worker in %s training that names checkpoints in common',
  (kind) => {
    let folder: string;
    let ground: Servers;
    let access: ServiceAccess;
    let theirs: Victim;
    let raw: RawWorker;

    beforeEach(async () => {
      folder = mkdtempSync(join(tmpdir(), 'tributary-named-'));
      ground = await Servers.start(1, { log: () => undefined });
      access = ground.createService({ folder: join(folder, 'own') });
      theirs = await Victim.open(ground);
      const settings = { ...SETTINGS, consistency: { kind } };
      raw = await RawWorker.admitted(ground.servers[0]!, access, { settings });
      await raw.openKey(new Float32Array(16));
    });

    afterEach(async () => {
      await raw.close();
      await theirs.close();
      await ground.close();
      rmSync(folder, { recursive: true, force: true });
    });

    const stored = (name: string): string[] =>
      existsSync(join(folder, name))
        ? readdirSync(join(folder, name)).filter((one) => one.endsWith('.checkpoint'))
        : [];

    async function othersGoOn(): Promise<void> {
      expect(ground.servers[0]!.failure).toBeUndefined();
      await theirs.train(2);
      expect(await theirs.damage()).toEqual([]);
    }

    it('has a few of its own, whatever it names', async () => {
      let step = 10;
      for (const common of [...NAMED, ...NAMED]) {
        await raw.done({ op: 'checkpoint', step: step++, isDurable: true, common });
        expect(stored('own').length).toBeLessThanOrEqual(kind === 'synchronous' ? 5 : 2);
      }
      await othersGoOn();
    });

    it('is told of a name that cannot be one, and nothing is written', async () => {
      for (const common of MALFORMED) {
        const request = {
          op: 'checkpoint',
          step: 10,
          isDurable: true,
          common: JSON.parse(common) as unknown,
        };
        expect(await raw.ask(request), common).toMatchObject(FAULT);
      }
      // NaN and Infinity are null in JSON, as if none were known.
      await raw.done({ op: 'checkpoint', step: 10, isDurable: true, common: NaN });
      expect(stored('own')).toHaveLength(1);
      await othersGoOn();
    });
  },
);
