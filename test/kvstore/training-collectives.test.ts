/** Training without servers, by collectives alone, follows the single process. */
import { createCollectiveStore } from '../../src/kvstore/index.ts';
import { onRanks, STORE_SETTINGS, trainingSuite } from './training-support-suite.ts';

trainingSuite('collectives', (workers) =>
  Promise.resolve(
    onRanks({ sizes: [workers] }, (group) => createCollectiveStore({ ...STORE_SETTINGS, group })),
  ),
);
