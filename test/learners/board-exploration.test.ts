/** Every order of steps and every moment of death on a small board: nothing is lost, applied twice, or waited for in vain. */
import { describe, expect, it } from 'vitest';
import { Board } from '../../src/learners/board.ts';
import type { AtomicWords, BoardShape, Filled, Identity } from '../../src/learners/board.ts';
import { explore } from './explorer.ts';
import type { Exploration } from './explorer.ts';

const direct = (batches: number, deaths: number, replacements: number): Exploration => ({
  shape: { batches, learners: 2, slots: 0 },
  ...{ withServer: false, deaths, replacements },
});
const served = (batches: number, slots: number, deaths: number, replacements: number): Exploration => ({
  shape: { batches, learners: 2, slots },
  ...{ withServer: true, deaths, replacements },
});

describe('a board on which learners apply their own gradients', () => {
  it.each([direct(2, 0, 0), direct(2, 1, 1), direct(2, 2, 2), direct(3, 1, 0), direct(2, 2, 0)])(
    'applies each batch once: %j',
    (exploration) => {
      const { states, fault } = explore(exploration);
      expect(fault).toBeUndefined();
      console.log(`${states} states of ${JSON.stringify(exploration)}`);
    },
  );
});

describe('a board with a server', () => {
  it.each([
    served(2, 1, 0, 0),
    served(1, 1, 1, 1),
    served(1, 1, 2, 1),
    served(1, 2, 1, 1),
    served(2, 1, 1, 0),
  ])('applies each batch once: %j', (exploration) => {
    const { states, fault } = explore(exploration);
    expect(fault).toBeUndefined();
    console.log(`${states} states of ${JSON.stringify(exploration)}`);
  });
});

/** Boards in which one guard is missing: the exploration must find each of them. */
const [FREE, PUBLISHED, APPLYING] = [0, 2, 3];
const HEADER_WORDS = 16;
type Make = (words: AtomicWords, shape: BoardShape) => Board;

const planted: Readonly<Record<string, Make>> = {
  'the dead are forgotten': (words, shape) =>
    new (class extends Board {
      override reclaim() {
        return { returned: [], torn: [] };
      }
    })(words, shape),
  'what was half applied is given out again': (words, shape) =>
    new (class extends Board {
      override reclaim(dead: Identity) {
        for (let at = HEADER_WORDS; at < HEADER_WORDS + shape.batches; at++) {
          const word = words.load(at);
          if (word >>> 3 === (dead.number | (dead.generation << 8))) words.exchange(at, word, FREE);
        }
        return { returned: [], torn: [] };
      }
    })(words, shape),
};

const plantedWithServer: Readonly<Record<string, Make>> = {
  'a slot is accepted before it is published': (words, shape) =>
    new (class extends Board {
      override accept(self: Identity, learner: number, slot: number): Filled | undefined {
        const batch = words.load(HEADER_WORDS + shape.batches + learner * shape.slots + slot) - 1;
        if (batch < 0) return undefined;
        const word = words.load(HEADER_WORDS + batch);
        // The owner that the word names is not compared with that of the slot, nor the state looked at.
        if ((word & 7) > PUBLISHED) return undefined;
        const taken = APPLYING | (self.number << 3) | (self.generation << 11);
        return words.exchange(HEADER_WORDS + batch, word, taken) === word
          ? { batch, learner, slot }
          : undefined;
      }
    })(words, shape),
  'a slot is used before it is empty': (words, shape) =>
    new (class extends Board {
      override isEmpty(): boolean {
        return true;
      }
    })(words, shape),
};

describe('a missing guard is found', () => {
  it.each(Object.entries(planted))('%s', (_, makeBoard) => {
    const { fault } = explore({ ...direct(2, 1, 1), makeBoard });
    console.log(fault);
    expect(fault).toBeDefined();
  });

  it.each(Object.entries(plantedWithServer))('%s', (_, makeBoard) => {
    const { fault } = explore({ ...served(2, 1, 1, 1), makeBoard });
    console.log(fault);
    expect(fault).toBeDefined();
  });
});
