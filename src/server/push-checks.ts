/**
 * What is looked at before a push is taken: lengths, indices, samples, and whether workers push the same kind. Pure but for
 * the errors, which name worker and key. Invariant: what passes can be combined and applied without another look.
 */
import { keyText, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import type { Region } from '../memory/index.ts';
import type { ApplyStep } from './applied-steps.ts';
import type { WaitingAnswers } from './consistency.ts';
import type { Contribution } from './contribution.ts';
import type { Key } from './key.ts';

interface RowsOfPush {
  readonly worker: number;
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  readonly positions?: Region<'int32'> | undefined;
}

export function checkLength(key: Key, worker: number, gradient: Region<'float32'>): void {
  if (gradient.length === key.value.length) return;
  throw new UsageError(
    'SHAPE_MISMATCH',
    `worker ${worker} pushed ${gradient.length} elements to key ${keyText(key.title)}, which has ${key.value.length}; push its whole gradient`,
    { worker, key: key.title, expected: key.value.length, actual: gradient.length },
  );
}

/** Answers of one core that may wait for slower workers: a hundred bytes or two each. */
const MAX_WAITING_ANSWERS = 2 ** 19;

export function checkWaiting(key: Key, worker: number, { count }: WaitingAnswers): void {
  if (count < MAX_WAITING_ANSWERS) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed key ${keyText(key.title)} while ${count} answers wait for slower workers; await the answer of a push before the next`,
    { worker, key: key.title, expected: MAX_WAITING_ANSWERS, actual: count },
  );
}

export function askedAgain(worker: number, key: Key, step: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed step ${step} of key ${keyText(key.title)} again before this request was answered; await the answer of the last`,
    { worker, key: key.title, step },
  );
}

/** One row for each index, in their order or where the positions say. */
export function checkRows(key: Key, push: RowsOfPush, rowLength: number): void {
  if (push.positions) return checkPositions(key, push, rowLength);
  const { worker, indices, rows } = push;
  if (rows.length >= indices.length * rowLength) return;
  throw new UsageError(
    'SHAPE_MISMATCH',
    `worker ${worker} pushed ${indices.length} indices and ${rows.length} elements to key ${keyText(key.title)}, whose rows have ${rowLength}; push one row for each index`,
    { worker, key: key.title, expected: indices.length * rowLength, actual: rows.length },
  );
}

function checkPositions(key: Key, { worker, indices, rows, positions }: RowsOfPush, rowLength: number): void {
  const count = Math.floor(rows.length / rowLength);
  const isRight =
    positions!.length === indices.length && positions!.view.every((row) => row >= 0 && row < count);
  if (isRight) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `worker ${worker} named rows of its gradient of key ${keyText(key.title)} that are not among its ${count}; push one row for each of the ${indices.length} indices`,
    { worker, key: key.title, rows: count, indices: indices.length },
  );
}

export function checkIndices(key: Key, worker: number, indices: Region<'int32'>, rowLength: number): void {
  const tableRows = key.value.length / rowLength;
  const at = indices.view.findIndex((index) => index < 0 || index >= tableRows);
  if (at < 0) return;
  throw new UsageError(
    'OUT_OF_BOUNDS',
    `worker ${worker} named row ${indices.view[at]} of key ${keyText(key.title)}, which has ${tableRows}; give rows from 0 to ${tableRows - 1}`,
    { worker, key: key.title, row: indices.view[at], rows: tableRows },
  );
}

export function rowLengthOf(key: Key, worker: number): number {
  if (key.rowLength !== undefined) return key.rowLength;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} asked for rows of key ${keyText(key.title)}, which is no table; open it with a row length`,
    { worker, key: key.title },
  );
}

/** Half of a step dense and half by rows would be two updates instead of one. */
export function checkSameKind(key: Key, { worker, ...pushed }: Contribution): void {
  for (const { contribution } of key.waiting.values()) {
    if ('rows' in contribution === 'rows' in pushed) continue;
    const said = (byRows: boolean) => (byRows ? 'rows' : 'a whole gradient');
    throw new UsageError(
      'SHAPE_MISMATCH',
      `worker ${worker} pushed ${said('rows' in pushed)} of key ${keyText(key.title)}, worker ${contribution.worker} ${said('rows' in contribution)}; push the same on all workers`,
      { worker, other: contribution.worker, key: key.title },
    );
  }
}

interface Weighed {
  readonly worker: number;
  readonly key: StoreKey;
  readonly samples?: number | undefined;
}

/** `mayBeNone`: whether a push without samples is one, which weighs nothing. */
export function samplesOf({ worker, key, samples = 1 }: Weighed, mayBeNone: boolean): number {
  if ((samples > 0 || (mayBeNone && samples === 0)) && Number.isFinite(samples)) return samples;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed key ${keyText(key)} with ${samples} samples; give a positive number`,
    { worker, key, samples },
  );
}

export function notHeldNow(worker: number, key: Key, step: number): UsageError {
  const actual = key.held?.step;
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} asked for the combined gradient of step ${step} of key ${keyText(key.title)}, of which ${actual === undefined ? 'nothing' : `step ${actual}`} is held; push it on all workers, await the answers, and ask before apply`,
    { worker, key: key.title, expected: step, actual },
  );
}

/** Some of the workers have not pushed the key that others have pushed. */
export function tooEarly(
  key: Key,
  { worker, step }: { readonly worker: number; readonly step: number },
  workers: ReadonlySet<number>,
): UsageError {
  const missing = [...workers].filter((one) => !key.waiting.has(one));
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} asked to apply step ${step} while key ${keyText(key.title)} waits for the push of worker ${missing.join(', ')}; push the same keys on all workers and await the answers before apply`,
    { worker, step, key: key.title, missing },
  );
}

/** The step before it is held. */
export function notApplied(worker: number, key: Key, step: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed step ${step} of key ${keyText(key.title)}, whose step ${key.held!.step} is held; call apply on all workers before the next push`,
    { worker, key: key.title, held: key.held!.step, actual: step },
  );
}

/** Factor and rate must be numbers that can be multiplied with. */
export function checkApply({ worker, scale, lr }: ApplyStep, isHeld: boolean): void {
  if (!isHeld) throw notHeld(worker, 'to apply updates');
  if (Number.isFinite(scale) && (lr === undefined || Number.isFinite(lr))) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} asked to apply with scale ${scale} and learning rate ${lr}; give finite numbers`,
    { worker, scale: String(scale), lr: String(lr) },
  );
}

export function notHeld(worker: number, what: string): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} asked ${what} that are not held: pushes take effect by themselves; connect all workers with held updates`,
    { worker },
  );
}

/** Where the rule, or an average, keeps a slot of the key; without one the value itself. */
export function slotOf(
  { slots, title, value }: Pick<Key, 'slots' | 'title' | 'value'>,
  worker: number,
  slot?: string,
): Region<'float32'> {
  if (slot === undefined) return value;
  if (Object.hasOwn(slots, slot)) return slots[slot]!;
  const kept = Object.keys(slots);
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} named slot '${slot}' of key ${keyText(title)}, for which the optimizer keeps ${kept.join(', ') || 'nothing'}; set the same optimizer first`,
    { worker, key: title, slot, expected: kept },
  );
}
