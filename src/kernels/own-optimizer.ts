/**
 * A user's update rule as an optimizer: each call works on copies of the elements that change, which
 * take their places when it has gone well. Invariant: a call that fails leaves parameter and slots as
 * they were.
 */
import type { Kernels } from './kernels.ts';
import type { Optimizer, Slots, SumAndUpdateRowsStep, SumAndUpdateStep } from './optimizer.ts';
import type { UpdateRowsStep, UpdateStep } from './optimizer.ts';
import { guarded, notFiniteAt, ruleFailed } from './own-rules.ts';
import type { OwnRule, OwnRuleSpec } from './own-rules.ts';

type Step = Pick<UpdateStep, 't' | 'lr' | 'gradientScale' | 'parameter' | 'slots'>;

/** Elements in the order in which a call sees them. */
interface Elements {
  readonly count: number;
  /** Copies them out of a region of all. */
  readonly take: (from: Float32Array, into: Float32Array) => void;
  readonly put: (from: Float32Array, into: Float32Array) => void;
}

export class OwnOptimizer implements Optimizer {
  readonly spec: Required<OwnRuleSpec>;
  readonly slots: readonly string[];
  readonly movesWithoutGradient: boolean;
  readonly #kernels: Kernels;
  readonly #rule: OwnRule;
  readonly #room = new Map<string, Float32Array>();

  constructor(kernels: Kernels, spec: OwnRuleSpec, rule: OwnRule) {
    this.#kernels = kernels;
    this.#rule = rule;
    this.spec = { options: {}, ...spec };
    this.slots = rule.slots ?? [];
    this.movesWithoutGradient = rule.movesWithoutGradient ?? true;
  }

  initialise(slots: Slots, names = this.slots): void {
    for (const name of names) this.#kernels.fill(slots[name]!, 0);
  }

  update(step: UpdateStep): void {
    const { gradient, start = 0 } = step;
    this.#update(step, gradient.view, start);
  }

  #update(step: Step & Pick<UpdateStep, 'length'>, gradient: Float32Array, start = 0): void {
    const count = step.length ?? step.parameter.length - start;
    const elements: Elements = {
      count,
      take: (from, into) => into.set(from.subarray(start, start + count)),
      put: (from, into) => into.set(from, start),
    };
    this.#run(step, elements, (own) => elements.take(gradient, own));
  }

  updateRows(step: UpdateRowsStep): void {
    const { indices, rows, rowCount, rowLength, mode } = step;
    if (mode === 'exact' && this.movesWithoutGradient) return this.#update(step, dense(step));
    const at = (i: number) => indices.view[i]! * rowLength;
    const each = (copy: (i: number) => void) => {
      for (let i = 0; i < rowCount; i++) copy(i);
    };
    const elements: Elements = {
      count: rowCount * rowLength,
      take: (from, into) => each((i) => into.set(from.subarray(at(i), at(i) + rowLength), i * rowLength)),
      put: (from, into) => each((i) => into.set(from.subarray(i * rowLength, (i + 1) * rowLength), at(i))),
    };
    this.#run(step, elements, (own) => own.set(rows.view.subarray(0, elements.count)));
  }

  sumAndUpdate({ sources, ...step }: SumAndUpdateStep): void {
    const { length } = step.parameter;
    const elements: Elements = {
      count: length,
      take: (from, into) => into.set(from),
      put: (from, into) => into.set(from),
    };
    this.#run(step, elements, (own) => {
      own.fill(0);
      for (const { view } of sources) for (let i = 0; i < length; i++) own[i]! += view[i]!;
    });
  }

  /** Whoever has a plan sums by it first, and calls `updateRows`. */
  sumAndUpdateRows(_: SumAndUpdateRowsStep): never {
    throw ruleFailed(this.#title, 'it cannot add rows up; sum them before');
  }

  get #title(): string {
    return `rule '${this.spec.rule}' failed`;
  }

  #run(step: Step, { count, take, put }: Elements, fill: (gradient: Float32Array) => void): void {
    const { t, lr = this.spec.lr, gradientScale = 1 } = step;
    if (count === 0) return;
    const [parameter, gradient] = [this.#own('parameter', count), this.#own('gradient', count)];
    fill(gradient);
    if (gradientScale !== 1) for (let i = 0; i < count; i++) gradient[i]! *= gradientScale;
    take(step.parameter.view, parameter);
    const slots = Object.fromEntries(
      this.slots.map((name) => {
        const own = this.#own(`slot ${name}`, count);
        take(step.slots[name]!.view, own);
        return [name, own] as const;
      }),
    );
    const { options } = this.spec;
    guarded(this.#title, () => this.#rule.update({ parameter, gradient, slots, step: t, rate: lr, options }));
    const written: readonly (readonly [string, Float32Array])[] = [
      ['the parameter', parameter],
      ...Object.entries(slots).map(([name, own]) => [`slot '${name}'`, own] as const),
    ];
    for (const [what, own] of written) {
      const bad = notFiniteAt(own);
      if (bad === undefined) continue;
      throw ruleFailed(
        this.#title,
        `it wrote ${own[bad]} to ${what} in step ${t}; look for a division by zero`,
      );
    }
    put(parameter, step.parameter.view);
    for (const [name, own] of Object.entries(slots)) put(own, step.slots[name]!.view);
  }

  #own(name: string, count: number): Float32Array {
    let room = this.#room.get(name);
    if (room === undefined || room.length < count) this.#room.set(name, (room = new Float32Array(count)));
    return room.subarray(0, count);
  }
}

/** The gradient of a whole table, of which these rows are given. */
function dense({ parameter, indices, rows, rowCount, rowLength }: UpdateRowsStep): Float32Array {
  const view = new Float32Array(parameter.length);
  for (let i = 0; i < rowCount; i++) {
    view.set(rows.view.subarray(i * rowLength, (i + 1) * rowLength), indices.view[i]! * rowLength);
  }
  return view;
}
