/**
 * From a model to a runner: `oneDevice` in this process, `getRunner` on those that `on` names
 * (Parallax, section 4.1). The script that calls `getRunner` is started again for every further
 * worker and comes to the same call there; this process is the first one. Several runners may be
 * open at once: they share the workers. Invariant: when a runner is handed out, all workers have
 * the same model, by name, shape and initial value.
 */
import { randomBytes } from 'node:crypto';
import { PeerError, refuseUnknownOptions, UsageError, type OptionNames } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { OnnxCompute } from '../compute/index.ts';
import { gradients, type Model } from '../graph/index.ts';
import { SharedSpace } from '../memory/index.ts';
import type { StepProgram } from '../plan/index.ts';
import { Replica } from '../runtime/index.ts';
import { clientLayout, mostSamples } from './client-layout.ts';
import { ClientStep } from './client-step.ts';
import { attemptTogether } from './joint-attempt.ts';
import { checkModel, compareWorkers } from './model-checks.ts';
import { readNonce } from './nonce.ts';
import { checkClients, openClients } from './open-clients.ts';
import { openExchange } from './open-exchange.ts';
import { RUNNER_OPTIONS } from './option-names.ts';
import { checkRunnerConfig } from './option-values.ts';
import { resolveOn, type Clients, type On, type OnHere, type OnWorkers } from './on.ts';
import { programOf, programOfClient } from './run-program.ts';
import { serverTablesOf } from './server-tables.ts';
import { Runner, type RunnerConfig, type RunnerParts } from './runner.ts';
import { compareSettings } from './settings.ts';
import { SharedStep } from './shared-step.ts';
import { Trace } from './trace.ts';
import { joinWorkers, type JoinOptions, type Workers } from './workers.ts';

export function oneDevice(model: Model, config: RunnerConfig): Promise<Runner> {
  // What goes wrong is a rejection, as with several workers.
  return new Promise((resolve) => {
    refuseUnknownOptions('oneDevice', config, RUNNER_OPTIONS);
    checkRunnerConfig(model, config);
    resolve(openOneDevice(model, config));
  });
}

/** Does not look for unknown options: those of its caller may be among them. */
export function openOneDevice(model: Model, config: RunnerConfig): Runner {
  const compute = new OnnxCompute(config.session);
  const { optimizer, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = config;
  serverTablesOf(model, config, 1);
  const space = SharedSpace.create();
  const replica = new Replica(model, { compute, space, optimizer, maxBatch: batchSize, seed, sparseUpdates });
  const { trace, write, lateFailure } = tracing(config);
  return openRunner({
    ...{ replica, compute, config, rank: 0, workers: 1, trace, lateFailure },
    onClose: () => Promise.resolve(write(programOf(replica, config))),
  });
}

export interface GetRunnerOptions extends RunnerConfig {
  /** Who trains. Default: as many workers as there are processors, in lock step. */
  readonly on?: On | undefined;
}

const GET_RUNNER_OPTIONS: OptionNames<GetRunnerOptions> = { ...RUNNER_OPTIONS, on: true };

export async function getRunner(model: Model, options: GetRunnerOptions): Promise<Runner> {
  refuseUnknownOptions('getRunner', options, GET_RUNNER_OPTIONS);
  const { on, ...config } = options;
  const resolved = resolveOn(on, 'all processors');
  if (resolved.kind !== 'learners') return openRunnerOn(model, config, resolved);
  throw new UsageError(
    'INVALID_ARGUMENT',
    'getRunner makes steps on workers or in this process, and on asks for learners, which make none together; give { workers: 2 }, or use fit',
    { on },
  );
}

/** As `openOneDevice`, or on workers. */
export async function openRunnerOn(
  model: Model,
  config: RunnerConfig,
  on: OnHere | OnWorkers,
  options: JoinOptions = {},
): Promise<Runner> {
  if (on.kind === 'here') {
    checkModel(model, config, 1);
    return openOneDevice(model, config);
  }
  const { resources, way } = on;
  const isLockStep = way.kind === 'lock step' || way.consistency.kind === 'synchronous';
  // A batch is shared by all workers, or by those of a client.
  const sharers = isLockStep ? resources.workers : Math.ceil(resources.workers / way.clients);
  checkModel(model, config, sharers);
  if (way.kind === 'clients') checkClients(model, config, way);
  if (way.access) readNonce(way.access);
  // Refuses before workers are started what they could not do.
  serverTablesOf(model, config, resources.workers, way);
  const workers = await joinWorkers(resources, options);
  try {
    compareWorkers(workers.thread, model);
    compareSettings(workers.thread, config, way);
    return createRunner(model, config, workers, way);
  } catch (error) {
    // What another process has caused may be known here only. All else all workers have found out alike: other runners go on.
    await (error instanceof PeerError ? workers.giveUp(error) : workers.leave());
    throw error;
  }
}

/** It may resume at once, which may fail. */
function openRunner(parts: RunnerParts): Runner {
  try {
    return new Runner(parts);
  } catch (error) {
    closeReplica(parts);
    throw error;
  }
}

function closeReplica({ replica, compute }: Pick<RunnerParts, 'replica' | 'compute'>): void {
  replica.close();
  compute.close();
}

/** This worker's copy of the model. */
function makeReplica(
  model: Model,
  config: RunnerConfig,
  { place: { workers }, thread }: Workers,
  way: OnWorkers['way'],
): Pick<RunnerParts, 'replica' | 'compute'> {
  const { optimizer, batchSize = 32, seed = 0, sparseUpdates = 'exact' } = config;
  const compute = new OnnxCompute(config.session);
  try {
    const replica = new Replica(model, {
      ...{ compute, space: thread.space, optimizer, seed, sparseUpdates, workers },
      groups: [gradients(model.loss).map(({ parameter }) => parameter.name)],
      maxBatch:
        way.kind === 'clients' ? mostSamples(workers, way, batchSize) : Math.ceil(batchSize / workers),
      rowsOnly: serverTablesOf(model, config, workers, way),
      segmentName: `replica-${process.pid}-${randomBytes(6).toString('hex')}`,
    });
    return { compute, replica };
  } catch (error) {
    compute.close();
    throw error;
  }
}

function createRunner(
  model: Model,
  config: RunnerConfig,
  workersOfRun: Workers,
  way: OnWorkers['way'],
): Runner {
  const { place, thread } = workersOfRun;
  const { rank, workers } = place;
  const { batchSize = 32, log = (line: string) => process.stderr.write(`${line}\n`) } = config;
  const { compute, replica } = attemptTogether(
    thread,
    () => makeReplica(model, config, workersOfRun, way),
    closeReplica,
  );
  const { trace, write, lateFailure } = tracing(config, thread);
  const clientStep = (clients: Clients): ClientStep => {
    const layout = clientLayout(rank, workers, clients, batchSize);
    const parts = { thread, replica, config, way: clients, layout, place };
    return new ClientStep({
      ...{ thread, replica, way: clients, layout, trace },
      programOf: (servers) => programOfClient(replica, config, clients, servers, workers),
      connect: (link, leaders) => openClients(parts, link, leaders),
    });
  };
  const shared =
    way.kind === 'clients'
      ? clientStep(way)
      : new SharedStep({
          ...{ thread, replica, log, trace, batchSize },
          averages: { dense: config.averageDense ?? true, sparse: config.averageSparse ?? true },
          programOf: (run) => programOf(replica, config, { run, thread }),
          planExchange: (samples, step) => {
            const { secret, address, tls } = place;
            return openExchange({ thread, replica, step, config, way, secret, address, tls }, samples);
          },
        });
  return openRunner({
    ...{ replica, compute, config, rank, workers, shared, thread, trace, lateFailure },
    onAbort: (error) => workersOfRun.giveUp(error),
    explain: (error) => Promise.race([place.failed, afterMs(EXPLAIN_MS, error)]),
    onClose: async () => {
      write(shared.program);
      await workersOfRun.leave();
    },
  });
}

/** A trace if the configuration names a file for it, and what writes it there at the end. */
function tracing(
  { trace: path }: RunnerConfig,
  thread?: CommunicationThread,
): Pick<RunnerParts, 'trace' | 'lateFailure'> & {
  readonly write: (program: StepProgram | undefined) => void;
} {
  const trace = path === undefined ? undefined : new Trace();
  let failure: Error | undefined;
  const write = (program: StepProgram | undefined) => {
    try {
      failure = trace?.write(thread, path!, program);
    } catch (error) {
      // The result is not to be lost with the trace.
      failure = error as Error;
    }
  };
  return { trace, write, lateFailure: () => failure };
}

/** How long a worker that was lost may take to be known by its last words. */
const EXPLAIN_MS = 1000;

function afterMs<T>(ms: number, value: T): Promise<T> {
  return new Promise((resolve) => setTimeout(resolve, ms, value));
}
