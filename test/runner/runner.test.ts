/** A runner on one device: it goes on where it was, from run to run and from process to process. */
import { readdirSync } from 'node:fs';
import { expect, it } from 'vitest';
import { oneDevice, shard, type Runner, type RunnerConfig, type RunOptions } from '../../src/runner/index.ts';
import { temporaryFolders } from '../data/temporary-folder.ts';
import { circles, circlesModel, circlesRun } from './circles.ts';

const folder = temporaryFolders();
const { train, test, optimizer, batchSize, seed } = circlesRun;
const config: RunnerConfig = { optimizer, batchSize, seed };

async function steps(runner: Runner, options: RunOptions): Promise<number[]> {
  const seen: number[] = [];
  for await (const { step } of runner.run(shard(train), options)) seen.push(step);
  return seen;
}

/** Parameters after some runs, one after the other; with the steps that each made. */
async function trained(changes: Partial<RunnerConfig>, ...runs: RunOptions[]) {
  const runner = await oneDevice(circlesModel(), { ...config, ...changes });
  const made: number[] = [];
  for (const options of runs) made.push((await steps(runner, options)).length);
  const parameters = [...runner.replica.memory.parameters.values()].map(({ view }) => [...view]);
  await runner.close();
  return { made, parameters };
}

it('goes on with the samples when it runs again, in the middle of an epoch too', async () => {
  const whole = await trained({}, { epochs: 3 });
  expect(whole.made).toEqual([54]);
  expect(await trained({}, { maxSteps: 23, epochs: 3 }, { maxSteps: 31, epochs: 3 })).toEqual({
    ...{ made: [23, 31], parameters: whole.parameters },
  });
});

it('is resumed by the same calls, which pass over what was done', async () => {
  const checkpointDirectory = folder();
  const whole = await trained({}, { epochs: 1 }, { epochs: 2 });
  await trained({ checkpointDirectory }, { epochs: 1 }, { maxSteps: 5 });
  const events: string[] = [];
  const onEvent: RunnerConfig['onEvent'] = ({ type }) => events.push(type);
  const saved = { checkpointDirectory, resume: true, onEvent };
  expect(await trained(saved, { epochs: 1 }, { epochs: 2 })).toEqual({
    ...{ made: [0, 31], parameters: whole.parameters },
  });
  expect(events).toEqual(['resumed', 'checkpoint', 'checkpoint']);
});

it('is resumed in the second of two datasets, and by batches of the same size only', async () => {
  const other = circles(101, 3);
  const train2 = async (changes: Partial<RunnerConfig>, maxSteps: number) => {
    const runner = await oneDevice(circlesModel(), { ...config, ...changes });
    let made = (await steps(runner, { maxSteps: 5 })).length;
    for await (const { samples } of runner.run(shard(other), { maxSteps, epochs: 2 }))
      made += Math.sign(samples);
    const parameters = [...runner.replica.memory.parameters.values()].map(({ view }) => [...view]);
    await runner.close();
    return { made, parameters };
  };
  const whole = await train2({}, 9);
  const checkpointDirectory = folder();
  await train2({ checkpointDirectory }, 3);
  const saved = { checkpointDirectory, resume: true };
  expect(await train2(saved, 9)).toEqual({ made: 6, parameters: whole.parameters });
  await expect(train2({ ...saved, batchSize: 8 }, 9)).rejects.toMatchObject({ code: 'CHECKPOINT_MISMATCH' });
});

it('writes checkpoints every so many steps, at ends of epochs and runs, and when it is told to', async () => {
  const checkpointDirectory = folder();
  const written: number[] = [];
  const runner = await oneDevice(circlesModel(), {
    ...{ ...config, checkpointDirectory, checkpointEverySteps: 8 },
    onEvent: (event) => event.type === 'checkpoint' && written.push(event.step),
  });
  for await (const { step } of runner.run(train, { maxSteps: 21, epochs: 2 })) {
    if (step === 11) await runner.save();
  }
  await runner.save();
  expect(written).toEqual([8, 11, 16, 18, 21]);
  expect(runner.checkpointPath).toContain('step-00000021');
  expect(readdirSync(checkpointDirectory)).toHaveLength(2);
  await runner.close();
});

it('begins the next epoch of another dataset, and says that it has no folder', async () => {
  const runner = await oneDevice(circlesModel(), config);
  await steps(runner, { maxSteps: 5 });
  for await (const { epoch, samples, last } of runner.run(circles(10, 3))) {
    expect({ epoch, samples, last }).toEqual({ epoch: 1, samples: 10, last: true });
  }
  await expect(runner.save()).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
  expect(await runner.evaluate(shard(test!))).toEqual(await runner.evaluate(test!));
  await runner.close();
});
