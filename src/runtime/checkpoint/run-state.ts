/**
 * What a checkpoint says of its run beside tensors: one form, whoever trains, so that others can go on with it. Compares it with
 * the run that is to go on, and says what that carries over. Reads and writes no files.
 * Invariant: no sample of an epoch is silently repeated or left out by whoever goes on from it.
 */
import { isDeepStrictEqual } from 'node:util';
import { UsageError, type ScheduleSpec } from '../../base/index.ts';
import type { SampleOrderState } from '../../data/index.ts';
import type { Evaluation } from '../evaluate.ts';
import type { JsonValue } from './json.ts';

export interface RunState {
  readonly seed: number;
  /** Samples behind one update. Undefined in checkpoints of earlier versions. */
  readonly batchSize: number | undefined;
  /** Samples of the dataset, where that is known. */
  readonly datasetLength: number | undefined;
  readonly optimizer: JsonValue;
  /** Where in the samples it is. */
  readonly order: SampleOrderState;
  /** Who trained, for people: '2 learners'. Undefined in checkpoints of earlier versions. */
  readonly trainedBy: string | undefined;
}

export interface RunStateParts extends Omit<RunState, 'batchSize' | 'trainedBy'> {
  readonly batchSize: number;
  readonly trainedBy: string;
  readonly schedule: ScheduleSpec | undefined;
  readonly evaluation: Evaluation | undefined;
}

/** What must be the same in the run that goes on; what is left out may differ. */
export type Wanted = Pick<RunState, 'seed' | 'optimizer'> &
  Partial<Pick<RunState, 'batchSize' | 'datasetLength'>>;

export function writeRunState(parts: RunStateParts): JsonValue {
  const { seed, batchSize, datasetLength, optimizer, schedule, order, evaluation, trainedBy } = parts;
  return {
    ...{ seed, batchSize, datasetLength: datasetLength ?? null, optimizer, trainedBy },
    schedule: (schedule ?? null) as JsonValue,
    order: order as unknown as JsonValue,
    metrics: (evaluation ? { ...evaluation } : null) as JsonValue,
  };
}

type Stored = Partial<Record<string, JsonValue>>;

export function readRunState(state: JsonValue): RunState {
  const stored = state as Stored;
  const [batchSize, trainedBy] = [stored['batchSize'], stored['trainedBy']];
  // Learners of earlier versions.
  const [done, samples] = [stored['done'], stored['samples']];
  const length = stored['datasetLength'] ?? samples;
  const order = stored['order'] as unknown as SampleOrderState;
  const isEarlier = Array.isArray(done) && typeof batchSize === 'number' && typeof samples === 'number';
  return {
    seed: stored['seed'] as number,
    batchSize: typeof batchSize === 'number' ? batchSize : undefined,
    datasetLength: typeof length === 'number' ? length : undefined,
    optimizer: stored['optimizer'] ?? null,
    order: isEarlier ? { ...order, ...placeOf(done as number[], batchSize) } : order,
    trainedBy: typeof trainedBy === 'string' ? trainedBy : undefined,
  };
}

/** Where an epoch is of which these batches are done. */
export function placeOf(
  done: readonly number[],
  batchSize: number,
): Pick<SampleOrderState, 'position' | 'ahead'> {
  const sorted = [...done].sort((a, b) => a - b);
  const first = sorted.findIndex((batch, i) => batch !== i);
  const inOrder = first < 0 ? sorted.length : first;
  const ahead = sorted.slice(inOrder).map((batch) => batch * batchSize);
  return { position: inOrder * batchSize, ...(ahead.length > 0 ? { ahead } : {}) };
}

/** The batches of an epoch that are done. */
export function doneBatches({ position, ahead = [] }: SampleOrderState, batchSize: number): number[] {
  return [
    ...Array.from({ length: position / batchSize }, (_, batch) => batch),
    ...ahead.map((start) => start / batchSize),
  ];
}

/** Whether it was made within an epoch: what is done of it is counted in batches of one size. */
export function isWithinEpoch({ order: { position, ahead = [] } }: RunState): boolean {
  return position > 0 || ahead.length > 0;
}

const TITLES = {
  seed: 'seed',
  optimizer: 'optimizer',
  batchSize: 'batchSize',
  datasetLength: 'samples',
} as const;

export function checkRunState(path: string, state: RunState, wanted: Wanted): void {
  const names = (Object.keys(TITLES) as (keyof Wanted)[]).filter((name) => {
    const [mine, theirs] = [wanted[name], state[name]];
    // What an earlier version did not say cannot differ.
    const isKnown = mine !== undefined && (theirs !== undefined || name === 'seed' || name === 'optimizer');
    return isKnown && !isDeepStrictEqual(plain(mine), plain(theirs));
  });
  if (names.length === 0) return;
  const what = (from: Wanted) =>
    names.map((name) => `${TITLES[name]} ${JSON.stringify(from[name]) ?? 'unknown'}`).join(', ');
  throw new UsageError(
    'CHECKPOINT_MISMATCH',
    `${path} was made with ${what(state)}; this run has ${what(wanted)}. Use what it was made with, or start in another folder.`,
    { path, differing: names },
  );
}

/** For people, if others go on than those who made it. */
export function carriedOver(path: string, { trainedBy, order }: RunState, now: string): string | undefined {
  if (trainedBy === undefined || trainedBy === now) return undefined;
  const { ahead = [] } = order;
  const skipped =
    ahead.length === 0 ? '' : `; ${ahead.length} batch(es) of the epoch that were done ahead are passed over`;
  return `${path} was made by ${trainedBy}. Carried over to ${now}: parameters, states, moving averages, the optimizer's state, the step and the place in the samples${skipped}.`;
}

/** For people: a run has more steps than it is now asked for. Undefined if it has not. */
export function beyondEnd(path: string | undefined, step: number, totalSteps: number): string | undefined {
  if (path === undefined || step <= totalSteps) return undefined;
  return `${path} has ${step} steps, more than the ${totalSteps} asked for: nothing is trained, and the result is that of step ${step}. Ask for more epochs or steps to go on with this run, or for another folder if another run was meant.`;
}

/** As it would come back from a file. */
function plain(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value)) as unknown;
}
