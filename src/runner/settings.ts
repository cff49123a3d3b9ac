/**
 * What must hold of the settings of a run on several workers: they are the same everywhere, and a checkpoint can hold all that they
 * make the run keep. Decides nothing else. Invariant: every fault is an error or a word, before the first step.
 */
import { isDeepStrictEqual } from 'node:util';
import { UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts } from '../exchange/index.ts';
import type { Strategy } from '../plan/index.ts';
import type { Replica } from '../runtime/index.ts';
import type { RunnerConfig } from './runner.ts';

/** What makes workers do different things, or the same things at different steps. */
function settingsOf(config: RunnerConfig): Readonly<Record<string, unknown>> {
  const { optimizer, schedule, batchSize, seed, sparseUpdates, strategy, merging, resume } = config;
  const { checkpointDirectory, checkpointEverySteps, bucketBytes, averageDense, averageSparse } = config;
  const { localAggregation, boundaryAmongServers, boundaryBetweenWorkersAndServers } = config;
  return {
    ...{ bucketBytes, averageDense, averageSparse, localAggregation },
    ...{ boundaryAmongServers, boundaryBetweenWorkersAndServers },
    ...{ optimizer, schedule, batchSize, seed, sparseUpdates, strategy, merging, resume },
    ...{ checkpointDirectory: checkpointDirectory !== undefined, checkpointEverySteps },
  };
}

/**
 * Further workers run the script from its beginning: if it has trained on several workers before, they come to that call, and would
 * train by its settings.
 */
export function compareSettings(thread: CommunicationThread, config: RunnerConfig): void {
  const texts = tellAllTexts(thread, JSON.stringify(settingsOf(config)), 'settings of the workers');
  const [first, ...others] = texts.map((text) => JSON.parse(text) as Record<string, unknown>);
  for (const [i, settings] of others.entries()) {
    const names = Object.keys({ ...first, ...settings });
    const name = names.find((one) => !isDeepStrictEqual(first![one], settings[one]));
    if (name === undefined) continue;
    const [mine, theirs] = [first![name], settings[name]].map((value) => JSON.stringify(value) ?? 'not set');
    throw new UsageError(
      'INVALID_ARGUMENT',
      `${name} is ${theirs} on worker ${i + 1} and ${mine} on worker 0. Give all the same; a script that trains on several workers more than once needs a process for each time.`,
      { worker: i + 1, setting: name },
    );
  }
}

/**
 * The ways that gradients may take. Servers keep the optimizer's state of what they hold to themselves: where there is such state
 * and checkpoints are written, everything goes by collectives.
 */
export function strategyOf(
  { checkpointDirectory, strategy }: RunnerConfig,
  { optimizer, memory }: Replica,
  log: ((line: string) => void) | undefined,
): Strategy | undefined {
  if (checkpointDirectory === undefined || optimizer.slots.length === 0) return strategy;
  if (strategy === 'servers') {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `checkpoints cannot hold the state that ${optimizer.spec.name} keeps on servers (${optimizer.slots.join(', ')}). Use strategy 'collectives', sgd without momentum, or no checkpointDirectory.`,
      { optimizer: optimizer.spec.name, slots: optimizer.slots },
    );
  }
  const hasTables = [...memory.gradients.values()].some(({ kind }) => kind === 'sparse');
  if (hasTables && strategy !== 'collectives') {
    log?.(
      `tables go by collectives, as checkpoints cannot hold the state that ${optimizer.spec.name} would keep on servers`,
    );
  }
  return 'collectives';
}
