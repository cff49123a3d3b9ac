/**
 * What the tasks that the processes of a run build must have in common, as text that can be sent. A task that is built from chance, the
 * environment or files that changed would train other weights in the same places. Compares; builds nothing.
 * Invariant: a difference is an error that names it, before the process takes its first batch.
 */
import { UsageError } from '../base/index.ts';
import { fingerprintOf } from '../runner/index.ts';
import { SERVER } from './board.ts';
import type { Identity } from './board.ts';
import type { LearnerTask } from './task.ts';

/** By what people call it. */
export type TaskIdentity = Readonly<Record<string, string>>;

/** To be asked for before anybody adds gradients to the model's graph. */
export function identityOf(task: LearnerTask): TaskIdentity {
  const { model, train, optimizer, schedule, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = task;
  const columns = train.columns.map(({ name, sampleShape }) => `${name}[${sampleShape.join(', ')}]`);
  return {
    model: fingerprintOf(model),
    'training data': `${train.length} samples of ${columns.join(', ')}`,
    optimizer: JSON.stringify(optimizer),
    schedule: JSON.stringify(schedule ?? 'none'),
    'batch size': String(batchSize),
    seed: String(seed),
    'sparse updates': sparseUpdates,
  };
}

export function checkSameTask({ number }: Identity, mine: TaskIdentity, wanted: TaskIdentity): void {
  const differing = Object.keys(wanted).filter((what) => mine[what] !== wanted[what]);
  if (differing.length === 0) return;
  const who = number === SERVER ? 'the server' : `learner ${number}`;
  const details = differing
    .map((what) => (what === 'model' ? what : `${what} (${mine[what]} instead of ${wanted[what]})`))
    .join(', ');
  throw new UsageError(
    'INVALID_GRAPH',
    `buildTask gave ${who} another task than the process that started the run: ${details}. Build the task alike in every process: from its data alone, without chance, time or environment.`,
    { learner: number, differing },
  );
}
