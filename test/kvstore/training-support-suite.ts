/**
 * Synchronous training of the models of training.json on 2 and 3 workers, dense and by rows, through whatever stores a
 * layout opens: one suite, run for each of them.
 */
import { afterAll, beforeAll, describe, it } from 'vitest';
import { OnnxCompute } from '../../src/compute/index.ts';
import type { KVStore } from '../../src/kvstore/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { openRanks } from './collective-ranks.ts';
import type { Ranks, RanksOptions } from './collective-ranks.ts';
import { divisionsOf, runsOf, trainingCases } from '../support/training-models.ts';
import { followRun } from './training-support.ts';
import type { OpenStores, Training } from './training-support.ts';

/** Of every store: so short that also these small models have keys of several chunks. */
export const STORE_SETTINGS = {
  combine: 'mean',
  chunkBytes: 128,
  rows: 'exact',
  // The norm of all gradients is taken from a store that adds them up.
  updater: 'accumulate',
} as const;

/** `every`: only each so-many-th training, where all of them take long; TRIBUTARY_ACCEPTANCE does all. */
export function trainingSuite(
  through: string,
  open: (workers: number) => Promise<OpenStores>,
  every = 1,
): void {
  describe(`training through ${through}`, () => {
    const space = SharedSpace.create();
    let compute: OnnxCompute;
    beforeAll(() => {
      compute = new OnnxCompute();
    });
    afterAll(() => compute.close());

    const trainings = trainingCases().flatMap((c) =>
      divisionsOf(c).flatMap((sizes) =>
        runsOf(c, sizes).flatMap((run) => [false, true].map((byRows) => ({ c, run, sizes, byRows }))),
      ),
    );
    const chosen = trainings.filter((_, i) => i % every === 0 || process.env['TRIBUTARY_ACCEPTANCE']);
    const titleOf = ({ c, run, sizes, byRows }: Pick<Training, 'c' | 'run' | 'sizes' | 'byRows'>) =>
      `${c.name} with ${run.optimizer}, batches in ${sizes.join(' + ')}, ${byRows ? 'by rows' : 'dense'}`;
    it.each(chosen.map((training) => [titleOf(training), training] as const))(
      'follows %s',
      (_title, training) => followRun({ ...training, compute, space, open }),
    );
  });
}

export function opened(stores: readonly KVStore[], ranks?: Ranks): OpenStores {
  return {
    stores,
    close: async () => {
      await Promise.all(stores.map((store) => store.close()));
      ranks?.close();
    },
  };
}

/** Stores of workers that meet in groups. */
export function onRanks(
  options: RanksOptions,
  create: (group: Ranks['groups'][number], worker: number) => KVStore,
) {
  const ranks = openRanks(options);
  return opened(ranks.groups.map(create), ranks);
}
