/**
 * Workers in lock step, for `bench scaleup`: the program of the first process, which `getRunner` starts again for the
 * others. Does so many steps to get warm, measures the next ones, and prints one line of JSON. Run by
 * synchronous-turn.ts, never imported.
 */
import { getRunner, shard } from '../../runner/index.ts';
import { buildTask, type TextTaskData } from './text-task.ts';

export interface SynchronousOrder {
  readonly task: TextTaskData;
  readonly workers: number;
  readonly warmupSteps: number;
  readonly steps: number;
}

export interface SynchronousResult {
  readonly samplesPerSec: number;
}

const { task, workers, warmupSteps, steps } = JSON.parse(process.argv[2]!) as SynchronousOrder;
const { model, train, batchSize = 32, optimizer, schedule, seed, sparseUpdates, session } = buildTask(task);
const runner = await getRunner(model, {
  on: { workers },
  optimizer,
  schedule,
  seed,
  sparseUpdates,
  session,
  batchSize: batchSize * workers,
});
let [samples, startedMs] = [0, 0];
for await (const report of runner.run(shard(train), { epochs: Infinity, maxSteps: warmupSteps + steps })) {
  if (report.step === warmupSteps) startedMs = performance.now();
  else if (report.step > warmupSteps) samples += report.samples;
}
const samplesPerSec = (samples / (performance.now() - startedMs)) * 1000;
await runner.close();
process.stdout.write(`${JSON.stringify({ samplesPerSec } satisfies SynchronousResult)}\n`);
