/** Checkpoints of weights that learners change while they are copied: what the folder holds at every moment of it. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import { LearnerCheckpoints } from '../../src/learners/learner-checkpoints.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { CheckpointStore, Replica } from '../../src/runtime/index.ts';
import { buildTask } from './tiny-task.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tributary-diverging-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

/** Its weights may diverge between a look at them and the copy that is written. */
class DivergingReplica extends Replica {
  isDiverging = false;
  /** What the folder holds whenever the weights are checked: what a kill at that moment would leave. */
  readonly found: string[][] = [];

  override isFinite(): boolean {
    this.found.push(readdirSync(folder).filter((name) => name.startsWith('step-')));
    return super.isFinite();
  }

  override snapshot(): ReturnType<Replica['snapshot']> {
    const [weights] = this.memory.parameters.values();
    if (this.isDiverging) weights!.view.fill(NaN);
    return super.snapshot();
  }
}

it('weights that diverge while they are copied never get the name of a checkpoint, nor cost an earlier one', () => {
  const { model, optimizer, batchSize = 1 } = buildTask({ samples: 8, batchSize: 8, seed: 1 });
  const compute = new OnnxCompute();
  const space = SharedSpace.create();
  const replica = new DivergingReplica(model, { compute, space, optimizer, maxBatch: batchSize, seed: 1 });
  try {
    const checkpoints = new LearnerCheckpoints(folder, replica, {
      seed: 1,
      samples: 8,
      batchSize,
      trainedBy: '2 learners',
    });
    for (const step of [1, 2]) checkpoints.save({ step, epoch: 0, done: [] });
    replica.isDiverging = true;
    expect(() => checkpoints.save({ step: 3, epoch: 0, done: [] })).toThrow(
      expect.objectContaining({
        code: 'NOT_A_NUMBER',
        message: expect.stringMatching(/at step 3; the last good checkpoint is .*step-00000002\./) as string,
      }),
    );
    const good = ['step-00000001', 'step-00000002'];
    expect(replica.found.at(-1)).toEqual(good);
    expect(readdirSync(folder).sort()).toEqual(good);
    expect(new CheckpointStore(folder).latest()).toMatchObject({ checkpoint: { step: 2 }, skipped: [] });
  } finally {
    replica.close();
    compute.close();
  }
});
