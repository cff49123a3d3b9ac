/**
 * Servers and workers of asynchronous training are killed at random moments and started again at once. Workers push ones, so
 * values count pushes: each that was acknowledged must be there once, and nothing else but what dead workers had on
 * its way. TRIBUTARY_SEED repeats a run as far as the machine's timing lets it.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import type { ServiceOptions } from '../../src/server/index.ts';
import { chooseSeed } from '../support/rank-processes.ts';
import type { CountingAssignment } from './counting-program.ts';
import { KillGround } from './kill-ground.ts';
import type { Place } from './kill-ground.ts';

const WORKERS = 2;
const KILLS = 3;
/** Of each worker, from one kill to the next. */
const PUSHES_A_KILL = 40;
const MOST_UNTIL_KILL_MS = 10;

const CASES = [
  { servers: 1, cores: 2, sharedMemory: true },
  { servers: 2, cores: 1, sharedMemory: false },
];

let ground: KillGround | undefined;
afterEach(() => ground?.close());

async function startCounting(
  { servers, cores, sharedMemory }: (typeof CASES)[number],
  { checkpointEvery, service }: { checkpointEvery?: number; service?: Partial<ServiceOptions> } = {
    checkpointEvery: 15,
  },
): Promise<Counting> {
  ground = await KillGround.start({ servers, cores, ...(service && { service }) });
  return new Counting(ground, sharedMemory, checkpointEvery);
}

class Counting {
  readonly ground: KillGround;
  #upTo = 0;

  constructor(here: KillGround, sharedMemory: boolean, checkpointEvery: number | undefined) {
    this.ground = here;
    const common = { workers: WORKERS, servers: here.addresses, access: here.access, sharedMemory };
    for (let worker = 0; worker < WORKERS; worker++) {
      here.addWorker('counting-program', (): CountingAssignment => ({
        store: { ...common, worker, consistency: { kind: 'asynchronous' }, chunkBytes: 256 },
        ...{ pushes: PUSHES_A_KILL * (KILLS + 1), upTo: this.#upTo },
        isBeginning: checkpointEvery !== undefined && worker === 0 && this.#upTo === 0,
        checkpointEvery: worker === 0 ? checkpointEvery : undefined,
      }));
    }
  }

  async run(seed: number, victims: readonly Place[]): Promise<string> {
    const random = new Random(seed);
    const { workers } = this.ground;
    const journal: string[] = [];
    await this.#allSay('ready');
    for (let done = 0; done < KILLS; done++) {
      this.#raise();
      const watched = workers[random.below(WORKERS)]!;
      const target = this.#upTo - random.below(PUSHES_A_KILL);
      const isThere = () => watched.process.said('acknowledged').length >= target;
      await this.ground.until(`push ${target} of ${watched.title} is acknowledged`, isThere);
      await pause(random.uniform() * MOST_UNTIL_KILL_MS);
      const victim = victims[random.below(victims.length)]!;
      journal.push(`${victim.title} after ${workers.map((worker) => acknowledged(worker)).join('/')}`);
      await this.ground.kill(victim);
      victim.start();
    }
    this.#raise();
    await this.#allSay('pushed');
    this.#raise();
    await this.#allSay('counted');
    return `seed ${seed}: ${journal.join('; ')}`;
  }

  async #allSay(what: string): Promise<void> {
    await this.ground.until(`all workers have said '${what}'`, () =>
      this.ground.workers.every(({ process }) => process.said(what).length > 0),
    );
  }

  #raise(): void {
    this.#upTo += PUSHES_A_KILL;
    for (const { process } of this.ground.workers) process.tell(String(this.#upTo));
  }
}

/** By all processes of a worker. */
function acknowledged({ processes }: Place): number {
  return processes.reduce((sum, process) => sum + process.said('acknowledged').length, 0);
}

describe.each(['process', 'disk'] as const)('without any checkpoint, durability %s', (durability) => {
  it('servers that are killed apply every push once', async () => {
    const counting = await startCounting(CASES[0]!, { service: { durability } });
    const { servers, workers } = counting.ground;
    const journal = await counting.run(chooseSeed(), servers);
    console.log(journal);
    const pushes = workers.reduce((sum, worker) => sum + acknowledged(worker), 0);
    for (const { process } of workers) {
      const counted = { dense: [pushes, pushes], rows: [pushes, pushes] };
      expect(process.said('counted')[0], journal).toMatchObject(counted);
    }
    await counting.ground.end();
  }, 120_000);
});

describe.each(CASES)('$servers servers of $cores cores, shared memory: $sharedMemory', (setting) => {
  it('that are killed apply every push once', async () => {
    const counting = await startCounting(setting);
    const { servers, workers } = counting.ground;
    const journal = await counting.run(chooseSeed(), servers);
    console.log(journal);
    const pushes = workers.reduce((sum, worker) => sum + acknowledged(worker), 0);
    for (const { process } of workers) {
      const counted = { dense: [pushes, pushes], rows: [pushes, pushes] };
      expect(process.said('counted')[0], journal).toMatchObject(counted);
    }
    await counting.ground.end();
  }, 120_000);

  it('apply every acknowledged push once when workers are killed too', async () => {
    const counting = await startCounting(setting);
    const { servers, workers } = counting.ground;
    const journal = await counting.run(chooseSeed(), [...servers, ...workers]);
    console.log(journal);
    const pushes = workers.reduce((sum, worker) => sum + acknowledged(worker), 0);
    const inFlight = workers.reduce((sum, { processes }) => sum + processes.length - 1, 0);
    for (const { process } of workers) {
      const counted = process.said('counted')[0]!;
      for (const key of ['dense', 'rows']) {
        const [least, most] = counted[key] as [number, number];
        expect(least, `${key}, ${journal}`).toBeGreaterThanOrEqual(pushes);
        expect(most, `${key}, ${journal}`).toBeLessThanOrEqual(pushes + inFlight);
      }
    }
    await counting.ground.end();
  }, 120_000);
});
