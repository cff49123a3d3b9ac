/**
 * The shared segments of a run: one for the board and the weights, and one for each gradient slot. Creates all of them or none.
 * Not what lies in them; see `learner-memory.ts` and `slots.ts`. Invariant: memory that cannot be had is refused here, before
 * a process is started: segments are reserved when they are made, and no write into them fails later.
 */
import { TributaryError, UsageError } from '../base/index.ts';
import type { Segment, SegmentOptions, SharedSpace } from '../memory/index.ts';
import { LearnerMemory } from './learner-memory.ts';
import type { LearnerLayout } from './learner-memory.ts';
import { slotSegment } from './slots.ts';

export interface LearnerSegments {
  readonly memory: LearnerMemory;
  close(): void;
}

export interface LearnerSegmentsOptions {
  readonly name: string;
  readonly layout: LearnerLayout;
  /** Of one gradient slot. */
  readonly slotBytes: number;
  readonly segments: SegmentOptions;
}

export function createLearnerSegments(space: SharedSpace, options: LearnerSegmentsOptions): LearnerSegments {
  const { name, layout, slotBytes, segments } = options;
  const { learners, slots } = layout.board;
  const open: (Segment | LearnerMemory)[] = [];
  const close = () => open.splice(0).forEach((one) => one.close());
  try {
    const memory = LearnerMemory.create(space, name, layout, segments);
    open.push(memory);
    for (let i = 0; i < learners * slots; i++) {
      const slot = slotSegment(name, Math.floor(i / slots), i % slots);
      open.push(space.createSegment(slot, slotBytes, { ...segments, sweep: false }));
    }
    return { memory, close };
  } catch (error) {
    close();
    throw error instanceof TributaryError && error.code === 'OUT_OF_SHARED_MEMORY'
      ? outOfMemory(options, error)
      : error;
  }
}

function outOfMemory({ layout, slotBytes }: LearnerSegmentsOptions, cause: TributaryError): UsageError {
  const { learners, slots } = layout.board;
  const neededBytes = LearnerMemory.bytes(layout) + learners * slots * slotBytes;
  const parts =
    slots > 0 ? `, ${learners * slots * slotBytes} of them for gradients in ${learners * slots} slots` : '';
  const fewer = slots > 0 ? ', or use fewer learners or a mode without a server' : '';
  return new UsageError(
    'OUT_OF_SHARED_MEMORY',
    `${learners} learner(s) need ${neededBytes} bytes of shared memory${parts}: ${cause.message}${fewer}`,
    { ...cause.facts, neededBytes, learners },
    cause,
  );
}
