/**
 * What the processes of a run must have in common when they come to the call, as text that can be
 * sent. A script that builds its model or loads its data by chance would train other weights in the
 * same places, or test on samples that others train on. Compares; builds nothing. Invariant: a
 * difference is an error that names it, before the process takes its first batch.
 */
import { packageVersion, UsageError } from '../base/index.ts';
import { fingerprintOf } from '../graph/index.ts';
import { someSamples } from '../runtime/index.ts';
import { SERVER } from './board.ts';
import type { Identity } from './board.ts';
import type { LearnerTask } from './task.ts';

/** By what people call it. */
export type TaskIdentity = Readonly<Record<string, string>>;

/** What is compared as a text that tells people nothing. */
const OPAQUE: readonly string[] = ['model', 'samples'];

export function identityOf(task: LearnerTask): TaskIdentity {
  const { model, train, optimizer, schedule, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = task;
  const columns = train.columns.map(({ name, sampleShape }) => `${name}[${sampleShape.join(', ')}]`);
  return {
    'version of Tributary': packageVersion(),
    model: fingerprintOf(model),
    'training data': `${train.length} samples of ${columns.join(', ')}`,
    samples: someSamples(
      train,
      train.columns.map(({ name }) => name),
    ),
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
    .map((what) => (OPAQUE.includes(what) ? what : `${what} (${mine[what]} instead of ${wanted[what]})`))
    .join(', ');
  throw new UsageError(
    'INVALID_GRAPH',
    `${who} came to the call with something else than the process that started the run: ${details}. Build the model and load the data alike in every process: without chance, time or environment, and with a seed where samples are shuffled or split.`,
    { learner: number, differing },
  );
}
