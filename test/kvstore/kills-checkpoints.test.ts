/**
 * What lies on the disk when everything was killed: the last four checkpoints of each of several
 * servers, all of them whole; and if the newest of one server is damaged, all servers go back to
 * the one before, and the result is still that of an undisturbed run.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { afterEach, describe, expect, it } from 'vitest';
import { Random } from '../../src/base/index.ts';
import { ServerCheckpoints } from '../../src/server/durability/index.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import { chooseSeed } from '../support/rank-processes.ts';
import { KillGround } from './kill-ground.ts';
import { CHUNK_BYTES, undisturbed } from './made-up-training.ts';
import type { TrainingAssignment } from './training-program.ts';

const WORKERS = 2;
const EVERY = 5;
/** Where everything is killed, and where the training ends. */
const [KILLED_AT, STEPS] = [28, 40];
const LOOK_AGAIN_MS = 10;
/** Of each server. */
const KEPT = 4;

let ground: KillGround | undefined;
afterEach(() => ground?.close());

async function stepsIn(folder: string): Promise<number[]> {
  const problems: string[] = [];
  const files = await ServerCheckpoints.open({
    host: systemServerHost,
    folder,
    onProblem: (text) => problems.push(text),
  });
  try {
    const steps = await files.list();
    for (const step of steps) expect((await files.read(step)).namespace).toBe('killed');
    expect(problems).toEqual([]);
    return steps;
  } finally {
    await files.close();
  }
}

function checkpointsIn(folder: string): string[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith('.checkpoint'))
    .sort();
}

describe('checkpoints of servers that were killed', () => {
  it('are four and whole on each of two servers, and a damaged one is not used', async () => {
    const seed = chooseSeed();
    console.log(`seed ${seed}`);
    const random = new Random(seed);
    const expected = await undisturbed(WORKERS, STEPS);
    const service = { lostWorkers: 'wait' } as const;
    const here = (ground = await KillGround.start({ servers: 2, cores: 1, service }));
    let upTo = KILLED_AT;
    for (let worker = 0; worker < WORKERS; worker++) {
      const store = { worker, workers: WORKERS, servers: here.addresses, access: here.access };
      here.addWorker('training-program', (): TrainingAssignment => ({
        ...{ steps: STEPS, checkpointEvery: EVERY, upTo },
        store: { ...store, chunkBytes: CHUNK_BYTES },
      }));
    }
    const stepsSaid = (worker: number) =>
      here.workers[worker]!.process.said('step').map((line) => line['step'] as number);
    await here.until(`step ${KILLED_AT} is done`, () =>
      [0, 1].every((i) => stepsSaid(i).includes(KILLED_AT)),
    );
    // Checkpoints are written in the background.
    const newest = `step-${String(KILLED_AT - (KILLED_AT % EVERY)).padStart(12, '0')}.checkpoint`;
    const isWritten = (names: string[]) => names.includes(newest) && names.length === KEPT;
    while (!here.folders.every((folder) => isWritten(checkpointsIn(folder)))) await pause(LOOK_AGAIN_MS);
    for (const place of [...here.workers, ...here.servers]) await here.kill(place);
    for (const folder of here.folders) {
      expect(checkpointsIn(folder)).toHaveLength(KEPT);
      expect(await stepsIn(folder)).toEqual([10, 15, 20, 25]);
    }

    damage(join(here.folders[0]!, newest), random);
    upTo = STEPS;
    for (const place of [...here.servers, ...here.workers]) place.start();
    await here.until('all workers are trained', () =>
      here.workers.every(({ process }) => process.said('trained').length > 0),
    );
    for (const [i, { process }] of here.workers.entries()) {
      expect(stepsSaid(i)[0], `seed ${seed}`).toBe(21);
      expect(process.said('trained')[0], `seed ${seed}`).toMatchObject({ hash: expected });
    }
    await here.end();
    for (const folder of here.folders) {
      expect(readdirSync(folder).filter((name) => name !== 'server.lock')).toHaveLength(KEPT);
      expect(await stepsIn(folder)).toEqual([25, 30, 35, 40]);
    }
  }, 120_000);
});

/** One bit anywhere in the file. */
function damage(path: string, random: Random): void {
  const bytes = readFileSync(path);
  const at = random.below(bytes.length);
  bytes[at]! ^= 1 << random.below(8);
  writeFileSync(path, bytes);
}
