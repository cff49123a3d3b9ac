/**
 * From a model to a runner: `oneDevice` in this process, `getRunner` on all workers (Parallax, section 4.1). The script that calls
 * `getRunner` is started again for every further worker and comes to the same call there; this process is the first one.
 * Invariant: when a runner is handed out, all workers have the same model, by name, shape and initial value.
 */
import { randomBytes } from 'node:crypto';
import { CommunicationThread } from '../communication/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { gradients, type Model } from '../graph/index.ts';
import { takeWorkerPlace, type WorkerPlace } from '../launcher/index.ts';
import { SharedSpace } from '../memory/index.ts';
import { Replica } from '../runtime/index.ts';
import { checkModel, compareWorkers } from './model-checks.ts';
import { openExchange } from './open-exchange.ts';
import { resolveResources, type Resources } from './resources.ts';
import { Runner, type RunnerConfig } from './runner.ts';
import { SharedStep } from './shared-step.ts';
import { Trace } from './trace.ts';

export function oneDevice(model: Model, config: RunnerConfig): Promise<Runner> {
  const compute = new OnnxCompute(config.session);
  const { optimizer, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = config;
  const space = SharedSpace.create();
  const replica = new Replica(model, { compute, space, optimizer, maxBatch: batchSize, seed, sparseUpdates });
  return Promise.resolve(new Runner({ replica, compute, config, rank: 0, workers: 1 }));
}

export async function getRunner(
  model: Model,
  resources: Resources | string = {},
  config: RunnerConfig,
): Promise<Runner> {
  const { workers, machines, transport } = resolveResources(resources);
  checkModel(model, config, workers);
  if (workers === 1) return oneDevice(model, config);
  const place = await takeWorkerPlace({ machines, transport });
  const space = SharedSpace.create();
  const joining = CommunicationThread.start({
    ...{ space, scheduler: place.scheduler, secret: place.secret, wantedRank: place.rank },
    ...{ transport: place.transport, host: place.host, address: place.address },
  });
  try {
    const thread = await Promise.race([joining, place.failed.then((error) => Promise.reject(error))]);
    compareWorkers(thread, model);
    return createRunner(model, config, place, thread);
  } catch (error) {
    void joining.then((thread) => thread.abort(error as Error)).catch(() => undefined);
    await place.close();
    throw error;
  }
}

function createRunner(
  model: Model,
  config: RunnerConfig,
  place: WorkerPlace,
  thread: CommunicationThread,
): Runner {
  const { optimizer, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = config;
  const { rank, workers } = place;
  const compute = new OnnxCompute(config.session);
  const groups = [gradients(model.loss).map(({ parameter }) => parameter.name)];
  const replica = new Replica(model, {
    ...{ compute, space: thread.space, optimizer, seed, sparseUpdates, groups, workers },
    maxBatch: Math.ceil(batchSize / workers),
    segmentName: `replica-${process.pid}-${randomBytes(6).toString('hex')}`,
  });
  const { compareEverySteps = 1000, log = (line: string) => process.stderr.write(`${line}\n`) } = config;
  const trace = config.trace === undefined ? undefined : new Trace();
  const shared = new SharedStep({
    ...{ thread, replica, compareEverySteps, log, trace },
    planExchange: (samples) =>
      openExchange({ thread, replica, config, secret: place.secret, address: place.address }, samples),
  });
  return new Runner({
    ...{ replica, compute, config, rank, workers, shared },
    explain: (error) => Promise.race([place.failed, afterMs(EXPLAIN_MS, error)]),
    onClose: async () => {
      trace?.write(thread, config.trace!);
      await thread.close();
      await place.close();
      if (rank > 0) process.exit();
    },
  });
}

/** How long a worker that was lost may take to be known by its last words. */
const EXPLAIN_MS = 1000;

function afterMs<T>(ms: number, value: T): Promise<T> {
  return new Promise((resolve) => setTimeout(resolve, ms, value));
}
