/**
 * One learner: takes batches from the board and computes their gradients. Lock-free it computes on
 * the shared weights where they lie (HogWild!: learners overwrite each other's elements now and
 * then, which small batches forgive); locked, on a copy that is renewed when there is something
 * new. It applies its own gradients, straight from where the backward pass wrote them, or leaves
 * them for the server in slots that both map: no gradient is ever copied. States of the model
 * (running statistics) it writes itself in every mode. Not a process; see `learn.ts`. Invariant: of
 * a batch whose loss is not finite neither gradient nor states reach the shared weights.
 */
import { learningRateAt, UsageError } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { SampleOrder } from '../data/index.ts';
import { createOptimizer, Kernels } from '../kernels/index.ts';
import type { SegmentOptions, SharedSpace } from '../memory/index.ts';
import { Replica, weightBytes } from '../runtime/index.ts';
import type { Identity } from './board.ts';
import type { LearnerMemory } from './learner-memory.ts';
import { rowCounts, slotSegment } from './slots.ts';
import type { LearnerTask } from './task.ts';
import { hasServer, isLocked, SLOTS } from './update-mode.ts';
import type { UpdateMode } from './update-mode.ts';

export interface LearnerOptions {
  readonly self: Identity;
  readonly task: LearnerTask;
  readonly mode: UpdateMode;
  readonly space: SharedSpace;
  readonly memory: LearnerMemory;
  /** Of the run's segments. */
  readonly name: string;
  /** Where they are. */
  readonly segments: SegmentOptions;
  /** Updates that the schedule does not count. */
  readonly stepOffset: number;
}

export class Learner {
  readonly #options: LearnerOptions;
  readonly #self: Identity;
  readonly #memory: LearnerMemory;
  readonly #compute: OnnxCompute;
  /** Compute gradients, each into a slot of its own; one where the learner applies them itself. */
  readonly #replicas: readonly Replica[];
  /** Applies them to the shared weights; undefined: the server does. */
  readonly #applier: Replica | undefined;
  readonly #order: SampleOrder;
  readonly #batchSize: number;
  #slot = 0;
  /** The version that the copy of the weights is of. */
  #copied = -1;

  constructor(options: LearnerOptions) {
    const { self, task, mode, space, memory, name, segments } = options;
    const { model, optimizer, train, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = task;
    this.#options = options;
    this.#self = self;
    this.#memory = memory;
    this.#batchSize = batchSize;
    this.#order = new SampleOrder(train.length, { seed });
    this.#compute = new OnnxCompute(task.session);
    const common = {
      ...{ compute: this.#compute, space, optimizer, maxBatch: batchSize, seed, sparseUpdates },
      adopts: true,
    };
    const { slots } = createOptimizer(Kernels.create(space), optimizer);
    const copy = isLocked(mode) ? space.allocate(weightBytes(model, slots)) : undefined;
    const weights = () => (copy ? space.adoptSegment(copy) : memory.weights());
    const guard = isLocked(mode)
      ? (parameter: number, update: () => void) => memory.whileLocked(self, parameter, update)
      : undefined;
    if (hasServer(mode)) {
      this.#replicas = Array.from({ length: SLOTS }, (_, slot) => {
        const work = space.attachSegment(slotSegment(name, self.number, slot), segments);
        return new Replica(model, { ...common, weights: weights(), work });
      });
      return;
    }
    const own = new Replica(model, { ...common, weights: weights() });
    this.#replicas = [own];
    const { byteOffset, byteLength } = own.memory.segment;
    this.#applier = copy
      ? new Replica(model, {
          ...{ ...common, weights: memory.weights(), guard },
          // Its gradients are those that the other one computes.
          work: space.adoptSegment({ byteOffset, byteLength }),
        })
      : own;
  }

  /** Takes a batch and trains on it; false if there is nothing to do now. */
  step(): boolean {
    const { board } = this.#memory;
    const slot = this.#slot;
    if (!this.#applier && !board.isEmpty(this.#self, slot)) return false;
    const batch = board.take(this.#self);
    if (batch === undefined) return false;
    const { samples } = this.#order.seek(board.epoch, batch * this.#batchSize).draw(this.#batchSize);
    const replica = this.#replicas[slot]!;
    const { train } = this.#options.task;
    for (const [name, target] of Object.entries(replica.inputs)) train.read(samples, name, target);
    const seen = this.#pull();
    replica.step = seen;
    replica.numberOf = (sample) => train.numberOf(sample);
    const loss = replica.computeGradients(samples);
    if (!Number.isFinite(loss)) throw this.#notFinite(batch, loss, seen);
    // First: a batch that is applied, even in part, has its loss noted.
    this.#memory.noteLoss(batch, loss);
    if (this.#applier) this.#apply(this.#applier, batch, seen);
    else this.#publish(replica, batch, seen);
    return true;
  }

  close(): void {
    for (const replica of this.#replicas) replica.close();
    if (this.#applier && !this.#replicas.includes(this.#applier)) this.#applier.close();
    this.#view?.close();
    this.#compute.close();
  }

  #apply(applier: Replica, batch: number, seen: number): void {
    const { board } = this.#memory;
    if (!board.begin(this.#self, batch)) return;
    this.#putStates();
    const update = this.#memory.countUpdate();
    const [own] = this.#replicas;
    if (applier !== own) rowCounts(applier, rowCounts(own!));
    applier.step = update - 1;
    const { task, stepOffset } = this.#options;
    const { schedule } = task;
    applier.update(schedule ? learningRateAt(schedule, update - 1 - stepOffset) : undefined);
    this.#memory.countWork(this.#self, update - 1 - seen);
    board.finish(this.#self, batch);
  }

  #publish(replica: Replica, batch: number, seen: number): void {
    const { board } = this.#memory;
    this.#putStates();
    this.#memory.slotFacts(this.#self.number, this.#slot).set([seen, ...rowCounts(replica)]);
    board.fill(this.#self, this.#slot, batch);
    board.publish(this.#self, batch);
    // How stale it is when it is applied, the server counts.
    this.#memory.countWork(this.#self, 0);
    this.#slot = (this.#slot + 1) % SLOTS;
    this.#memory.ring();
  }

  /** The version of the weights that are computed on, which are renewed first if they are a copy of older ones. */
  #pull(): number {
    const { version } = this.#memory;
    if (!isLocked(this.#options.mode)) return version;
    // Always: where a server applies, other learners write states before the version changes.
    this.#pullStates();
    if (version === this.#copied) return version;
    const { kernels, memory } = this.#replicas[0]!;
    const shared = this.#shared.memory.parameters;
    const trained = [...memory.gradients.keys()];
    trained.forEach((name, number) => {
      const [to, from] = [memory.parameters.get(name)!, shared.get(name)!];
      this.#memory.whileLocked(this.#self, number, () => kernels.copy(to, from));
    });
    if (this.#copied < 0) {
      // Frozen ones, or without a gradient: nobody writes them, so that one copy without a lock serves for the whole run.
      for (const [name, to] of memory.parameters) {
        if (!memory.gradients.has(name)) kernels.copy(to, shared.get(name)!);
      }
    }
    this.#copied = version;
    return version;
  }

  #pullStates(): void {
    const { kernels, memory } = this.#replicas[0]!;
    if (memory.states.size === 0) return;
    const shared = this.#shared.memory.states;
    this.#memory.whileStatesLocked(this.#self, () => {
      for (const [name, to] of memory.states) kernels.copy(to, shared.get(name)!);
    });
  }

  /** What the batch made of the states becomes that of all. Lock-free, the backward pass has written them where they lie. */
  #putStates(): void {
    const { kernels, memory } = this.#replicas[0]!;
    if (!isLocked(this.#options.mode) || memory.nextStates.size === 0) return;
    const shared = this.#shared.memory.states;
    this.#memory.whileStatesLocked(this.#self, () => {
      for (const name of memory.nextStates.keys()) kernels.copy(shared.get(name)!, memory.states.get(name)!);
    });
  }

  /** A view of the shared weights; where the server applies, one that does nothing else. */
  get #shared(): Replica {
    return this.#applier ?? this.#viewOfShared();
  }

  #view: Replica | undefined;

  #viewOfShared(): Replica {
    const { task, space, memory } = this.#options;
    const { byteOffset, byteLength } = this.#replicas[0]!.memory.segment;
    this.#view ??= new Replica(task.model, {
      ...{ compute: this.#compute, space, optimizer: task.optimizer, maxBatch: this.#batchSize },
      ...{ weights: memory.weights(), work: space.adoptSegment({ byteOffset, byteLength }), adopts: true },
    });
    return this.#view;
  }

  #notFinite(batch: number, loss: number, step: number): UsageError {
    this.#memory.board.putBack(this.#self, batch);
    const { number } = this.#self;
    return new UsageError(
      'NOT_A_NUMBER',
      `The loss of learner ${number} is ${loss} at step ${step}. Lower the learning rate, clip gradients, or look for broken values in the data.`,
      { learner: number, step },
    );
  }
}
