/** A folder with the checkpoints of a run: another run is kept out of it, replaces it when asked to, and never takes or removes its files unasked. */
import { cpSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { fit, oneDevice, type FitEvent, type FitOptions, type FitResult } from '../../src/runner/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { circles, circlesModel, circlesRun } from './circles.ts';

const folder = temporaryFolders();
/** 5 steps an epoch. */
const small: FitOptions = { ...circlesRun, train: circles(80, 4), schedule: undefined, epochs: 1 };
const LONG = { maxSteps: 12, epochs: 10 };

async function train(checkpointDirectory: string, changes: Partial<FitOptions> = {}) {
  const [lines, events] = [[] as string[], [] as FitEvent[]];
  const result: FitResult = await fit(circlesModel(), {
    ...{ ...small, checkpointDirectory, log: (line) => lines.push(line) },
    ...{ onEvent: (event) => events.push(event), ...changes },
  });
  const parameters = [...result.replica.memory.parameters.values()].map(({ view }) => [...view]);
  await result.close();
  const { steps, evaluation, finished, checkpointPath } = result;
  return { steps, evaluation, finished, checkpointPath, parameters, lines, events };
}

describe('a used checkpointDirectory', () => {
  it('is refused to a run that neither resumes nor overwrites, and stays as it is', async () => {
    const used = folder();
    await train(used, LONG);
    const before = readdirSync(used);
    await expect(train(used)).rejects.toMatchObject({
      code: 'OUTPUT_EXISTS',
      message: expect.stringMatching(
        /holds checkpoints of an earlier run.*step-00000012.*resume: true.*overwrite: true.*another checkpointDirectory/,
      ) as string,
    });
    await expect(
      oneDevice(circlesModel(), { optimizer: small.optimizer, checkpointDirectory: used }),
    ).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
    expect(readdirSync(used)).toEqual(before);
  });

  it('is emptied of checkpoints, and of nothing else, by overwrite', async () => {
    const used = folder();
    await train(used, LONG);
    mkdirSync(join(used, '.writing-step-00000099-0123456789abcdef'));
    writeFileSync(join(used, 'notes.txt'), 'mine');
    const { parameters, ...again } = await train(used, { overwrite: true });
    expect(again.checkpointPath).toBe(join(used, 'step-00000005'));
    expect(readdirSync(used).sort()).toEqual(['notes.txt', 'step-00000005']);
    expect(parameters).toEqual((await train(folder())).parameters);
    // What comes next goes on with the new run, not with the one that was replaced.
    const resumed = await train(used, { resume: true, epochs: 2 });
    expect(resumed.events[0]).toMatchObject({ type: 'resumed', step: 5 });
    expect(resumed.steps).toBe(10);
  });

  it('takes resume or overwrite, not both', async () => {
    const both = train(folder(), { resume: true, overwrite: true });
    await expect(both).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
    await expect(both).rejects.toThrow(/resume and overwrite.*one/);
  });

  it('may hold other files, or be empty', async () => {
    const empty = folder();
    writeFileSync(join(empty, 'notes.txt'), 'mine');
    expect((await train(empty)).steps).toBe(5);
  });
});

describe('a run in a folder to which another one writes', () => {
  it('removes its own checkpoints only', async () => {
    const [mine, other] = [folder(), folder()];
    await train(other, LONG);
    let isThere = false;
    await train(mine, {
      ...{ epochs: 4 },
      onEvent: (event) => {
        if (event.type !== 'checkpoint' || isThere) return;
        isThere = true;
        for (const name of ['step-00000010', 'step-00000012'])
          cpSync(join(other, name), join(mine, name), { recursive: true });
      },
    });
    // Its own 10 is beside that of the other; of its own the last two are kept.
    expect(readdirSync(mine).sort()).toEqual([
      ...['step-00000010', 'step-00000012', 'step-00000015', 'step-00000020'],
    ]);
    await expect(train(mine, { resume: true, epochs: 4 })).rejects.toMatchObject({
      code: 'CHECKPOINT_MISMATCH',
      message: expect.stringMatching(/checkpoints of 2 runs.*step-00000020, step-00000012/) as string,
    });
  });
});

describe('a run that has nothing left to train', () => {
  it('is evaluated all the same', async () => {
    const used = folder();
    const first = await train(used);
    const again = await train(used, { resume: true });
    expect(again).toMatchObject({ steps: 5, finished: true, lines: [] });
    expect(first.evaluation).toBeDefined();
    expect(again.evaluation).toEqual(first.evaluation);
    expect(again.parameters).toEqual(first.parameters);
  });

  it('says so if it is longer than what is asked for', async () => {
    const used = folder();
    const long = await train(used, LONG);
    const short = await train(used, { resume: true });
    expect(short).toMatchObject({ steps: 12, finished: true });
    expect(short.parameters).toEqual(long.parameters);
    expect(short.evaluation).toEqual(long.evaluation);
    expect(short.lines).toEqual([
      expect.stringMatching(
        /step-00000012 has 12 steps, more than the 5 asked for: nothing is trained.*step 12/,
      ),
    ]);
  });
});
