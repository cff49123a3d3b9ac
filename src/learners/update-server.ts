/**
 * The server of the modes that have one (GaDei, figure 5a): goes round the slots of all learners, applies what it finds to the
 * shared weights where both lie, and makes the slot free. Not a process; see `learn.ts`.
 * Invariant: a gradient is applied by nobody else, and once.
 */
import { learningRateAt } from '../base/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import type { SegmentOptions, SharedSpace } from '../memory/index.ts';
import { Replica } from '../runtime/index.ts';
import type { Filled, Identity } from './board.ts';
import type { LearnerMemory } from './learner-memory.ts';
import { rowCounts, slotSegment } from './slots.ts';
import type { LearnerTask } from './task.ts';
import { isLocked, SLOTS } from './update-mode.ts';
import type { UpdateMode } from './update-mode.ts';

export interface UpdateServerOptions {
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

export class UpdateServer {
  readonly #self: Identity;
  readonly #task: LearnerTask;
  readonly #stepOffset: number;
  readonly #memory: LearnerMemory;
  readonly #compute: OnnxCompute;
  /** By learner, then slot: the shared weights with the gradients of that slot. */
  readonly #replicas: readonly (readonly Replica[])[];

  constructor({ self, task, mode, space, memory, name, segments, stepOffset }: UpdateServerOptions) {
    const { model, optimizer, batchSize = 32, sparseUpdates = 'exact' } = task;
    this.#self = self;
    this.#task = task;
    this.#stepOffset = stepOffset;
    this.#memory = memory;
    this.#compute = new OnnxCompute(task.session);
    const guard = isLocked(mode)
      ? (parameter: number, update: () => void) => memory.whileLocked(self, parameter, update)
      : undefined;
    this.#replicas = Array.from({ length: memory.board.shape.learners }, (_, learner) =>
      Array.from({ length: SLOTS }, (__, slot) => {
        const work = space.attachSegment(slotSegment(name, learner, slot), segments);
        return new Replica(model, {
          ...{ compute: this.#compute, space, optimizer, maxBatch: batchSize, sparseUpdates },
          ...{ weights: memory.weights(), work, guard, adopts: true },
        });
      }),
    );
  }

  /** Once round all slots; false if nothing was there. */
  step(): boolean {
    const { board } = this.#memory;
    let worked = false;
    for (let slot = 0; slot < SLOTS; slot++) {
      for (let learner = 0; learner < board.shape.learners; learner++) {
        const filled = board.accept(this.#self, learner, slot);
        if (filled) this.#apply(filled);
        if (board.recycle(learner, slot)) this.#memory.ring();
        worked ||= filled !== undefined;
      }
    }
    return worked;
  }

  close(): void {
    for (const replica of this.#replicas.flat()) replica.close();
    this.#compute.close();
  }

  #apply({ learner, slot, batch }: Filled): void {
    const replica = this.#replicas[learner]![slot]!;
    const [seen = 0, ...counts] = this.#memory.slotFacts(learner, slot);
    rowCounts(replica, counts);
    const update = this.#memory.countUpdate();
    replica.step = update - 1;
    const { schedule } = this.#task;
    replica.update(schedule ? learningRateAt(schedule, update - 1 - this.#stepOffset) : undefined);
    this.#memory.countWork(this.#self, update - 1 - seen);
    this.#memory.board.finish(this.#self, batch);
  }
}
