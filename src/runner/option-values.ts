/**
 * Whether the values of a run's options make sense: JavaScript has no compiler to say so, and some
 * that compile would be passed over in silence. Invariant: what is refused is refused before
 * anything is started, by the option's name, what it is and what to give.
 */
import { printValue, UsageError } from '../base/index.ts';
import { PROVIDERS } from '../compute/index.ts';
import type { Dataset } from '../data/index.ts';
import type { Model } from '../graph/index.ts';
import type { RunnerConfig, RunOptions } from './runner.ts';

export function checkRunnerConfig(model: Model, config: RunnerConfig): void {
  if ((model as Partial<Model> | null | undefined)?.graph === undefined) {
    throw new UsageError(
      'INVALID_GRAPH',
      `the model is ${typeof model === 'object' ? 'an object without a graph' : printValue(model)}; give { graph, loss, outputs }, or what a function such as mlp({ inputShape: [2], classes: 2 }) returns`,
    );
  }
  const { optimizer, schedule, batchSize = 32, checkpointDirectory, checkpointEverySteps, session } = config;
  if (typeof optimizer !== 'object' || optimizer === null) {
    throw refused('optimizer', optimizer, "{ name: 'adam', lr: 0.001 } or another one");
  }
  if (schedule !== undefined && (typeof schedule !== 'object' || schedule === null)) {
    const example = "{ name: 'cosine', baseLr: 0.001, tMax: 1000 }";
    throw refused('schedule', schedule, `${example} or another one; only a configuration takes a name alone`);
  }
  if (!(Number.isInteger(batchSize) && batchSize > 0)) {
    throw refused('batchSize', batchSize, 'a whole number of 1 or more');
  }
  const every = checkpointEverySteps ?? Infinity;
  if (!(every === Infinity || (Number.isInteger(every) && every > 0))) {
    throw refused('checkpointEverySteps', checkpointEverySteps, 'a whole number of 1 or more');
  }
  const provider: unknown = session?.provider;
  if (provider !== undefined && !PROVIDERS.some((known) => known === provider)) {
    throw refused('session.provider', provider, PROVIDERS.map((known) => `'${known}'`).join(', '));
  }
  if (checkpointDirectory !== undefined) return;
  const lost = (['resume', 'checkpointEverySteps'] as const).find(
    (name) => config[name] !== undefined && config[name] !== false,
  );
  if (lost === undefined) return;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `${lost} is ${printValue(config[lost])}, and there is no checkpointDirectory, so that no checkpoint would be read or written; give checkpointDirectory, or leave out ${lost}`,
    { option: lost },
  );
}

export function checkRunLength({ epochs = 1, maxSteps = Infinity }: RunOptions): void {
  for (const [option, value] of Object.entries({ epochs, maxSteps })) {
    if (value === Infinity || (Number.isInteger(value) && value >= 0)) continue;
    throw refused(option, value, 'a whole number of 0 or more, or Infinity');
  }
}

export function checkDataset(name: 'train' | 'test' | 'data', data: unknown): void {
  if (Array.isArray((data as Partial<Dataset> | null | undefined)?.columns)) return;
  throw refused(name, data, 'a Dataset, such as new Dataset([{ name, data, sampleShape }])');
}

function refused(option: string, value: unknown, expected: string): UsageError {
  return new UsageError('INVALID_ARGUMENT', `${option} is ${printValue(value)}; give ${expected}`, {
    option,
  });
}
