/** An option that a call does not have is refused by name, with the nearest that it has: JavaScript has no compiler to do so. */
import { describe, expect, it } from 'vitest';
import { fit, getRunner, oneDevice } from '../../src/runner/index.ts';
import { circles, circlesModel } from './circles.ts';

const train = circles(40, 1);
const optimizer = { name: 'adam', lr: 0.01 } as const;

/** As a caller in JavaScript writes it. */
const misspelt = <T extends object>(options: T, more: object): T => ({ ...options, ...more });

describe('an unknown option', () => {
  it.each([
    ['fit', () => fit(circlesModel(), misspelt({ train, optimizer }, { epoch: 5 })), 'epochs'],
    ['oneDevice', () => oneDevice(circlesModel(), misspelt({ optimizer }, { batchsize: 5 })), 'batchSize'],
    [
      'getRunner',
      () =>
        getRunner(
          circlesModel(),
          misspelt({ optimizer, on: { workers: 1 } }, { checkpointDir: 'c', trac: 't' }),
        ),
      'trace',
    ],
  ])('of %s is refused', async (caller, call, nearest) => {
    await expect(call()).rejects.toMatchObject({
      code: 'INVALID_ARGUMENT',
      message: expect.stringMatching(
        new RegExp(`^${caller} has no option .* Did you mean "${nearest}"\\?`),
      ) as unknown,
      facts: { caller },
    });
  });

  it('of a run of a runner is refused', async () => {
    const runner = await oneDevice(circlesModel(), { optimizer });
    try {
      const steps = runner.run(train, misspelt({}, { maxStep: 1 }));
      await expect(steps.next()).rejects.toThrow(
        'runner.run has no option "maxStep". Did you mean "maxSteps"?',
      );
    } finally {
      await runner.close();
    }
  });

  it('that is near to none is refused with all that there are', async () => {
    await expect(oneDevice(circlesModel(), misspelt({ optimizer }, { colour: 'red' }))).rejects.toThrow(
      'oneDevice has no option "colour". Its options: optimizer, schedule, ',
    );
  });

  it('that is undefined was not given', async () => {
    const runner = await oneDevice(circlesModel(), misspelt({ optimizer }, { epoch: undefined }));
    await runner.close();
  });
});
