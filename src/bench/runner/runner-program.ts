/**
 * A process of ours in `bench runner`: one device alone, or a worker of `getRunner`, which starts this script again for the others.
 * Does training steps when its turn comes, loading included, and says what they took. Started by our-group.ts, never imported.
 * Invariants: between turns it waits for a line; a worker whose first losses are not those of one device ends with an error.
 */
import { InternalError } from '../../base/index.ts';
import { getRunner, oneDevice, shard, type StepReport } from '../../runner/index.ts';
import { serveTurns } from '../allreduce/index.ts';
import type { ControlAddress, Turn, TurnResult } from '../allreduce/index.ts';
import { IN_STEP, MeetingPlace, type MeetingPlaceOptions } from './meeting-place.ts';
import { madeUpImages, runnerModels, TRAINING, type RunnerModel } from './runner-models.ts';
import { toWord } from './step-parts.ts';

export interface RunnerOrder {
  readonly control: ControlAddress;
  readonly model: RunnerModel;
  /** 1 for one device alone. */
  readonly workers: number;
  /** Of each worker. */
  readonly batch: number;
  /** Of all workers of the benchmark: all processes have the same samples. */
  readonly totalBatch: number;
  /** Of the first steps on one device; empty where the batch is another one. */
  readonly losses: readonly number[];
  /** Where copies meet behind every step of turns that say so. */
  readonly meeting?: MeetingPlaceOptions | undefined;
}

/** Of losses, relative; that of every result which must not depend on the number of workers. */
const TOLERANCE = 1e-4;

const order = JSON.parse(process.argv[2]!) as RunnerOrder;
const { control, workers, batch, totalBatch, losses } = order;
const described = runnerModels[order.model];
const config = {
  ...{ ...TRAINING, batchSize: workers * batch, session: { threads: 1, provider: 'cpu' } as const },
  log: () => undefined,
};
const runner =
  workers === 1
    ? await oneDevice(described.build(), config)
    : await getRunner(described.build(), { ...config, on: { workers } });
const steps = runner.run(shard(madeUpImages(described, totalBatch)), { epochs: Infinity });
const meetingPlace = order.meeting && new MeetingPlace(order.meeting);
for (const expected of losses) compare(await nextStep(), expected);
await serveTurns(control, runner.rank, take);
await steps.return(undefined);
meetingPlace?.close();
await runner.close();

async function take({ iterations, algorithm }: Turn): Promise<TurnResult> {
  const meets = algorithm === IN_STEP;
  const parts = { computeMs: 0, waitMs: 0 };
  const startedMs = performance.now();
  for (let i = 0; i < iterations; i++) {
    const { computeMs, waitMs } = await nextStep();
    if (meets) meetingPlace!.meet();
    parts.computeMs += computeMs / iterations;
    parts.waitMs += waitMs / iterations;
  }
  const micros = ((performance.now() - startedMs) * 1000) / iterations;
  return { micros, ok: true, algorithm: toWord(parts) };
}

async function nextStep(): Promise<StepReport> {
  const next = await steps.next();
  if (next.done !== true) return next.value;
  throw new InternalError('BROKEN_INVARIANT', 'a run of endless epochs has ended; please report it');
}

function compare({ step, loss }: StepReport, expected: number): void {
  if (Math.abs(loss - expected) <= TOLERANCE * Math.max(1, Math.abs(expected))) return;
  throw new InternalError(
    'BROKEN_INVARIANT',
    `${described.title}: the loss of step ${step} is ${loss} on ${workers} workers and ${expected} on one device; the comparison would be void, please report it`,
    { step, actual: loss, expected, workers },
  );
}
