/**
 * From aggregated gradients to new parameters: the graph's update operations in order, then the optimizer's rule,
 * then moving averages. Everything is done in place on the gradients; a custom operation runs on the compute engine.
 */
import { InternalError } from '../base/index.ts';
import type { Compute, CompiledGraph } from '../compute/index.ts';
import {
  Graph,
  type GradientBuilder,
  type Model,
  type Parameter,
  type ParameterFilter,
  type Tensor,
  type UpdateOperation,
} from '../graph/index.ts';
import {
  clipFactor,
  combineNorms,
  globalNorm,
  type GradientOperation,
  type KeyOperations,
  type Kernels,
  type Optimizer,
} from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { GradientPlace, ModelMemory } from './model-memory.ts';

/**
 * Runs what reads or writes a parameter, its slots and its averages, by its number in the order of the gradients. A step calls it
 * several times for the same one where something is done to the gradient by the parameter's value first.
 */
export type UpdateGuard = (number: number, update: () => void) => void;

/** Parameters that are updated where their gradients are combined. */
export interface GradientsElsewhere {
  readonly names: ReadonlySet<string>;
  /** Of all their combined gradients. */
  readonly sumOfSquares: number;
}

export interface UpdateOptions {
  readonly model: Model;
  readonly memory: ModelMemory;
  readonly compute: Compute;
  readonly kernels: Kernels;
  readonly optimizer: Optimizer;
  /** See `Optimizer.updateRows`. */
  readonly sparseUpdates: 'exact' | 'lazy';
  /** Default: updates run as they come. */
  readonly guard?: UpdateGuard | undefined;
}

export class Update {
  readonly #options: UpdateOptions;
  readonly #custom = new Map<string, CustomOperation>();
  /** That may be elsewhere. */
  readonly #checked = new WeakSet<ReadonlySet<string>>();
  /** The global norm that the last clipping saw. */
  lastNorm: number | undefined;

  constructor(options: UpdateOptions) {
    this.#options = options;
  }

  /** All of it. `t` counts steps from 1. Returns what clipping by the norm of all gradients leaves of those elsewhere. */
  run(t: number, lr?: number, elsewhere: GradientsElsewhere = NOTHING_ELSEWHERE): number {
    let left = 1;
    this.#options.model.graph.updateOperations.forEach((_, number) => {
      left *= this.transform(number, elsewhere, left);
    });
    const here = this.#here(elsewhere);
    here.forEach(([name, place], number) => {
      this.#guarded(number, () => {
        this.#apply(name, place, t, lr);
        this.#followAverages((parameter) => parameter === name);
      });
    });
    const updated = new Set(here.map(([name]) => name));
    this.#followAverages((parameter) => !updated.has(parameter) && !elsewhere.names.has(parameter));
    return left;
  }

  /**
   * One of the graph's update operations, on gradients. Returns the factor for those elsewhere, of
   * which earlier ones have left the factor `left`.
   */
  transform(number: number, elsewhere: GradientsElsewhere = NOTHING_ELSEWHERE, left = 1): number {
    const operation = this.#options.model.graph.updateOperations[number]!;
    const { names } = elsewhere;
    const sumOfSquares = left ** 2 * elsewhere.sumOfSquares;
    return this.#transform(operation, this.#here(elsewhere), { names, sumOfSquares });
  }

  /** The optimizer's rule, without averages. */
  parameters(t: number, lr?: number, elsewhere: GradientsElsewhere = NOTHING_ELSEWHERE): void {
    this.#here(elsewhere).forEach(([name, place], number) =>
      this.#guarded(number, () => this.#apply(name, place, t, lr)),
    );
  }

  /** What follows an update, whoever has made it; where parameters are elsewhere, so are their averages. */
  averages({ names }: GradientsElsewhere = NOTHING_ELSEWHERE): void {
    this.#followAverages((parameter) => !names.has(parameter));
  }

  #here({ names }: GradientsElsewhere): NamedPlaces {
    this.#checkElsewhere(names);
    return [...this.#options.memory.gradients].filter(([name]) => !names.has(name));
  }

  #apply(name: string, place: GradientPlace, t: number, lr: number | undefined): void {
    const { memory, optimizer, sparseUpdates } = this.#options;
    const parameter = memory.parameters.get(name)!;
    const slots = memory.slots.get(name)!;
    const gradient = place.kind === 'dense' ? place.region : place.whole;
    if (gradient) return optimizer.update({ t, lr, parameter, gradient, slots });
    if (place.kind === 'dense') return;
    const { rowLength, plan, rows, count } = place;
    optimizer.updateRows({
      ...{ t, lr, parameter, slots, rowLength, indices: plan.indices, rows, rowCount: count },
      mode: sparseUpdates,
    });
  }

  #guarded(number: number, act: () => void): void {
    if (this.#options.guard) this.#options.guard(number, act);
    else act();
  }

  close(): void {
    for (const operation of this.#custom.values()) operation.close();
    this.#custom.clear();
  }

  #checkElsewhere(names: ReadonlySet<string>): void {
    if (this.#checked.has(names)) return;
    this.#checked.add(names);
    const { model, memory } = this.#options;
    for (const name of names) {
      const why = operationsElsewhere(model.graph, memory.gradients.get(name)!.gradient.parameter);
      if (typeof why !== 'string') continue;
      throw new InternalError(
        'BROKEN_INVARIANT',
        `${name} is elsewhere, but ${why}; keep this parameter here`,
        { parameter: name },
      );
    }
  }

  /** Returns the factor for gradients elsewhere. */
  #transform(operation: UpdateOperation, here: NamedPlaces, elsewhere: GradientsElsewhere): number {
    const { kernels } = this.#options;
    const regions = here.map(([, place]) => valuesOf(place));
    switch (operation.kind) {
      case 'clip_global_norm': {
        const { order } = operation;
        const norms = [globalNorm(kernels, regions, order), Math.sqrt(elsewhere.sumOfSquares)];
        this.lastNorm = combineNorms(norms, order);
        const factor = clipFactor(this.lastNorm, operation.maxNorm);
        if (factor !== 1) for (const region of regions) kernels.scale(region, factor);
        return factor;
      }
      case 'clip_value':
        for (const region of regions) kernels.clipByValue(region, operation.limit);
        return 1;
      case 'weight_decay':
        this.#decay(operation.rate, operation.applies, here);
        return 1;
      case 'custom':
        here.forEach(([name, place], number) =>
          this.#runCustom(operation.name, operation.build, name, place, number),
        );
        return 1;
    }
  }

  #decay(rate: number, applies: ParameterFilter, here: NamedPlaces): void {
    const { memory, kernels } = this.#options;
    const decay = (name: string, place: GradientPlace) => {
      const parameter = memory.parameters.get(name)!;
      const gradient = place.kind === 'dense' ? place.region : place.whole;
      if (gradient) kernels.axpy(gradient, rate, parameter);
      if (gradient || place.kind === 'dense') return;
      const { rowLength, rows, plan, count } = place;
      for (let i = 0; i < count; i++) {
        const row = parameter.slice(plan.indices.view[i]! * rowLength, rowLength);
        kernels.axpy(rows.slice(i * rowLength, rowLength), rate, row);
      }
    };
    here.forEach(([name, place], number) => {
      if (applies(place.gradient.parameter)) this.#guarded(number, () => decay(name, place));
    });
  }

  #runCustom(
    operation: string,
    build: GradientBuilder,
    name: string,
    place: GradientPlace,
    number: number,
  ): void {
    const { memory, compute, kernels } = this.#options;
    const values = valuesOf(place);
    if (values.length === 0) return;
    const isByRows = place.kind === 'sparse' && !place.whole;
    const rows = isByRows ? place.count : undefined;
    const shape = isByRows ? [place.count, place.rowLength] : place.gradient.parameter.shape;
    const key = `${operation}/${name}`;
    let custom = this.#custom.get(key);
    if (!custom || custom.rows !== rows) {
      custom?.close();
      custom = new CustomOperation(build, shape, rows, compute, memory);
      this.#custom.set(key, custom);
    }
    const parameter = memory.parameters.get(name)!;
    custom.gradient.view.set(values.view);
    const target = custom.parameter.view;
    this.#guarded(number, () => {
      if (!isByRows) return target.set(parameter.view);
      const { rowLength, plan, count } = place;
      for (let i = 0; i < count; i++) {
        const start = plan.indices.view[i]! * rowLength;
        target.set(parameter.view.subarray(start, start + rowLength), i * rowLength);
      }
    });
    custom.run();
    kernels.copy(values, custom.result);
  }

  /** In one pass: several learners may follow at the same time, and two passes of two of them would add up to more than one. */
  #followAverages(follows: (parameter: string) => boolean): void {
    const { model, memory, kernels } = this.#options;
    for (const { name, decay } of model.graph.movingAverages) {
      for (const [parameter, average] of memory.averages.get(name)!) {
        if (!follows(parameter)) continue;
        kernels.blend(average, decay, memory.parameters.get(parameter)!, 1 - decay);
      }
    }
  }
}

/**
 * What whoever updates a parameter elsewhere does around that; or why nobody but the workers can,
 * as the end of a sentence: servers add up squares, and compile no expressions.
 */
export function operationsElsewhere(graph: Graph, parameter: Parameter): KeyOperations | string {
  const gradient: GradientOperation[] = [];
  for (const operation of graph.updateOperations) {
    switch (operation.kind) {
      case 'clip_global_norm':
        if (operation.order !== 2) {
          return `gradients are clipped by a norm of order ${operation.order}, and servers know only that of order 2`;
        }
        if (gradient.at(-1)?.kind === 'scale') break;
        if (gradient.some(({ kind }) => kind === 'scale')) {
          return 'gradients are clipped by their norm twice with another operation in between, and servers scale them once';
        }
        gradient.push({ kind: 'scale' });
        break;
      case 'clip_value':
        if (operation.limit !== Infinity) gradient.push({ kind: 'clip', limit: operation.limit });
        break;
      case 'weight_decay':
        if (operation.applies(parameter)) gradient.push({ kind: 'decay', rate: operation.rate });
        break;
      case 'custom':
        return `${operation.name} is an expression that only workers compute`;
    }
  }
  const averages = graph.movingAverages.filter(({ applies }) => applies(parameter));
  return { gradient, averages: averages.map(({ name, decay }) => ({ name, decay })) };
}

/**
 * Whether something is done to a sparse gradient that leaves rows without one alone, which the
 * gradient of a whole table would reach.
 */
export function seesTouchedRows({ updateOperations }: Graph, parameter: Parameter): boolean {
  return updateOperations.some(
    (one) => one.kind === 'custom' || (one.kind === 'weight_decay' && one.applies(parameter)),
  );
}

/** What a step program and a trace call it. */
export function partOf(operation: UpdateOperation): [kind: 'norm' | 'update', name: string] {
  switch (operation.kind) {
    case 'clip_global_norm':
      return ['norm', 'norm'];
    case 'clip_value':
      return ['update', 'clip'];
    case 'weight_decay':
      return ['update', 'weight decay'];
    case 'custom':
      return ['update', operation.name];
  }
}

type NamedPlaces = readonly (readonly [string, GradientPlace])[];

export const NOTHING_ELSEWHERE: GradientsElsewhere = { names: new Set(), sumOfSquares: 0 };

function valuesOf(place: GradientPlace): Region<'float32'> {
  if (place.kind === 'dense') return place.region;
  return place.whole ?? place.rows.slice(0, place.count * place.rowLength);
}

/** A user's expression, compiled for one gradient shape. */
class CustomOperation {
  readonly rows: number | undefined;
  readonly gradient: Region<'float32'>;
  readonly parameter: Region<'float32'>;
  readonly result: Region<'float32'>;
  readonly #segment: Segment;
  readonly #compiled: CompiledGraph;

  constructor(
    build: GradientBuilder,
    shape: readonly number[],
    rows: number | undefined,
    compute: Compute,
    memory: ModelMemory,
  ) {
    this.rows = rows;
    const graph = new Graph();
    const inputs = { gradient: graph.input('gradient', shape), parameter: graph.input('parameter', shape) };
    const result = build(inputs.gradient, inputs.parameter);
    const length = shape.reduce((product, dim) => product * dim, 1);
    this.#segment = memory.segment.space.allocate(3 * (4 * length + 64));
    this.gradient = this.#segment.allocate('float32', length);
    this.parameter = this.#segment.allocate('float32', length);
    this.result = this.#segment.allocate('float32', length);
    const places = new Map<Tensor, Region>([
      [inputs.gradient, this.gradient],
      [inputs.parameter, this.parameter],
      [result, this.result],
    ]);
    this.#compiled = compute.compile({
      segments: [[result]],
      batch: 1,
      place: (tensor) => places.get(tensor)!,
      allocate: (dtype, size) => this.#segment.allocate(dtype, size),
    });
  }

  run(): void {
    this.#compiled.run(0);
  }

  close(): void {
    this.#compiled.close();
    this.#segment.close();
  }
}
