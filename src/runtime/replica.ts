/**
 * One device's copy of a model: parameters in shared memory, the backward pass that fills gradients, the update
 * that consumes them. Between the two an exchange may aggregate gradients; on one device nothing happens there.
 * Invariant: after `update` the parameters are those of step `step`, and a snapshot restores them bit for bit.
 */
import { UsageError } from '../base/index.ts';
import type { Compute } from '../compute/index.ts';
import { fillInitial, gradients, type Model } from '../graph/index.ts';
import {
  averageSlot,
  createOptimizer,
  Kernels,
  type Optimizer,
  type OptimizerSpec,
} from '../kernels/index.ts';
import type { Region, Segment, SharedSpace } from '../memory/index.ts';
import { Backward } from './backward.ts';
import type { TensorData, Tensors } from './checkpoint/index.ts';
import { Evaluator } from './evaluator.ts';
import { IndexChecks } from './index-checks.ts';
import { ModelMemory } from './model-memory.ts';
import { Update } from './update.ts';
import type { GradientsElsewhere, UpdateGuard } from './update.ts';

export interface ReplicaOptions {
  readonly compute: Compute;
  readonly space: SharedSpace;
  readonly optimizer: OptimizerSpec;
  /** The largest batch that will be given. */
  readonly maxBatch: number;
  /** Decides initial parameters and dropout. Default 0. */
  readonly seed?: number;
  /**
   * 'exact' gives embedding tables the result of a dense update; 'lazy' leaves rows that a batch does not touch
   * alone, momentum included: faster, and what most frameworks do for sparse gradients. Default 'exact'.
   */
  readonly sparseUpdates?: 'exact' | 'lazy';
  /** Parameters whose gradients are handed over together; see `Backward`. */
  readonly groups?: readonly (readonly string[])[];
  /** Whose rows a sparse gradient has room for, once they are combined; see `ModelMemoryOptions`. Default 1. */
  readonly workers?: number | undefined;
  /**
   * Tables that live elsewhere; see `ModelMemoryOptions.rowsOnly`. Whoever gives some fills their
   * rows before each batch.
   */
  readonly rowsOnly?: ReadonlySet<string> | undefined;
  /** Name of a shared segment for all of it. Default: private to this process. */
  readonly segmentName?: string;
  /** Weights that several processes train; see `ModelMemoryOptions.weights`. Default: its own. */
  readonly weights?: Segment | undefined;
  /** Gradients that several processes use; see `ModelMemoryOptions.work`. Default: its own. */
  readonly work?: Segment | undefined;
  /** Called around all that reads or writes a parameter in an update; see `UpdateGuard`. Default: nothing around it. */
  readonly guard?: UpdateGuard | undefined;
  /** Whether the weights are those in the memory already, not first ones by the seed. Default false. */
  readonly adopts?: boolean | undefined;
}

export interface Snapshot {
  readonly tensors: Tensors;
  readonly optimizer: Tensors;
}

export class Replica {
  readonly model: Model;
  readonly memory: ModelMemory;
  readonly optimizer: Optimizer;
  readonly kernels: Kernels;
  /** Decides initial parameters and dropout. */
  readonly seed: number;
  /** Finished steps. */
  step = 0;
  /** The number by which people know a sample, for errors, where it is not its id. */
  numberOf: (sample: number) => number = (sample) => sample;
  readonly #compute: Compute;
  readonly #backward: Backward;
  readonly #update: Update;
  readonly #lookupChecks: IndexChecks;
  readonly #evaluators: Evaluator[] = [];

  constructor(model: Model, options: ReplicaOptions) {
    const { compute, space, maxBatch, seed = 0, sparseUpdates = 'exact' } = options;
    this.model = model;
    this.seed = seed;
    this.#compute = compute;
    const kernels = Kernels.create(space);
    this.kernels = kernels;
    this.optimizer = createOptimizer(kernels, options.optimizer);
    this.memory = new ModelMemory(model, {
      space,
      maxBatch,
      gradients: gradients(model.loss),
      slots: this.optimizer.slots,
      segmentName: options.segmentName,
      weights: options.weights,
      work: options.work,
      workers: options.workers,
      rowsOnly: options.rowsOnly,
      seed,
    });
    const { memory } = this;
    this.#backward = new Backward({
      ...{ model, memory, compute, kernels, seed, groups: options.groups },
      numberOf: (sample) => this.numberOf(sample),
    });
    this.#lookupChecks = new IndexChecks(model.graph, memory, (sample) => this.numberOf(sample));
    this.#update = new Update({
      ...{ model, memory, compute, kernels, optimizer: this.optimizer, sparseUpdates },
      guard: options.guard,
    });
    if (!options.adopts) this.#initialise(seed);
  }

  /** The arrays that hold a batch, by input name; a loader writes into them. */
  get inputs(): Record<string, Float32Array | Int32Array> {
    return Object.fromEntries(
      [...this.memory.inputs].map(([name, region]) => [name, region.view as Float32Array]),
    );
  }

  /** The norm that the last clipping by global norm saw. */
  get lastNorm(): number | undefined {
    return this.#update.lastNorm;
  }

  /** The loss of the batch in `inputs`; leaves gradients in their places. `samples` are the samples' ids. */
  computeGradients(samples: ArrayLike<number>, onGroup?: (group: number) => void): number {
    this.forward(samples);
    for (let group = 0; group < this.#backward.groups; group++) {
      this.backward(group);
      onGroup?.(group);
    }
    this.takeStates();
    return this.memory.loss.view[0]!;
  }

  /**
   * The same in pieces: begins with a batch; its loss is there behind the first group at the latest.
   * `onCompiled` is called if this batch size had to be compiled first.
   */
  forward(samples: ArrayLike<number>, onCompiled?: () => void): void {
    this.memory.sampleIds.view.set(samples);
    this.#backward.forward(samples.length, this.step, onCompiled);
  }

  /** The gradients of a group, in the order of the groups; `takeStates` comes behind the last one. */
  backward(group: number): void {
    this.#backward.group(group);
  }

  /**
   * Finds out which rows of tables that live elsewhere the batch in `inputs` looks up; they are to be brought into
   * `memory.rowBuffers` before it is computed. `samples` are the samples' ids.
   */
  findRows(samples: ArrayLike<number>): void {
    const { memory, kernels } = this;
    if (memory.rowBuffers.size === 0) return;
    memory.sampleIds.view.set(samples);
    this.#lookupChecks.run(samples.length, memory.rowBuffers);
    for (const buffer of memory.rowBuffers.values()) {
      buffer.plan(kernels, samples.length, (input) => memory.source(input));
    }
  }

  /**
   * Brings the rows that `findRows` found from where their tables were before servers had them; see
   * `RowBuffer.fill`.
   */
  fillRows(isTrial = false): void {
    const { parameters, averages, rowBuffers } = this.memory;
    for (const [name, buffer] of rowBuffers) {
      buffer.fill(parameters.get(name)!, isTrial);
      for (const [average, regions] of averages) {
        const rows = regions.get(name);
        if (rows) buffer.fill(rows, isTrial, averageSlot(average));
      }
    }
  }

  /**
   * States that the last batch has assigned, or all workers' batches together, become those of the
   * model.
   */
  takeStates(): void {
    this.memory.takeStates(this.kernels);
  }

  /** Cuts the backward pass anew; see `ReplicaOptions.groups`. */
  setGroups(groups: readonly (readonly string[])[]): void {
    this.#backward.setGroups(groups);
  }

  /** Runs the forward pass apart from the first group, so that it can be timed; see `Backward.cutForward`. */
  cutForward(): void {
    this.#backward.cutForward();
  }

  /** As after a batch without samples. */
  clearGradients(): void {
    this.kernels.fill(this.memory.exchanged, 0);
    for (const place of this.memory.gradients.values()) {
      if (place.kind === 'sparse') Object.assign(place, { count: 0, whole: undefined });
    }
  }

  /**
   * Applies the gradients: all that follows. Default learning rate: the optimizer's. `elsewhere`:
   * parameters that somebody else updates, by their gradients times the factor that this returns.
   */
  update(lr?: number, elsewhere?: GradientsElsewhere): number {
    this.step++;
    return this.#update.run(this.step, lr, elsewhere);
  }

  /**
   * Does to the gradients what comes before an update, by the number of the graph's update
   * operation. Returns the factor for gradients elsewhere, of which earlier ones have left the factor
   * `left`.
   */
  transform(number: number, elsewhere?: GradientsElsewhere, left?: number): number {
    return this.#update.transform(number, elsewhere, left);
  }

  /** Makes the step by the gradients as they are. */
  updateParameters(lr?: number, elsewhere?: GradientsElsewhere): void {
    this.step++;
    this.#update.parameters(this.step, lr, elsewhere);
  }

  /** Moving averages follow the parameters, whoever has updated them; not those that are elsewhere. */
  followAverages(elsewhere?: GradientsElsewhere): void {
    this.#update.averages(elsewhere);
  }

  /** Outputs in inference form, on these parameters or a moving average of them. */
  evaluator(outputs: readonly string[], average?: string): Evaluator {
    const tensors = outputs.map((name) => {
      const tensor = name === 'loss' ? this.model.loss : this.model.outputs[name];
      if (!tensor) {
        const known = ['loss', ...Object.keys(this.model.outputs)].join(', ');
        throw new UsageError('INVALID_ARGUMENT', `The model has no output ${name}; it has ${known}.`);
      }
      return tensor;
    });
    const evaluator = new Evaluator(tensors, this.memory, this.#compute, average);
    this.#evaluators.push(evaluator);
    return evaluator;
  }

  /** Whether every parameter, state and moving average that is here is a finite number. */
  isFinite(): boolean {
    const { states, averages } = this.memory;
    const parameters = new Map(this.#whole());
    const averaged = [...averages.values()].flatMap((regions) => this.#whole(regions).map(([, own]) => own));
    return [...parameters.values(), ...states.values(), ...averaged].every((region) =>
      Number.isFinite(this.kernels.absSum(region)),
    );
  }

  /** All that a checkpoint holds. Refused where some of it is not in this process. */
  snapshot(): Snapshot {
    const [table] = this.memory.rowBuffers.keys();
    if (table === undefined) return this.snapshotHere();
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${table} is on servers only (serverTables), so this replica has no whole snapshot. Take the run's checkpoint, by loadCheckpoint of its checkpointPath.`,
      { table },
    );
  }

  /** The same without tables that live elsewhere. */
  snapshotHere(): Snapshot {
    const { graph } = this.model;
    const shapeOf = (name: string) => (graph.parameters.get(name) ?? graph.states.get(name))!.shape;
    const data = (name: string, region: Region<'float32'>): TensorData => ({
      dtype: 'float32',
      shape: [...shapeOf(name)],
      data: region.view,
    });
    const tensors: Record<string, TensorData> = {};
    const optimizer: Record<string, TensorData> = {};
    for (const [name, region] of [...this.#whole(), ...this.memory.states])
      tensors[name] = data(name, region);
    for (const [average, regions] of this.memory.averages) {
      for (const [name, region] of this.#whole(regions)) tensors[`${average}/${name}`] = data(name, region);
    }
    for (const [name, slots] of this.memory.slots) {
      for (const [slot, region] of Object.entries(slots)) optimizer[`${name}/${slot}`] = data(name, region);
    }
    return { tensors, optimizer };
  }

  restore(snapshot: Snapshot, step: number): void {
    const mine = this.snapshotHere();
    copyTensors(snapshot.tensors, mine.tensors, 'model');
    copyTensors(snapshot.optimizer, mine.optimizer, 'optimizer');
    this.step = step;
  }

  close(): void {
    this.#backward.close();
    this.#update.close();
    for (const evaluator of this.#evaluators) evaluator.close();
    this.memory.close();
  }

  /** Those that are here whole. Default: of the parameters. */
  #whole(regions = this.memory.parameters): [string, Region<'float32'>][] {
    return [...regions].filter(([name]) => !this.memory.rowBuffers.has(name));
  }

  #initialise(seed: number): void {
    const { graph } = this.model;
    for (const [name, region] of this.#whole()) {
      fillInitial(region.view, graph.parameters.get(name)!.initialiser, name, seed);
    }
    for (const [name, region] of this.memory.states)
      fillInitial(region.view, graph.states.get(name)!.initialiser, name, seed);
    for (const regions of this.memory.averages.values()) {
      for (const [name, region] of this.#whole(regions))
        this.kernels.copy(region, this.memory.parameters.get(name)!);
    }
    for (const slots of this.memory.slots.values()) this.optimizer.initialise(slots);
  }
}

/** Every tensor must be there, and of the right shape. */
function copyTensors(from: Tensors, to: Tensors, what: string): void {
  const names = new Set([...Object.keys(from), ...Object.keys(to)]);
  for (const name of names) {
    const [given, wanted] = [from[name], to[name]];
    const print = (tensor: TensorData | undefined) =>
      tensor ? `${tensor.dtype}[${tensor.shape.join(', ')}]` : 'nothing';
    if (given && wanted && print(given) === print(wanted)) continue;
    throw new UsageError(
      'CHECKPOINT_MISMATCH',
      `The checkpoint's ${what} has ${print(given)} for ${name}, this run expects ${print(wanted)}. Use the configuration it was made with, or start in another folder.`,
      { name },
    );
  }
  for (const name of names) (to[name]!.data as Float32Array).set(from[name]!.data as Float32Array);
}
