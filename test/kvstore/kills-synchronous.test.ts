/**
 * Workers and servers of synchronous training are killed at random moments, in steps, while checkpoints are written and
 * while others recover, and started again at once: the parameters must be those of an undisturbed run, bit by bit.
 * TRIBUTARY_KILLS says how often in all, TRIBUTARY_SEED repeats a run as far as the machine's timing lets it.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { chooseSeed } from '../support/rank-processes.ts';
import { KillGround } from './kill-ground.ts';
import type { Place } from './kill-ground.ts';
import { CHUNK_BYTES, undisturbed } from './made-up-training.ts';
import type { TrainingAssignment } from './training-program.ts';

const KILLS = Number(process.env['TRIBUTARY_KILLS'] ?? 6);
const WORKERS = 2;
/** Steps from one kill to the next; it happens in one of them. */
const STEPS_A_KILL = 20;
/** Within a few steps. */
const MOST_UNTIL_KILL_MS = 10;
/** Within the recovery from another kill. */
const MOST_UNTIL_SECOND_KILL_MS = 150;

const CASES = [
  { servers: 2, cores: 1, sharedMemory: true },
  { servers: 2, cores: 1, sharedMemory: false },
  { servers: 1, cores: 2, sharedMemory: true },
  { servers: 1, cores: 2, sharedMemory: false },
];

let ground: KillGround | undefined;
afterEach(() => ground?.close());

describe.each(CASES)('$servers servers of $cores cores, shared memory: $sharedMemory', (setting) => {
  const { servers, cores, sharedMemory } = setting;
  const kills = Math.floor((KILLS + CASES.indexOf(setting)) / CASES.length);
  const deadlineMs = 60_000 + 10_000 * kills;

  it(
    `end as if nothing had been when processes are killed ${kills} times`,
    async () => {
      const seed = chooseSeed();
      const random = new Random(seed);
      const steps = STEPS_A_KILL * (kills + 1);
      const expected = await undisturbed(WORKERS, steps);

      const here = (ground = await KillGround.start({ servers, cores, service: { lostWorkers: 'wait' } }));
      let upTo = STEPS_A_KILL;
      for (let worker = 0; worker < WORKERS; worker++) {
        const store = { worker, workers: WORKERS, servers: here.addresses, access: here.access };
        here.addWorker('training-program', (): TrainingAssignment => ({
          ...{ steps, checkpointEvery: 7, upTo },
          store: { ...store, sharedMemory, chunkBytes: CHUNK_BYTES },
        }));
      }
      const places = [...here.servers, ...here.workers];
      const journal: string[] = [`seed ${seed}`];
      const killOne = async (during: string): Promise<Place> => {
        const victim = places[random.below(places.length)]!;
        const step = here.workers.map((worker) => lastStep(worker));
        journal.push(`${victim.title} ${during} ${step.join('/')}`);
        await here.kill(victim);
        victim.start();
        return victim;
      };

      try {
        for (let done = 0; done < kills;) {
          const watched = here.workers[random.below(WORKERS)]!;
          const target = upTo - random.below(STEPS_A_KILL);
          await here.until(`${watched.title} has done step ${target}`, () => lastStep(watched) >= target);
          await pause(random.uniform() * MOST_UNTIL_KILL_MS);
          let victim = await killOne('at step');
          done++;
          while (done < kills && random.below(3) === 0) {
            const { process, title } = victim;
            await here.until(`${title} is loaded again`, () => process.said('loaded').length > 0);
            await pause(random.uniform() * MOST_UNTIL_SECOND_KILL_MS);
            victim = await killOne('in recovery, at step');
            done++;
          }
          upTo = STEPS_A_KILL * (done + 1);
          for (const { process } of here.workers) process.tell(String(upTo));
        }
        await here.until('all workers are trained', () =>
          here.workers.every(({ process }) => process.said('trained').length > 0),
        );
      } finally {
        console.log(`${servers} x ${cores}, shared memory ${sharedMemory}: ${journal.join('; ')}`);
      }
      const hashes = here.workers.map(({ process }) => process.said('trained')[0]!['hash']);
      expect(hashes, `seed ${seed}`).toEqual([expected, expected]);
      await here.end();
    },
    deadlineMs,
  );
});

/** Of the process that a worker is now. */
function lastStep({ process }: Place): number {
  return (process.said('step').at(-1)?.['step'] as number | undefined) ?? 0;
}
