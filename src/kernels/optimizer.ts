/**
 * Optimizers as rules on regions: one pass of a kernel over parameter, gradient and slots. The rule keeps
 * nothing itself: slots and step count belong to the caller, who shares, saves and restores them. Invariants:
 * an update of a range equals that range of a whole update, bit by bit; a sparse update in mode 'exact'
 * equals the dense one, bit by bit.
 */
import { UsageError } from '../base/index.ts';
import type { Region } from '../memory/index.ts';
import { checkCapacity, checkCount, checkRegion } from './argument-checks.ts';
import type { Coefficients } from './exports.ts';
import type { Kernels } from './kernels.ts';
import { resolveOptimizerSpec } from './optimizer-spec.ts';
import type { OptimizerSpec, ResolvedOptimizerSpec } from './optimizer-spec.ts';
import { OwnOptimizer } from './own-optimizer.ts';
import { isOwnRule, NO_RULES, ownRuleOf } from './own-rules.ts';
import type { OwnRules, OwnRuleSpec } from './own-rules.ts';
import { badIndex } from './rows.ts';
import type { RowPlan } from './rows.ts';

export type Slots = Readonly<Record<string, Region<'float32'>>>;

interface Step {
  /** Step number, from 1. */
  readonly t: number;
  /** Learning rate of this step. Default that of the specification. */
  readonly lr?: number | undefined;
  /** Factor of the gradient, for instance from clipping. Default 1. */
  readonly gradientScale?: number | undefined;
  readonly parameter: Region<'float32'>;
  /** Slots of the parameter, by name, of the parameter's length. */
  readonly slots: Slots;
}

export interface UpdateStep extends Step {
  readonly gradient: Region<'float32'>;
  /** First element to update. Default 0. */
  readonly start?: number | undefined;
  /** Elements to update. Default up to the end. */
  readonly length?: number | undefined;
}

export interface SumAndUpdateStep extends Step {
  /** One to eight gradients of the parameter's length, which are added in their order. */
  readonly sources: readonly Region<'float32'>[];
  /** Overwritten; at least `SUM_SCRATCH_ELEMENTS` long. */
  readonly scratch: Region<'float32'>;
}

/** Elements of the sum that are in memory at a time. */
export const SUM_SCRATCH_ELEMENTS = 512;
const MAX_SOURCES = 8;

export interface UpdateRowsStep extends Step {
  /** Elements of a row of the table. */
  readonly rowLength: number;
  /** Rows with a gradient, ascending and unique. */
  readonly indices: Region<'int32'>;
  /** Their gradients, [rowCount, rowLength]. */
  readonly rows: Region<'float32'>;
  readonly rowCount: number;
  /** 'exact' equals the dense update, 'lazy' leaves rows without a gradient and their slots alone. */
  readonly mode: 'exact' | 'lazy';
}

/** Gradients of rows that lie in one tensor. */
export interface RowSource {
  readonly rows: Region<'float32'>;
  /** Which of them are meant, one after the other. Default all. */
  readonly positions?: Region<'int32'> | undefined;
  /** Receives the new rows in the places of their gradients; may be `rows` itself. Default: nobody wants them. */
  readonly answer?: Region<'float32'> | undefined;
}

export interface SumAndUpdateRowsStep extends Step {
  readonly rowLength: number;
  /** Of the indices of all sources, one source after the other. */
  readonly plan: RowPlan;
  /** What `planRows` returned. */
  readonly unique: number;
  readonly sources: readonly RowSource[];
  /** Twice as many elements as rows were planned. */
  readonly addresses: Region<'int32'>;
  /** One row. */
  readonly scratch: Region<'float32'>;
}

export interface Optimizer {
  /** With all defaults filled in. */
  readonly spec: ResolvedOptimizerSpec | Required<OwnRuleSpec>;
  /** Names of the slots a parameter needs, with PyTorch's names. */
  readonly slots: readonly string[];
  /** Whether a gradient of zeros changes parameter or slots, as momentum does. */
  readonly movesWithoutGradient: boolean;
  /** Gives the slots their values before the first step; all, or those of these names. */
  initialise(slots: Slots, names?: readonly string[]): void;
  update(step: UpdateStep): void;
  /** As `update` with the sum of the sources for a gradient, bit by bit, but in one pass. */
  sumAndUpdate(step: SumAndUpdateStep): void;
  updateRows(step: UpdateRowsStep): void;
  /** As a lazy `updateRows` with the sums of the rows that a plan puts together, which are read where they lie. */
  sumAndUpdateRows(step: SumAndUpdateRowsStep): void;
}

/** A rule of `assembly/update.ts`: its number, its slots in the kernel's order, whether zero gradients move. */
interface Rule {
  readonly number: number;
  readonly slots: readonly [string?, string?, string?];
  readonly movesWithoutGradient: boolean;
  flags(t: number): number;
  coefficients(t: number, lr: number, gradientScale: number): Coefficients;
}

/** `rules`: those of users, where updates are made. Default: there are none. */
export function createOptimizer(
  kernels: Kernels,
  spec: OptimizerSpec | OwnRuleSpec,
  rules: OwnRules = NO_RULES,
): Optimizer {
  if (isOwnRule(spec)) return new OwnOptimizer(kernels, spec, ownRuleOf(rules, spec));
  return new KernelOptimizer(kernels, resolveOptimizerSpec(spec));
}

class KernelOptimizer implements Optimizer {
  readonly spec: ResolvedOptimizerSpec;
  readonly slots: readonly string[];
  readonly movesWithoutGradient: boolean;
  readonly #kernels: Kernels;
  readonly #rule: Rule;
  /** Addresses of what is summed. */
  readonly #sources = [0, 0, 0, 0, 0, 0, 0, 0];
  /** Those of the last step, which all chunks of a parameter share. */
  #last:
    | { readonly t: number; readonly lr: number; readonly scale: number; readonly coefficients: Coefficients }
    | undefined;

  constructor(kernels: Kernels, spec: ResolvedOptimizerSpec) {
    this.#kernels = kernels;
    this.#rule = ruleOf(spec);
    this.spec = spec;
    this.movesWithoutGradient = this.#rule.movesWithoutGradient;
    this.slots = this.#rule.slots.filter((name) => name !== undefined);
  }

  initialise(slots: Slots, names = this.slots): void {
    const value = this.spec.name === 'adagrad' ? this.spec.initialAccumulator : 0;
    for (const name of names) this.#kernels.fill(this.#slot(slots, name), value);
  }

  update(step: UpdateStep): void {
    const { parameter, gradient, start = 0 } = step;
    this.#checkStep(step);
    checkRegion(this.#kernels.space, 'gradient', gradient, 'float32', parameter.length);
    const length = step.length ?? parameter.length - start;
    checkCount('start of update', start);
    checkCount('length of update', length);
    if (start + length > parameter.length) {
      throw new UsageError(
        'OUT_OF_BOUNDS',
        `elements ${start} to ${start + length} are outside a parameter of ${parameter.length} elements; update within it`,
        { start, length, parameterLength: parameter.length },
      );
    }
    const at = 4 * start;
    const [s0, s1, s2] = this.#addresses(step.slots, parameter.length);
    this.#kernels.exports.update(
      this.#rule.number,
      this.#rule.flags(step.t),
      parameter.byteOffset + at,
      gradient.byteOffset + at,
      s0 + at,
      s1 + at,
      s2 + at,
      length,
      ...this.#coefficients(step),
    );
  }

  sumAndUpdate(step: SumAndUpdateStep): void {
    const { parameter, sources, scratch } = step;
    const { space, exports } = this.#kernels;
    this.#checkStep(step);
    checkCount('number of sources of sumAndUpdate', sources.length, 1);
    checkCapacity(space, 'scratch of sumAndUpdate', scratch, 'float32', SUM_SCRATCH_ELEMENTS);
    if (sources.length > MAX_SOURCES) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `sumAndUpdate has ${sources.length} sources; give up to ${MAX_SOURCES}`,
        { sources: sources.length },
      );
    }
    const p = this.#sources;
    for (let i = 0; i < sources.length; i++) {
      const source = sources[i]!;
      if (source.space !== space || source.dtype !== 'float32' || source.length !== parameter.length) {
        checkRegion(space, `source ${i} of sumAndUpdate`, source, 'float32', parameter.length);
      }
      p[i] = source.byteOffset;
    }
    const [s0, s1, s2] = this.#addresses(step.slots, parameter.length);
    const h = this.#coefficients(step);
    const flags = this.#rule.flags(step.t);
    // Written out, because spreading takes longer than the kernel needs for a small chunk.
    // prettier-ignore
    exports.sumAndUpdate(
      sources.length, scratch.byteOffset, p[0]!, p[1]!, p[2]!, p[3]!, p[4]!, p[5]!, p[6]!, p[7]!,
      this.#rule.number, flags, parameter.byteOffset, s0, s1, s2, parameter.length,
      h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9],
    );
  }

  updateRows(step: UpdateRowsStep): void {
    const { parameter, rowLength, indices, rows, rowCount, mode } = step;
    const { space, exports } = this.#kernels;
    this.#checkStep(step);
    checkCount('rowLength of updateRows', rowLength, 1);
    checkCount('rowCount of updateRows', rowCount);
    checkCapacity(space, 'indices of updateRows', indices, 'int32', rowCount);
    checkCapacity(space, 'rows of updateRows', rows, 'float32', rowCount * rowLength);
    const tableRows = rowsOf(parameter, rowLength);
    const exact = mode === 'exact' && this.#rule.movesWithoutGradient;
    const [s0, s1, s2] = this.#addresses(step.slots, parameter.length);
    const bad = exports.updateRows(
      exact ? 1 : 0,
      indices.byteOffset,
      rowCount,
      rows.byteOffset,
      rowLength,
      tableRows,
      this.#rule.number,
      this.#rule.flags(step.t),
      parameter.byteOffset,
      s0,
      s1,
      s2,
      ...this.#coefficients(step),
    );
    if (bad >= 0) throw badIndex('updateRows', indices, bad, tableRows);
  }

  sumAndUpdateRows(step: SumAndUpdateRowsStep): void {
    const { parameter, rowLength, plan, unique, sources, addresses, scratch } = step;
    const { space, exports } = this.#kernels;
    this.#checkStep(step);
    checkCount('rowLength of sumAndUpdateRows', rowLength, 1);
    checkCapacity(space, 'plan.indices', plan.indices, 'int32', unique);
    checkCapacity(space, 'plan.starts', plan.starts, 'int32', unique + 1);
    checkRegion(space, 'plan.order', plan.order, 'int32');
    checkCapacity(space, 'scratch of sumAndUpdateRows', scratch, 'float32', rowLength);
    const { count, answers } = fillAddresses(this.#kernels, addresses, sources, rowLength);
    const tableRows = rowsOf(parameter, rowLength);
    const [s0, s1, s2] = this.#addresses(step.slots, parameter.length);
    const bad = exports.sumAndUpdateRows(
      ...([plan.indices.byteOffset, unique, plan.starts.byteOffset, plan.order.byteOffset] as const),
      ...([addresses.byteOffset, answers, scratch.byteOffset, count, rowLength, tableRows] as const),
      ...([this.#rule.number, this.#rule.flags(step.t), parameter.byteOffset, s0, s1, s2] as const),
      ...this.#coefficients(step),
    );
    if (bad >= 0) throw badIndex('sumAndUpdateRows', plan.indices, bad, tableRows);
    if (bad === -1) return;
    throw new UsageError(
      'OUT_OF_BOUNDS',
      `the plan of ${unique} unique indices does not fit ${count} rows; call planRows for these rows first`,
      { unique, count },
    );
  }

  #checkStep(step: Step): void {
    checkCount('t of an update', step.t, 1);
    checkRegion(this.#kernels.space, 'parameter', step.parameter, 'float32');
  }

  #coefficients(step: Step): Coefficients {
    const { t, lr = this.spec.lr, gradientScale: scale = 1 } = step;
    if (this.#last?.t !== t || this.#last.lr !== lr || this.#last.scale !== scale) {
      this.#last = { t, lr, scale, coefficients: this.#rule.coefficients(t, lr, scale) };
    }
    return this.#last.coefficients;
  }

  #addresses(slots: Slots, length: number): [number, number, number] {
    const [a, b, c] = this.#rule.slots;
    const address = (name: string | undefined): number =>
      name === undefined ? 0 : this.#slot(slots, name, length).byteOffset;
    return [address(a), address(b), address(c)];
  }

  #slot(slots: Slots, name: string, length?: number): Region<'float32'> {
    const region = slots[name];
    if (region === undefined) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `slot '${name}' of ${this.spec.name} is missing; give regions for ${this.slots.join(', ')}`,
        { slot: name, expected: this.slots },
      );
    }
    checkRegion(this.#kernels.space, `slot '${name}'`, region, 'float32', length);
    return region;
  }
}

function rowsOf(parameter: Region<'float32'>, rowLength: number): number {
  const tableRows = parameter.length / rowLength;
  if (Number.isInteger(tableRows)) return tableRows;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `a parameter of ${parameter.length} elements has no rows of ${rowLength}; give the table's row length`,
    { parameterLength: parameter.length, rowLength },
  );
}

/** Where each row lies and where its answer goes, one source after the other: the number of rows, the second list or 0. */
function fillAddresses(
  { space, exports }: Kernels,
  addresses: Region<'int32'>,
  sources: readonly RowSource[],
  rowLength: number,
): { readonly count: number; readonly answers: number } {
  const rowBytes = 4 * rowLength;
  const rowsOfTensor = (tensor: Region<'float32'>) => Math.floor(tensor.length / rowLength);
  const counts = sources.map(({ rows, positions }) => positions?.length ?? rowsOfTensor(rows));
  const count = counts.reduce((sum, own) => sum + own, 0);
  checkCapacity(space, 'addresses of sumAndUpdateRows', addresses, 'int32', 2 * count);
  const view = addresses.view;
  let start = 0;
  sources.forEach(({ rows, positions, answer }, i) => {
    const own = counts[i]!;
    const limit = Math.min(rowsOfTensor(rows), answer ? rowsOfTensor(answer) : Infinity);
    checkRegion(space, 'rows of a source', rows, 'float32');
    if (answer) checkRegion(space, 'answer of a source', answer, 'float32');
    if (positions) {
      checkRegion(space, 'positions of a source', positions, 'int32');
      const bad = exports.firstBadIndex(positions.byteOffset, own, limit);
      if (bad >= 0) throw badIndex('the positions of a source', positions, bad, limit);
    } else if (answer) checkCapacity(space, 'answer of a source', answer, 'float32', own * rowLength);
    const from = positions?.view;
    for (let j = 0; j < own; j++) view[start + j] = rows.byteOffset + rowBytes * (from ? from[j]! : j);
    const shift = answer ? answer.byteOffset - rows.byteOffset : 0;
    for (let j = 0; j < own; j++) view[count + start + j] = answer ? view[start + j]! + shift : 0;
    start += own;
  });
  const isAnswered = sources.some(({ answer }) => answer);
  return { count, answers: isAnswered ? addresses.byteOffset + 4 * count : 0 };
}

const NO_FLAGS = (): number => 0;

function ruleOf(spec: ResolvedOptimizerSpec): Rule {
  const decays = spec.weightDecay !== 0;
  const decay = spec.weightDecay;
  switch (spec.name) {
    case 'sgd': {
      const { momentum, dampening, nesterov } = spec;
      if (momentum === 0) {
        return {
          number: 0,
          slots: [],
          movesWithoutGradient: decays,
          flags: NO_FLAGS,
          coefficients: (_t, lr, scale) => [lr, scale, decay, 0, 0, 0, 0, 0, 0, 0],
        };
      }
      return {
        number: 1,
        slots: ['momentum_buffer'],
        movesWithoutGradient: true,
        flags: (t) => (nesterov ? 1 : 0) + (t === 1 ? 2 : 0),
        coefficients: (_t, lr, scale) => [lr, scale, decay, momentum, 1 - dampening, 0, 0, 0, 0, 0],
      };
    }
    case 'adagrad': {
      const { lrDecay, eps } = spec;
      return {
        number: 2,
        slots: ['sum'],
        movesWithoutGradient: decays,
        flags: NO_FLAGS,
        coefficients: (t, lr, scale) => [lr / (1 + (t - 1) * lrDecay), scale, decay, eps, 0, 0, 0, 0, 0, 0],
      };
    }
    case 'rmsprop': {
      const { alpha, eps, momentum, centered } = spec;
      const flags = (centered ? 1 : 0) + (momentum === 0 ? 0 : 2);
      return {
        number: 3,
        slots: [
          'square_avg',
          momentum === 0 ? undefined : 'momentum_buffer',
          centered ? 'grad_avg' : undefined,
        ],
        movesWithoutGradient: true,
        flags: () => flags,
        coefficients: (_t, lr, scale) => [lr, scale, decay, alpha, 1 - alpha, eps, momentum, 0, 0, 0],
      };
    }
    case 'adam':
    case 'adamw': {
      const { betas, eps, amsgrad } = spec;
      const [b1, b2] = betas;
      const decoupled = spec.name === 'adamw';
      return {
        number: 4,
        slots: ['exp_avg', 'exp_avg_sq', amsgrad ? 'max_exp_avg_sq' : undefined],
        movesWithoutGradient: true,
        flags: () => (amsgrad ? 1 : 0),
        coefficients: (t, lr, scale) => [
          lr / (1 - b1 ** t),
          scale,
          decoupled ? 0 : decay,
          b1,
          1 - b1,
          b2,
          1 - b2,
          1 / Math.sqrt(1 - b2 ** t),
          eps,
          decoupled ? 1 - lr * decay : 1,
        ],
      };
    }
    case 'adadelta': {
      const { rho, eps } = spec;
      return {
        number: 5,
        slots: ['square_avg', 'acc_delta'],
        movesWithoutGradient: true,
        flags: NO_FLAGS,
        coefficients: (_t, lr, scale) => [lr, scale, decay, rho, 1 - rho, eps, 0, 0, 0, 0],
      };
    }
  }
}
