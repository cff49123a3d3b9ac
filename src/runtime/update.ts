/**
 * From aggregated gradients to new parameters: the graph's update operations in order, then the optimizer's rule,
 * then moving averages. Everything is done in place on the gradients; a custom operation runs on the compute engine.
 */
import type { Compute, CompiledGraph } from '../compute/index.ts';
import {
  Graph,
  type GradientBuilder,
  type Model,
  type ParameterFilter,
  type Tensor,
  type UpdateOperation,
} from '../graph/index.ts';
import {
  clipFactor,
  combineNorms,
  partialNorm,
  type Kernels,
  type NormType,
  type Optimizer,
} from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { GradientPlace, ModelMemory } from './model-memory.ts';

/** Runs the update of a parameter, by its number in the order of the gradients. */
export type UpdateGuard = (number: number, update: () => void) => void;

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
  /** The global norm that the last clipping saw. */
  lastNorm: number | undefined;

  constructor(options: UpdateOptions) {
    this.#options = options;
  }

  /** `t` counts steps from 1. */
  run(t: number, lr?: number): void {
    const { model, memory, optimizer, sparseUpdates } = this.#options;
    for (const operation of model.graph.updateOperations) this.#transform(operation);
    const guard: UpdateGuard = this.#options.guard ?? ((_, update) => update());
    let number = 0;
    for (const [name, place] of memory.gradients) {
      const parameter = memory.parameters.get(name)!;
      const slots = memory.slots.get(name)!;
      guard(number++, () => {
        if (place.kind === 'dense') {
          optimizer.update({ t, lr, parameter, gradient: place.region, slots });
          return;
        }
        const { rowLength, plan, rows, count } = place;
        optimizer.updateRows({
          ...{ t, lr, parameter, slots, rowLength, indices: plan.indices, rows, rowCount: count },
          mode: sparseUpdates,
        });
      });
    }
    this.#followAverages();
  }

  close(): void {
    for (const operation of this.#custom.values()) operation.close();
    this.#custom.clear();
  }

  #transform(operation: UpdateOperation): void {
    const { memory, kernels } = this.#options;
    const regions = [...memory.gradients.values()].map(valuesOf);
    switch (operation.kind) {
      case 'clip_global_norm': {
        const type: NormType = operation.order === 2 ? 'l2' : operation.order === 1 ? 'l1' : 'inf';
        this.lastNorm = combineNorms([partialNorm(kernels, regions, type)], type);
        const factor = clipFactor(this.lastNorm, operation.maxNorm);
        if (factor !== 1) for (const region of regions) kernels.scale(region, factor);
        return;
      }
      case 'clip_value':
        for (const region of regions) kernels.clipByValue(region, operation.limit);
        return;
      case 'weight_decay':
        return this.#decay(operation.rate, operation.applies);
      case 'custom':
        for (const [name, place] of memory.gradients)
          this.#runCustom(operation.name, operation.build, name, place);
    }
  }

  #decay(rate: number, applies: ParameterFilter): void {
    const { memory, kernels } = this.#options;
    for (const [name, place] of memory.gradients) {
      if (!applies(place.gradient.parameter)) continue;
      const parameter = memory.parameters.get(name)!;
      if (place.kind === 'dense') {
        kernels.axpy(place.region, rate, parameter);
        continue;
      }
      const { rowLength, rows, plan, count } = place;
      for (let i = 0; i < count; i++) {
        const row = parameter.slice(plan.indices.view[i]! * rowLength, rowLength);
        kernels.axpy(rows.slice(i * rowLength, rowLength), rate, row);
      }
    }
  }

  #runCustom(operation: string, build: GradientBuilder, name: string, place: GradientPlace): void {
    const { memory, compute, kernels } = this.#options;
    const values = valuesOf(place);
    if (values.length === 0) return;
    const rows = place.kind === 'sparse' ? place.count : undefined;
    const shape = place.kind === 'sparse' ? [place.count, place.rowLength] : place.gradient.parameter.shape;
    const key = `${operation}/${name}`;
    let custom = this.#custom.get(key);
    if (!custom || custom.rows !== rows) {
      custom?.close();
      custom = new CustomOperation(build, shape, rows, compute, memory);
      this.#custom.set(key, custom);
    }
    const parameter = memory.parameters.get(name)!;
    custom.gradient.view.set(values.view);
    if (place.kind === 'dense') custom.parameter.view.set(parameter.view);
    else {
      const { rowLength, plan, count } = place;
      for (let i = 0; i < count; i++) {
        const start = plan.indices.view[i]! * rowLength;
        custom.parameter.view.set(parameter.view.subarray(start, start + rowLength), i * rowLength);
      }
    }
    custom.run();
    kernels.copy(values, custom.result);
  }

  #followAverages(): void {
    const { model, memory, kernels } = this.#options;
    for (const { name, decay } of model.graph.movingAverages) {
      for (const [parameter, average] of memory.averages.get(name)!) {
        kernels.scale(average, decay);
        kernels.axpy(average, 1 - decay, memory.parameters.get(parameter)!);
      }
    }
  }
}

function valuesOf(place: GradientPlace): Region<'float32'> {
  return place.kind === 'dense' ? place.region : place.rows.slice(0, place.count * place.rowLength);
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
