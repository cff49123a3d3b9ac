/** Locks in shared memory name their holder, so that those of the dead can be told from those of the living. */
import { afterEach, describe, expect, it } from 'vitest';
import { SERVER } from '../../src/learners/board.ts';
import { LearnerMemory } from '../../src/learners/learner-memory.ts';
import { hasSharedMemory, SharedSpace } from '../../src/memory/index.ts';

const LAYOUT = { board: { batches: 1, learners: 2, slots: 0 }, parameters: 3, weightBytes: 64 };

describe.skipIf(!hasSharedMemory())('locks', () => {
  let memory: LearnerMemory;
  afterEach(() => memory.close());

  it('of the dead are freed, and of nobody else', () => {
    memory = LearnerMemory.create(SharedSpace.create(), `locks-${process.pid}`, LAYOUT);
    const [dead, living] = [
      { number: 0, generation: 0 },
      { number: 1, generation: 0 },
    ];
    memory.whileLocked(living, 2, () => {
      // Dies while it holds two of them: what it would have done at the end never happens.
      memory.whileLocked(dead, 0, () => {
        memory.whileLocked(dead, 1, () => {
          expect(memory.releaseLocks({ ...dead, generation: 1 })).toEqual([]);
          expect(memory.releaseLocks(dead)).toEqual([0, 1]);
          let isEntered = false;
          memory.whileLocked(living, 1, () => (isEntered = true));
          expect(isEntered).toBe(true);
        });
      });
      expect(memory.releaseLocks(living)).toEqual([2]);
    });
  });

  it('of the states are one, which the dead lose as well', () => {
    memory = LearnerMemory.create(SharedSpace.create(), `locks-${process.pid}`, LAYOUT);
    const [dead, living] = [
      { number: 0, generation: 0 },
      { number: 1, generation: 0 },
    ];
    memory.whileStatesLocked(dead, () => {
      memory.whileLocked({ number: SERVER, generation: 3 }, 1, () => {
        expect(memory.heldLocks).toBe(
          'the server holds the lock of parameter 1, learner 0 holds the lock of the states',
        );
      });
      expect(memory.releaseLocks(living)).toEqual([]);
      expect(memory.releaseLocks(dead)).toEqual([LAYOUT.parameters]);
      let isEntered = false;
      memory.whileStatesLocked(living, () => (isEntered = true));
      expect(isEntered).toBe(true);
    });
    expect(memory.heldLocks).toBe('');
  });
});
