/**
 * What a checkpoint says of its run beside tensors: one form, whoever trains, so that others can go
 * on with it. Compares it with the run that is to go on, and says what that carries over. Reads and
 * writes no files. Invariant: no sample of an epoch is silently repeated or left out by whoever
 * goes on from it.
 */
import { isDeepStrictEqual } from 'node:util';
import { printValue, UsageError, type ScheduleSpec } from '../../base/index.ts';
import type { SampleOrderState } from '../../data/index.ts';
import type { Evaluation } from '../evaluate.ts';
import type { JsonValue } from './json.ts';

export interface RunState {
  readonly seed: number;
  /** Samples behind one update. Undefined in checkpoints of earlier versions. */
  readonly batchSize: number | undefined;
  /**
   * Samples that all who train go through in a step. Undefined: as many as are behind an update.
   */
  readonly stepSamples?: number | undefined;
  /**
   * Steps that were made before, in another way to train, beyond those that this one would have
   * made. Default 0.
   */
  readonly stepOffset?: number | undefined;
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
  const { seed, batchSize, stepSamples = batchSize, datasetLength, optimizer, trainedBy } = parts;
  const { schedule, order, evaluation, stepOffset = 0 } = parts;
  return {
    ...{ seed, batchSize, stepSamples, stepOffset, datasetLength: datasetLength ?? null },
    ...{ optimizer, trainedBy },
    schedule: (schedule ?? null) as JsonValue,
    order: order as unknown as JsonValue,
    metrics: (evaluation ? { ...evaluation } : null) as JsonValue,
  };
}

type Stored = Partial<Record<string, JsonValue>>;

export function readRunState(state: JsonValue): RunState {
  const stored = state as Stored;
  const { batchSize, stepSamples, stepOffset, trainedBy } = stored;
  // Learners of earlier versions.
  const { done, samples } = stored;
  const length = stored['datasetLength'] ?? samples;
  const order = stored['order'] as unknown as SampleOrderState;
  checkPlace(order);
  const isEarlier = Array.isArray(done) && typeof batchSize === 'number' && typeof samples === 'number';
  return {
    seed: stored['seed'] as number,
    batchSize: typeof batchSize === 'number' ? batchSize : undefined,
    stepSamples: typeof stepSamples === 'number' ? stepSamples : undefined,
    stepOffset: typeof stepOffset === 'number' ? stepOffset : undefined,
    datasetLength: typeof length === 'number' ? length : undefined,
    optimizer: stored['optimizer'] ?? null,
    order: isEarlier ? { ...order, ...placeOf(done as number[], batchSize, samples) } : order,
    trainedBy: typeof trainedBy === 'string' ? trainedBy : undefined,
  };
}

/** The checksum holds, so this catches files made by hand. */
function checkPlace(order: unknown): asserts order is SampleOrderState {
  const { epoch, position, ahead = [] } = (order ?? {}) as Partial<SampleOrderState>;
  const isCount = (value: unknown) => Number.isSafeInteger(value) && (value as number) >= 0;
  // In order, and none twice.
  const ends: unknown[] = [position, ...(Array.isArray(ahead) ? (ahead.flat() as unknown[]) : [NaN])];
  const isInOrder = ends.every(
    (end, i) => isCount(end) && (i === 0 || (end as number) >= (ends[i - 1] as number)),
  );
  if (isCount(epoch) && isInOrder && ends.length % 2 === 1) return;
  throw new UsageError(
    'CHECKPOINT_CORRUPT',
    `The checkpoint names no place in the samples: ${printValue(order)}; expected epoch, position and ranges ahead, in order. Use it as it was written, or another one.`,
    { order },
  );
}

/** Where an epoch of so many samples is of which these batches are done. */
export function placeOf(
  done: readonly number[],
  batchSize: number,
  samples: number,
): Pick<SampleOrderState, 'position' | 'ahead'> {
  const sorted = [...done].sort((a, b) => a - b);
  const first = sorted.findIndex((batch, i) => batch !== i);
  const inOrder = first < 0 ? sorted.length : first;
  const end = (batch: number) => Math.min(samples, (batch + 1) * batchSize);
  const ahead = sorted.slice(inOrder).map((batch) => [batch * batchSize, end(batch)] as const);
  return { position: inOrder * batchSize, ...(ahead.length > 0 ? { ahead } : {}) };
}

/**
 * The batches of an epoch that are done; undefined if what is done is no number of such batches.
 */
export function doneBatches(
  { position, ahead = [] }: SampleOrderState,
  batchSize: number,
  samples: number,
): number[] | undefined {
  // The file may name any place: what is beyond the epoch is not counted out.
  const end = Math.max(position, ...ahead.slice(-1).map(([, last]) => last));
  if (end > samples) return undefined;
  const done = [[0, position] as const, ...ahead].flatMap(([start, end]) =>
    Array.from({ length: Math.ceil((end - start) / batchSize) }, (_, i) => start / batchSize + i),
  );
  const place = done.every(Number.isInteger) ? placeOf(done, batchSize, samples) : undefined;
  return place && samplesIn(place) === samplesIn({ position, ahead }) ? done : undefined;
}

/** So many of the epoch are behind. */
function samplesIn({ position, ahead = [] }: Pick<SampleOrderState, 'position' | 'ahead'>): number {
  return position + ahead.reduce((sum, [start, end]) => sum + end - start, 0);
}

/**
 * Steps of a checkpoint that do not count as such where a step has so many samples. In another way
 * to train they are counted by the place in the samples: what is left of the epoch is left of its
 * steps.
 */
export function stepOffsetOf(state: RunState, step: number, stepSamples: number): number {
  const { datasetLength: length, order, batchSize = stepSamples, stepOffset = 0 } = state;
  if (length === undefined || (state.stepSamples ?? batchSize) === stepSamples) return stepOffset;
  const stepsOf = (samples: number) => Math.ceil(samples / stepSamples);
  return step - ((order.epoch + 1) * stepsOf(length) - stepsOf(length - samplesIn(order)));
}

/** Whether it was made within an epoch: what is done of it is counted in batches of one size. */
export function isWithinEpoch({ order }: RunState): boolean {
  return samplesIn(order) > 0;
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
export function carriedOver(
  path: string,
  { trainedBy, batchSize, stepSamples = batchSize, order }: RunState,
  now: { readonly trainedBy: string; readonly stepSamples: number; readonly done: number },
): string | undefined {
  const isOther = stepSamples !== undefined && stepSamples !== now.stepSamples;
  if (!isOther && (trainedBy === undefined || trainedBy === now.trainedBy)) return undefined;
  const before = [trainedBy && ` by ${trainedBy}`, isOther && ` with ${stepSamples} samples a step`];
  const [who, size] = [now.trainedBy, isOther ? ` with ${now.stepSamples}` : ''];
  const counted = isOther ? `, which is that of ${now.done} such steps` : '';
  const { ahead = [] } = order;
  const passed = samplesIn({ position: 0, ahead });
  const skipped =
    passed === 0 ? '' : `; ${passed} samples of the epoch that were done ahead of it are passed over`;
  return `${path} was made${before.map((text) => text || '').join('')}. Carried over to ${who}${size}: parameters, states, moving averages, the optimizer's state and the place in the samples${counted}${skipped}.`;
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
