/** The form of all checkpoints: what learners did out of order, steps of other lengths, and what earlier versions wrote. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SampleOrder } from '../../../src/data/index.ts';
import {
  carriedOver,
  checkRunState,
  doneBatches,
  placeOf,
  readRunState,
  stepOffsetOf,
  writeRunState,
} from '../../../src/runtime/index.ts';

const optimizer = { name: 'sgd', lr: 1 };
const state = (order: object, more: object = {}) => ({
  ...readRunState(
    writeRunState({
      ...{ seed: 3, batchSize: 8, datasetLength: 100, optimizer, schedule: undefined },
      ...{ order: { seed: 3, epoch: 0, position: 0, ...order }, evaluation: undefined },
      ...{ trainedBy: '2 learners', ...more },
    }),
  ),
});

describe('batches that are done', () => {
  it('are the same after they were a place in the samples, and nobody draws them again', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 60 }),
        fc.integer({ min: 1, max: 9 }),
        fc.infiniteStream(fc.boolean()),
        fc.integer({ min: 1, max: 20 }),
        (samples, batchSize, chances, drawn) => {
          const batches = Math.ceil(samples / batchSize);
          const done = Array.from({ length: batches }, (_, i) => i).filter(() => chances.next().value);
          // A whole epoch is the beginning of the next one.
          fc.pre(done.length < batches);
          const place = placeOf(done, batchSize, samples);
          expect(doneBatches({ seed: 1, epoch: 2, ...place }, batchSize, samples)).toEqual(done);
          const whole = new SampleOrder(samples, { seed: 1 }).seek(2, 0).draw(samples).samples;
          const left = [...whole].filter((_, i) => !done.includes(Math.floor(i / batchSize)));
          const order = SampleOrder.restore(samples, { seed: 1, epoch: 2, ...place });
          const rest: number[] = [];
          while (order.state.epoch === 2) rest.push(...order.draw(drawn).samples);
          expect(rest).toEqual(left);
        },
      ),
    );
  });

  it('are not known where a place is within one', () => {
    expect(doneBatches({ seed: 1, epoch: 0, position: 12 }, 8, 100)).toBeUndefined();
    expect(doneBatches({ seed: 1, epoch: 0, position: 8, ahead: [[20, 28]] }, 8, 100)).toBeUndefined();
    expect(doneBatches({ seed: 1, epoch: 0, position: 16, ahead: [[96, 100]] }, 8, 100)).toEqual([0, 1, 12]);
  });

  it('of learners of earlier versions are read', () => {
    const before = {
      ...{ seed: 3, samples: 100, batchSize: 8, optimizer, done: [0, 1, 4, 12] },
      order: { seed: 3, epoch: 1, position: 0 },
    };
    expect(readRunState(before)).toMatchObject({
      ...{ datasetLength: 100, trainedBy: undefined },
      order: {
        ...{ seed: 3, epoch: 1, position: 16 },
        ahead: [
          [32, 40],
          [96, 100],
        ],
      },
    });
  });
});

describe('steps', () => {
  it('count on, and what is left of the epoch is left of its steps', () => {
    expect(stepOffsetOf(state({ epoch: 1, position: 16 }), 15, 8)).toBe(0);
    // 7 steps of 16: after 16 samples 6 are left, after those of the ragged batch, too.
    expect(stepOffsetOf(state({ epoch: 1, position: 16 }), 15, 16)).toBe(15 - 8);
    expect(stepOffsetOf(state({ epoch: 1, position: 16, ahead: [[96, 100]] }), 16, 16)).toBe(16 - 9);
    expect(stepOffsetOf(state({ epoch: 1 }, { stepSamples: 16, stepOffset: 5 }), 12, 16)).toBe(5);
  });
});

describe('whoever goes on', () => {
  it('says what is carried over if it is somebody else, or makes other steps', () => {
    const own = { trainedBy: '2 learners', stepSamples: 8, done: 3 };
    expect(carriedOver('c', state({}), own)).toBeUndefined();
    expect(carriedOver('c', state({ ahead: [[8, 24]] }), { ...own, trainedBy: '4 workers' })).toBe(
      "c was made by 2 learners. Carried over to 4 workers: parameters, states, moving averages, the optimizer's state and the place in the samples; 16 samples of the epoch that were done ahead of it are passed over.",
    );
    expect(carriedOver('c', state({}), { ...own, stepSamples: 16 })).toMatch(
      /by 2 learners with 8 samples a step\. Carried over to 2 learners with 16: .*, which is that of 3 such steps\.$/,
    );
  });

  it('is refused with another seed, optimizer or size of batches, by what differs', () => {
    const wanted = { seed: 3, optimizer, batchSize: 8, datasetLength: 100 };
    expect(() => checkRunState('c', state({}), wanted)).not.toThrow();
    expect(() => checkRunState('c', state({}), { ...wanted, seed: 4, batchSize: 16 })).toThrow(
      'c was made with seed 3, batchSize 8; this run has seed 4, batchSize 16.',
    );
    const unknown = { ...state({}), batchSize: undefined };
    expect(() => checkRunState('c', unknown, wanted)).not.toThrow();
  });
});

describe('a state made by hand', () => {
  const order = { seed: 0, epoch: 0, position: 0 };

  it('that names a place beyond the samples is not counted out', () => {
    for (const position of [101, 2 ** 32, Number.MAX_SAFE_INTEGER])
      expect(doneBatches({ ...order, position }, 1, 100)).toBeUndefined();
    const ahead = [[50, Number.MAX_SAFE_INTEGER]] as const;
    expect(doneBatches({ ...order, ahead }, 50, 100)).toBeUndefined();
  });

  it.each([
    ['no place', undefined],
    ['a text', 'x'],
    ['no epoch', { seed: 0, position: 0 }],
    ['a position that is no number', { ...order, position: '1' }],
    ['a position before the first sample', { ...order, position: -1 }],
    ['what is no list of ranges', { ...order, ahead: 7 }],
    ['half a range', { ...order, ahead: [[1]] }],
    ['ranges out of order', { ...order, ahead: [[5, 3]] }],
    ['ranges of nothing', { ...order, ahead: [null] }],
  ])('that has %s is refused by name', (_, place) => {
    const state = { seed: 0, optimizer: null, order: place } as never;
    expect(() => readRunState(state)).toThrow(expect.objectContaining({ code: 'CHECKPOINT_CORRUPT' }));
  });
});
