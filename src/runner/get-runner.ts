/**
 * From a model to a runner: `oneDevice` in this process, `getRunner` on all workers (Parallax, section 4.1). The script that calls
 * `getRunner` is started again for every further worker and comes to the same call there; this process is the first one.
 * Invariant: when a runner is handed out, all workers have the same model, by name, shape and initial value.
 */
import { createHash, randomBytes } from 'node:crypto';
import { availableParallelism } from 'node:os';
import { UsageError } from '../base/index.ts';
import { CommunicationThread } from '../communication/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { CollectiveExchange, measureMessages } from '../exchange/index.ts';
import { gradients, type Model } from '../graph/index.ts';
import { takeWorkerPlace, type TransportChoice, type WorkerPlace } from '../launcher/index.ts';
import { SharedSpace } from '../memory/index.ts';
import { Replica } from '../runtime/index.ts';
import { planRun } from './plan-run.ts';
import { Runner, type RunnerConfig } from './runner.ts';
import { SharedStep } from './shared-step.ts';

export interface Resources {
  /** Processes that train, on this machine. Default: as many as there are processors. */
  readonly workers?: number | undefined;
  /** How they exchange data. Default 'auto'. */
  readonly transport?: TransportChoice | undefined;
}

export function oneDevice(model: Model, config: RunnerConfig): Promise<Runner> {
  const compute = new OnnxCompute(config.session);
  const { optimizer, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = config;
  const space = SharedSpace.create();
  const replica = new Replica(model, { compute, space, optimizer, maxBatch: batchSize, seed, sparseUpdates });
  return Promise.resolve(new Runner({ replica, compute, config, rank: 0, workers: 1 }));
}

export async function getRunner(
  model: Model,
  resources: Resources = {},
  config: RunnerConfig,
): Promise<Runner> {
  const { workers = availableParallelism(), transport } = resources;
  if (workers === 1) return oneDevice(model, config);
  const place = await takeWorkerPlace({ workers, transport });
  const space = SharedSpace.create();
  const joining = CommunicationThread.start({
    ...{ space, scheduler: place.scheduler, secret: place.secret, wantedRank: place.rank },
    ...{ transport: place.transport },
  });
  try {
    const thread = await Promise.race([joining, place.failed.then((error) => Promise.reject(error))]);
    compareModels(thread, model);
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
  const exchange = new CollectiveExchange({
    thread,
    memory: replica.memory,
    kernels: replica.kernels,
    groups,
  });
  const messages = measureMessages(thread, replica.memory.exchanged.byteLength);
  const { compareEverySteps = 1000, log = (line: string) => process.stderr.write(`${line}\n`) } = config;
  const shared = new SharedStep({
    ...{ thread, replica, exchange, compareEverySteps, log },
    makePlan: (samples) => planRun({ thread, replica, messages, options: config }, samples),
  });
  return new Runner({
    ...{ replica, compute, config, rank, workers, shared },
    explain: (error) => Promise.race([place.failed, afterMs(EXPLAIN_MS, error)]),
    onClose: async () => {
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

const HASH_BYTES = 32;

/** All workers must train the same: a script that builds its model at random, or from another version, would drift. */
function compareModels(thread: CommunicationThread, model: Model): void {
  const parameters = [...model.graph.parameters.values()].map(({ name, shape, trainable, initialiser }) => [
    name,
    shape,
    trainable,
    initialiser,
  ]);
  const nodes = model.graph.nodes.map(({ op, attributes, inputs }) => [
    op,
    attributes,
    inputs.map(({ node }) => node.id),
  ]);
  const own = thread.allocate('uint8', HASH_BYTES);
  const all = thread.allocate('uint8', HASH_BYTES * thread.world.size);
  own.view.set(
    createHash('sha256')
      .update(JSON.stringify([parameters, nodes]))
      .digest(),
  );
  thread.allGather(own, all).wait();
  const hashOf = (rank: number) =>
    Buffer.from(all.view.subarray(rank * HASH_BYTES, (rank + 1) * HASH_BYTES)).toString('hex');
  const different = thread.world.members.map((_, rank) => rank).filter((rank) => hashOf(rank) !== hashOf(0));
  if (different.length === 0) return;
  throw new UsageError(
    'INVALID_GRAPH',
    `the model of worker ${different.join(', ')} is not that of worker 0; build it alike in every process, from the same files and without chance`,
    { workers: different },
  );
}
