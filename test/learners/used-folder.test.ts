/** Learners in a folder of another run: refused, or told what becomes of it. */
import { readdirSync } from 'node:fs';
import { describe, expect, it } from 'vitest';

import { hasSharedMemory } from '../../src/memory/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { moduleOf } from '../support/test-program.ts';
import { trainTask, type TaskOptions } from './train-task.ts';

const folder = temporaryFolders();
const source = {
  module: moduleOf(new URL('./tiny-task.ts', import.meta.url).href),
  data: { samples: 40, batchSize: 8, seed: 3 },
};

/** 5 steps an epoch. */
async function train(checkpointDirectory: string, options: Partial<TaskOptions>) {
  const lines: string[] = [];
  const result = await trainTask({
    ...{ source, learners: 1, checkpointDirectory, log: (line) => lines.push(line) },
    ...options,
  });
  result.close();
  return { steps: result.steps, evaluation: result.evaluation, lines };
}

describe.skipIf(!hasSharedMemory())('learners in a used folder', () => {
  it('refuse it, replace its run by overwrite, and say if it is longer than what is asked for', async () => {
    const used = folder();
    const first = await train(used, { epochs: 2 });
    expect(first).toMatchObject({ steps: 10, lines: [] });
    const before = readdirSync(used);
    const both = { resume: true, overwrite: true };
    await expect(train(used, both)).rejects.toThrow(/resume and overwrite.*one/);
    await expect(train(used, {})).rejects.toMatchObject({ code: 'OUTPUT_EXISTS' });
    expect(readdirSync(used)).toEqual(before);
    const short = await train(used, { resume: true });
    expect(short).toEqual({
      ...first,
      lines: [expect.stringMatching(/step-00000010 has 10 steps, more than the 5 asked for/)],
    });
    expect(await train(used, { overwrite: true })).toMatchObject({ steps: 5, lines: [] });
    expect(readdirSync(used)).toEqual(['step-00000005']);
  });
});
