/** Trains twice on two workers, once with other groups every few steps, and says the losses. Not a test itself. */
import { getRunner, shard } from '../../src/runner/index.ts';
import type { Merging } from '../../src/plan/index.ts';
import { traced } from './traced.ts';

const strategy = process.argv[2] as 'servers' | 'collectives';
const { model, options } = traced({ trace: '', hasAverage: strategy === 'collectives' });
const { train, optimizer, seed } = options;
const STEPS = 12;

async function losses(regroups: boolean): Promise<number[]> {
  const runner = await getRunner(model, {
    ...{ optimizer, seed, batchSize: 16, log: () => undefined, compareEverySteps: 4 },
    on: { workers: 2, strategy, merging: 'single' },
  });
  const all: number[] = [];
  const merging: Merging[] = ['layer by layer', 'single', 'optimal'];
  for await (const { step, loss } of runner.run(shard(train), { epochs: 3, maxSteps: STEPS })) {
    all.push(loss);
    // Twice at once, too: what the last step has started must end first.
    if (!regroups || step % 2 !== 0) continue;
    runner.regroup(merging[step % 3]!);
    if (step % 4 === 0) runner.regroup(merging[(step + 1) % 3]!);
  }
  const { loss } = await runner.evaluate(shard(options.test!));
  open.push(runner);
  return [...all, loss];
}

const open: { close(): Promise<void> }[] = [];
const [plain, regrouped] = [await losses(false), await losses(true)];
if (process.env['TRIBUTARY_WORKER'] !== '1') console.log(JSON.stringify({ plain, regrouped }));
for (const runner of open) await runner.close();
