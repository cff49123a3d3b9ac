/** What workers make of a batch that they do not share evenly: sums and states are those of the samples, not of the shares' number. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { programOf } from '../support/test-program.ts';

interface OfSamples {
  readonly parameters: number[][];
  readonly gradients: number[][];
  readonly states: number[][];
}

const PROGRAM = fileURLToPath(new URL('./shares-program.ts', import.meta.url));

it('adds up gradients where they are not to be averaged, and has one set of states', () => {
  const { stdout, stderr } = spawnSync(process.execPath, programOf(PROGRAM), {
    ...{ encoding: 'utf8', timeout: 60_000 },
  });
  expect(stderr).toBe('');
  const { actual, actualApart, lr, mine, others, all, three, four } = JSON.parse(stdout) as {
    readonly actual: Pick<OfSamples, 'parameters' | 'states'>;
    readonly lr: number;
    readonly mine: OfSamples;
    readonly others: OfSamples;
    readonly all: OfSamples;
    readonly actualApart: Pick<OfSamples, 'parameters'> & { readonly samples: number };
    readonly three: OfSamples;
    readonly four: OfSamples;
  };
  expect(mine.gradients[0]).not.toEqual(others.gradients[0]);
  const expectSum = ({ parameters }: Pick<OfSamples, 'parameters'>, one: OfSamples, other: OfSamples) =>
    parameters.forEach((parameter, i) =>
      parameter.forEach((value, j) => {
        const sum = one.gradients[i]![j]! + other.gradients[i]![j]!;
        expect(value).toBeCloseTo(one.parameters[i]![j]! - lr * sum, 5);
      }),
    );
  expectSum(actual, mine, others);
  expectSum(actualApart, three, four);
  expect(actualApart.samples).toBe(7);
  // Running means are exactly those of the whole batch; variances are those within the shares.
  actual.states[0]!.forEach((mean, i) => expect(mean).toBeCloseTo(all.states[0]![i]!, 6));
  actual.states[1]!.forEach((variance, i) =>
    expect(variance).toBeCloseTo((4 * mine.states[1]![i]! + 3 * others.states[1]![i]!) / 7, 6),
  );
}, 70_000);
