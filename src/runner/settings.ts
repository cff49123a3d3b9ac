/**
 * What must hold of the settings of a run on several workers: they are the same everywhere. Decides nothing else.
 * Invariant: a difference is an error on all of them, before the first step.
 */
import { isDeepStrictEqual } from 'node:util';
import { UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts } from '../exchange/index.ts';
import type { OnWorkers } from './on.ts';
import type { RunnerConfig } from './runner.ts';

type WayOfWorkers = OnWorkers['way'];

/** What makes workers do different things, or the same things at different steps. */
function settingsOf(config: RunnerConfig, way: WayOfWorkers): Readonly<Record<string, unknown>> {
  const { optimizer, schedule, batchSize, seed, sparseUpdates, resume } = config;
  const { checkpointDirectory, checkpointEverySteps, bucketBytes, averageDense, averageSparse } = config;
  const { localAggregation, boundaryAmongServers, boundaryBetweenWorkersAndServers } = config;
  const { compareEverySteps, trace, serverTables } = config;
  return {
    ...{ bucketBytes, averageDense, averageSparse, localAggregation },
    ...{ boundaryAmongServers, boundaryBetweenWorkersAndServers },
    ...{ optimizer, schedule, batchSize, seed, sparseUpdates, resume },
    ...{ on: way },
    ...{ checkpointDirectory: checkpointDirectory !== undefined, checkpointEverySteps },
    ...{ compareEverySteps, trace: trace !== undefined, serverTables },
  };
}

/** Settings may depend on the process: on its environment, its files, the time, or what it did before. */
export function compareSettings(thread: CommunicationThread, config: RunnerConfig, way: WayOfWorkers): void {
  const texts = tellAllTexts(thread, JSON.stringify(settingsOf(config, way)), 'settings of the workers');
  const [first, ...others] = texts.map((text) => JSON.parse(text) as Record<string, unknown>);
  for (const [i, settings] of others.entries()) {
    const names = Object.keys({ ...first, ...settings });
    const name = names.find((one) => !isDeepStrictEqual(first![one], settings[one]));
    if (name === undefined) continue;
    const [mine, theirs] = [first![name], settings[name]].map((value) => JSON.stringify(value) ?? 'not set');
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${name} is ${theirs} on worker ${i + 1} and ${mine} on worker 0. Give all the same: further workers run the script from its beginning, up to its first call that needs workers.`,
      { worker: i + 1, setting: name },
    );
  }
}
