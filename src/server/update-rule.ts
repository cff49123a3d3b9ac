/**
 * What a server does with an aggregated gradient: a rule with slots of its own, run on one chunk at a time. Plug-ins
 * fulfil `UpdateRule`; built in are the optimizers of the kernels, assignment and accumulation. Invariant: a rule is
 * elementwise, so that the chunks of a key can be updated in any order and by different cores.
 */
import { UsageError } from '../base/index.ts';
import { addRows, copyRows, createOptimizer, isOwnRule } from '../kernels/index.ts';
import type {
  Kernels,
  OptimizerSpec,
  OwnRules,
  OwnRuleSpec,
  RowPlan,
  RowSource,
  Slots,
} from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';

interface RuleStep {
  /** Number of the update of this key, from 1. */
  readonly t: number;
  /** Learning rate of this step. Default that of the rule. */
  readonly lr?: number | undefined;
  /** Factor of the gradient, which an average divides by. */
  readonly gradientScale: number;
  readonly parameter: Region<'float32'>;
  /** By name, of the parameter's length. */
  readonly slots: Slots;
}

export interface ChunkUpdate extends RuleStep {
  /** Of the parameter's length. */
  readonly gradient: Region<'float32'>;
}

export interface SumUpdate extends RuleStep {
  /** In the order in which they are added. */
  readonly sources: readonly Region<'float32'>[];
  readonly scratch: Region<'float32'>;
}

export interface RowsUpdate extends RuleStep {
  readonly rowLength: number;
  /** Ascending and unique. */
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  readonly rowCount: number;
}

export interface SumRowsUpdate extends RuleStep {
  readonly rowLength: number;
  /** Of the indices of all sources, one after the other. */
  readonly plan: RowPlan;
  readonly unique: number;
  /** In the order in which rows of the same index are added. */
  readonly sources: readonly RowSource[];
  readonly addresses: Region<'int32'>;
  readonly scratch: Region<'float32'>;
}

export interface UpdateRule {
  /** Rules of one name differ in numbers only, and go on with each other's slots. Default: none, each begins anew. */
  readonly name?: string | undefined;
  /** Whether there is a learning rate to change. Default false. */
  readonly hasRate?: boolean | undefined;
  /** Names of what it keeps for each element. */
  readonly slots: readonly string[];
  /** Whether a gradient of zeros changes anything, as momentum does. Default false. */
  readonly movesWithoutGradient?: boolean | undefined;
  /** Whether an update leaves nothing of what was there, so that of several only the last counts. Default false. */
  readonly overwrites?: boolean | undefined;
  /** All slots, or those of these names. */
  initialise(slots: Slots, names?: readonly string[]): void;
  update(step: ChunkUpdate): void;
  /** The same with the sum of several gradients, in one pass where a rule can; up to eight. Default: summed before. */
  updateBySum?(step: SumUpdate): void;
  /** Updates the given rows and their slots only; others are as if their gradient had not been looked at (lazy). */
  updateRows(step: RowsUpdate): void;
  /** The same with rows of several sources, where they lie. Default: summed before. */
  updateRowsBySum?(step: SumRowsUpdate): void;
  /** So many updates of rows without a gradient at once, where a rule can. Default: one after the other. */
  repeatRows?(step: RowsUpdate, times: number): void;
}

export function optimizerRule(
  kernels: Kernels,
  spec: OptimizerSpec | OwnRuleSpec,
  rules?: OwnRules,
): UpdateRule {
  if (typeof spec !== 'object' || spec === null) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `the optimizer is ${String(spec)}; give an object with its name`,
      {
        optimizer: spec,
      },
    );
  }
  const optimizer = createOptimizer(kernels, spec, rules);
  const isOwn = isOwnRule(optimizer.spec);
  return {
    name: isOwnRule(optimizer.spec) ? `own ${optimizer.spec.rule}` : optimizer.spec.name,
    hasRate: true,
    slots: optimizer.slots,
    movesWithoutGradient: optimizer.movesWithoutGradient,
    initialise: (slots, names) => optimizer.initialise(slots, names),
    update: (step) => optimizer.update(step),
    updateBySum: (step) => optimizer.sumAndUpdate(step),
    updateRows: (step) => optimizer.updateRows({ ...step, mode: 'lazy' }),
    ...(!isOwn && { updateRowsBySum: (step) => optimizer.sumAndUpdateRows(step) }),
  };
}

/** What becomes of pushes before there is an optimizer: the value is the combined push, as in MXNet, or the sum of all. */
export type Updater = 'assign' | 'accumulate';

export function updaterRule(kernels: Kernels, updater: Updater): UpdateRule {
  return updater === 'assign' ? assignmentRule(kernels) : accumulationRule(kernels);
}

/** parameter = gradient, times the rate of a step that is given one. */
function assignmentRule(kernels: Kernels): UpdateRule {
  return {
    slots: [],
    // A step without a gradient has zeros for one.
    movesWithoutGradient: true,
    overwrites: true,
    initialise: () => undefined,
    update({ parameter, gradient, gradientScale, lr = 1 }) {
      kernels.copy(parameter, gradient);
      if (lr * gradientScale !== 1) kernels.scale(parameter, lr * gradientScale);
    },
    updateRows({ parameter: target, rowLength, indices: into, rows: source, rowCount: count, ...step }) {
      copyRows(kernels, { target, into, source, count, rowLength });
      const factor = (step.lr ?? 1) * step.gradientScale;
      if (factor === 1) return;
      for (const row of into.view.subarray(0, count)) {
        kernels.scale(target.slice(row * rowLength, rowLength), factor);
      }
    },
  };
}

/** parameter += rate * gradient. */
export function accumulationRule(kernels: Kernels, rate = 1): UpdateRule {
  if (!Number.isFinite(rate)) {
    throw new UsageError('INVALID_ARGUMENT', `rate is ${rate}; give a finite number`, { rate });
  }
  return {
    slots: [],
    initialise: () => undefined,
    update: ({ parameter, gradient, gradientScale, lr = rate }) =>
      kernels.axpy(parameter, lr * gradientScale, gradient),
    updateRows({ parameter, rowLength, indices, rows, rowCount, gradientScale, lr = rate }) {
      const factor = lr * gradientScale;
      if (factor === 1) return addRows(kernels, { target: parameter, rowLength, indices, rows, rowCount });
      // Without scaling them where they lie: rows that were held may be looked at afterwards.
      for (let i = 0; i < rowCount; i++) {
        const row = parameter.slice(indices.view[i]! * rowLength, rowLength);
        kernels.axpy(row, factor, rows.slice(i * rowLength, rowLength));
      }
    },
  };
}
