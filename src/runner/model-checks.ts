/**
 * What must hold before workers train together: the model can be trained, there is something for everybody to do, and all have the
 * same model and the same versions. Invariant: every fault is an error that names it, before the first step.
 */
import { packageVersion, UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts } from '../exchange/index.ts';
import { fingerprintOf, gradients, type Model } from '../graph/index.ts';
import { checkRunnerConfig } from './option-values.ts';
import type { RunnerConfig } from './runner.ts';

export function checkModel(model: Model, config: RunnerConfig, workers: number): void {
  checkRunnerConfig(model, config);
  const { batchSize = 32, unusedParameters = 'refuse' } = config;
  if ((model as Partial<Model>).loss === undefined) {
    throw new UsageError(
      'INVALID_GRAPH',
      'the model has no loss, so there is nothing to train by; give { graph, loss, outputs }',
    );
  }
  if (batchSize < workers) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `a batch of ${batchSize} samples cannot be shared by ${workers} workers; give batchSize ${workers} or more, or fewer workers`,
      { batchSize, workers },
    );
  }
  const used = new Set(gradients(model.loss).map(({ parameter }) => parameter.name));
  const unused = [...model.graph.parameters.values()].flatMap(({ name, trainable }) =>
    trainable && !used.has(name) ? [name] : [],
  );
  if (unused.length === 0 || unusedParameters === 'skip') return;
  throw new UsageError(
    'INVALID_GRAPH',
    `the loss does not depend on ${unused.join(', ')}, which would never be trained; use them, make them not trainable, or set unusedParameters to 'skip'`,
    { parameters: unused },
  );
}

/** A script that builds its model at random, or another version of it, would drift. */
export function compareWorkers(thread: CommunicationThread, model: Model): void {
  const loss = model.loss.node.id;
  const own = {
    model: `${fingerprintOf(model)}, loss ${loss}`,
    node: process.version,
    tributary: packageVersion(),
  };
  const all = tellAllTexts(thread, JSON.stringify(own), 'what the workers train').map(
    (text) => JSON.parse(text) as typeof own,
  );
  for (const what of ['tributary', 'node', 'model'] as const) {
    const others = all.flatMap((one, rank) => (one[what] === all[0]![what] ? [] : [rank]));
    if (others.length === 0) continue;
    const values = what === 'model' ? '' : ` (${all.map((one) => one[what]).join(', ')})`;
    throw new UsageError(
      'INVALID_GRAPH',
      `${titles[what]} of worker ${others.join(', ')} is not that of worker 0${values}; ${remedies[what]}`,
      { workers: others },
    );
  }
}

const titles = {
  tributary: 'the version of Tributary',
  node: 'the version of Node',
  model: 'the model',
} as const;
const remedies = {
  tributary: 'install the same on all machines',
  node: 'install the same on all machines',
  model: 'build it alike in every process, from the same files and without chance',
} as const;
