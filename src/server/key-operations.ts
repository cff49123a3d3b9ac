/**
 * What a server does around the update rule of one key (`kernels/key-operations.ts`): the checks,
 * and the arithmetic on one chunk or on some rows. When it is done is decided by `key-updates.ts`.
 * Invariants: the numbers are those of one device; of a table, transforms see the rows that have a
 * gradient, averages follow every row in every update.
 */
import { keyText, UsageError } from '../base/index.ts';
import type { StoreKey } from '../base/index.ts';
import { averageSlot, blendRows } from '../kernels/index.ts';
import type { AverageOperation, GradientOperation, Kernels, KeyOperations } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Consistency } from './consistency.ts';
import type { ChunkUpdate, RowsUpdate, UpdateRule } from './update-rule.ts';

const MAX_OPERATIONS = 64;
const MAX_NAME_LENGTH = 256;

export function averageSlots(operations: KeyOperations | undefined): readonly string[] {
  return operations?.averages.map(({ name }) => averageSlot(name)) ?? [];
}

/** What is wrong with operations of unknown origin, as the end of a sentence; undefined: nothing. */
export function operationsFault(value: unknown): string | undefined {
  if (!isRecord(value)) return 'are no object with gradient and averages';
  const { gradient, averages } = value;
  if (!Array.isArray(gradient) || !Array.isArray(averages)) return 'need the lists gradient and averages';
  if (gradient.length + averages.length > MAX_OPERATIONS) {
    return `are ${gradient.length + averages.length}, more than ${MAX_OPERATIONS}`;
  }
  const bad = gradient.find((one) => !isGradientOperation(one)) as unknown;
  if (bad !== undefined) {
    return `have ${JSON.stringify(bad)}; give a clip with a positive limit, a decay with a positive rate, or scale`;
  }
  if (gradient.filter((one) => (one as GradientOperation).kind === 'scale').length > 1) {
    return 'have scale more than once';
  }
  const wrong = averages.find((one) => !isAverage(one)) as unknown;
  if (wrong !== undefined) {
    return `have the average ${JSON.stringify(wrong)}; give a name and a decay from 0 to below 1`;
  }
  const names = averages.map((one) => (one as AverageOperation).name);
  const repeated = names.find((name, i) => names.indexOf(name) !== i);
  return repeated === undefined ? undefined : `have the average '${repeated}' twice`;
}

/** `consistency`: of the service, where it is known. */
export function checkOperations(key: StoreKey, value: unknown, consistency?: Consistency): void {
  if (value === undefined) return;
  const elsewhere =
    consistency?.kind === 'elastic'
      ? 'are for updates, which servers in elastic mode do not make; leave them out'
      : undefined;
  const fault = operationsFault(value) ?? elsewhere;
  if (fault === undefined) return;
  throw new UsageError('INVALID_ARGUMENT', `the operations of key ${keyText(key)} ${fault}`, { key });
}

function isGradientOperation(value: unknown): value is GradientOperation {
  if (!isRecord(value)) return false;
  const { kind, limit, rate } = value;
  return kind === 'scale' || (kind === 'clip' ? isPositive(limit) : kind === 'decay' && isPositive(rate));
}

function isAverage(value: unknown): value is AverageOperation {
  if (!isRecord(value)) return false;
  const { name, decay } = value;
  const isNamed = typeof name === 'string' && name.length > 0 && name.length <= MAX_NAME_LENGTH;
  return isNamed && typeof decay === 'number' && decay >= 0 && decay < 1;
}

function isPositive(value: unknown): boolean {
  return typeof value === 'number' && Number.isFinite(value) && value > 0;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Those that are done as soon as a gradient is combined, and those that wait for `apply`. */
export function aroundScale({ gradient }: KeyOperations): {
  readonly before: readonly GradientOperation[];
  readonly behind: readonly GradientOperation[];
} {
  const at = gradient.findIndex(({ kind }) => kind === 'scale');
  return { before: gradient.slice(0, Math.max(0, at)), behind: gradient.slice(at + 1) };
}

/** In place, on a chunk; `parameter` is the same chunk of the value. */
export function transformChunk(
  kernels: Kernels,
  operations: readonly GradientOperation[],
  gradient: Region<'float32'>,
  parameter: Region<'float32'>,
): void {
  for (const operation of operations) {
    if (operation.kind === 'clip') kernels.clipByValue(gradient, operation.limit);
    else if (operation.kind === 'decay') kernels.axpy(gradient, operation.rate, parameter);
  }
}

export interface RowGradients {
  readonly rows: Region<'float32'>;
  readonly rowCount: number;
  readonly rowLength: number;
  readonly indices: Region<'int32'>;
}

/** In place, on rows; `value`: the whole table. */
export function transformRows(
  kernels: Kernels,
  operations: readonly GradientOperation[],
  { rows, rowCount, rowLength, indices }: RowGradients,
  value: Region<'float32'>,
): void {
  const all = rows.slice(0, rowCount * rowLength);
  for (const operation of operations) {
    if (operation.kind === 'clip') kernels.clipByValue(all, operation.limit);
    else if (operation.kind === 'decay') {
      for (let i = 0; i < rowCount; i++) {
        const row = value.slice(indices.view[i]! * rowLength, rowLength);
        kernels.axpy(all.slice(i * rowLength, rowLength), operation.rate, row);
      }
    }
  }
}

/**
 * A rule, and averages that follow each of its updates. `rule` undefined: the averages alone, as
 * they go on for rows that do not move.
 */
export function withAverages(
  kernels: Kernels,
  rule: UpdateRule | undefined,
  averages: readonly AverageOperation[],
): UpdateRule {
  const follow = ({ parameter, slots }: Pick<ChunkUpdate, 'parameter' | 'slots'>): void => {
    for (const { name, decay } of averages) {
      kernels.blend(slots[averageSlot(name)]!, decay, parameter, 1 - decay);
    }
  };
  const followRows = (
    { parameter: x, slots, rowLength }: Pick<RowsUpdate, 'parameter' | 'slots' | 'rowLength'>,
    { indices, rowCount }: Pick<RowsUpdate, 'indices' | 'rowCount'>,
    times = 1,
  ): void => {
    for (const { name, decay: keep } of averages) {
      const target = slots[averageSlot(name)]!;
      blendRows(kernels, { target, keep, x, share: 1 - keep, rowLength, indices, rowCount, times });
    }
  };
  const followed: UpdateRule = {
    ...{ name: rule?.name, hasRate: rule?.hasRate },
    slots: [...(rule?.slots ?? []), ...averages.map(({ name }) => averageSlot(name))],
    movesWithoutGradient: true,
    initialise: (slots, names) => rule?.initialise(slots, names),
    update: (step) => {
      rule?.update(step);
      follow(step);
    },
    updateRows: (step) => {
      rule?.updateRows(step);
      followRows(step, step);
    },
    ...(rule?.updateBySum && {
      updateBySum: (step) => {
        rule.updateBySum!(step);
        follow(step);
      },
    }),
    ...(rule?.updateRowsBySum && {
      updateRowsBySum: (step) => {
        rule.updateRowsBySum!(step);
        followRows(step, { indices: step.plan.indices, rowCount: step.unique });
      },
    }),
  };
  // The averages of rows that rest can go several steps at once.
  return rule?.movesWithoutGradient
    ? followed
    : { ...followed, repeatRows: (step, times) => followRows(step, step, times) };
}
