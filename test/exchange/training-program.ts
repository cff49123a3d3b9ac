/**
 * A worker of the tests of exchanges: trains every case of training.json with its peers, by each route and grouping, and says the
 * losses, and on the first rank the final parameters. Not a test itself, and no judge: exchange-training.test.ts is.
 */
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { CommunicationThread } from '../../src/communication/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import {
  aggregatesLocally,
  CollectiveExchange,
  ServerExchange,
  startRunServers,
} from '../../src/exchange/index.ts';
import { clipByGlobalNorm, gradients } from '../../src/graph/index.ts';
import { clipFactor, globalNorm } from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { stepProgram, type Route, type StepProgram } from '../../src/plan/index.ts';
import { partOf, Replica, replicaOperations, StepContext, StepWalk } from '../../src/runtime/index.ts';
import { say, settings } from '../collectives/rank-program-start.ts';
import { numbers } from '../support/shared.ts';
import {
  buildModel,
  evenParts,
  optimizerSpec,
  rowsOf,
  runsOf,
  trainingCases,
} from '../support/training-models.ts';
import type { Batch, TrainingCase, TrainingRun } from '../support/training-models.ts';

const { scheduler, secret } = settings;
const space = SharedSpace.create();
const thread = await CommunicationThread.start({
  ...{ scheduler, secret, space, measure: false, transport: settings.transport as TransportChoice },
  ...(settings['machines'] === undefined ? {} : { host: machineOfThis(settings['machines'] as string) }),
});
const { rank, size } = thread.world;
const clipsBefore = settings['clipsBefore'] === true;

/** Half of the workers are on one machine, half on the other; each takes the first free number in a folder. */
function machineOfThis(folder: string): string {
  for (let number = 0; ; number++) {
    try {
      closeSync(openSync(join(folder, String(number)), 'wx'));
      return `machine-${number % 2}`;
    } catch {
      // Taken.
    }
  }
}

function load(replica: Replica, batch: Batch, from: number, rows: number): void {
  for (const [name, { data, shape }] of Object.entries(batch)) {
    const perRow = data.length / shape[0]!;
    replica.inputs[name]!.set(numbers(data.slice(from * perRow, (from + rows) * perRow)));
  }
}

/** One message for all, one for each, two of them, and pairs. */
function groupings(names: readonly string[]): Record<string, string[][]> {
  const half = Math.ceil(names.length / 2);
  const pairs = names.flatMap((_, i) => (i % 2 === 0 ? [names.slice(i, i + 2)] : []));
  return {
    single: [[...names]],
    layers: names.map((name) => [name]),
    halves: [names.slice(0, half), names.slice(half)],
    pairs,
  };
}

/** The route of each parameter, by a way of the test. */
function routesBy(way: string, { memory }: Replica): Map<string, Route> {
  const routes: Record<string, [dense: Route, sparse: Route]> = {
    collectives: ['collective', 'collective rows'],
    'whole tables': ['collective', 'collective'],
    hybrid: ['collective', 'server rows'],
    'hybrid without placement': ['collective', 'server rows'],
    servers: ['server dense', 'server rows'],
  };
  // Every other dense parameter lives on servers.
  if (way === 'hybrid in turns') {
    const turns = (kind: string, i: number): Route => {
      if (kind === 'sparse') return 'server rows';
      return i % 2 === 0 ? 'collective' : 'server dense';
    };
    return new Map([...memory.gradients].map(([name, { kind }], i) => [name, turns(kind, i)]));
  }
  const [dense, sparse] = routes[way]!;
  return new Map([...memory.gradients].map(([name, { kind }]) => [name, kind === 'dense' ? dense : sparse]));
}

interface OpenExchange {
  readonly collective: CollectiveExchange;
  readonly servers: ServerExchange | undefined;
  readonly program: StepProgram;
}

async function openExchange(
  replica: Replica,
  way: string,
  optimizer: OptimizerSpec,
  groups: string[][],
  step: StepContext,
): Promise<OpenExchange> {
  const { memory, kernels } = replica;
  const routes = routesBy(way, replica);
  const collective = new CollectiveExchange({ thread, memory, kernels, step, routes });
  const names = new Set([...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : [])));
  const isPlaced = way !== 'hybrid without placement';
  const servers = names.size === 0 ? undefined : await openServers(replica, optimizer, names, step, isPlaced);
  const { graph } = replica.model;
  const tables = [...memory.gradients].flatMap(([name, { kind }]) => (kind === 'sparse' ? [name] : []));
  const program = stepProgram({
    ...{ parameters: [...memory.parameters.keys()], groups, tables: new Set(tables), routes },
    ...{ fetched: new Set(servers?.fetched), addsRowsUp: isPlaced && aggregatesLocally(thread) },
    fetchesHeld: !isPlaced,
    ...{ hasStates: graph.stateUpdates.length > 0, hasAverages: graph.movingAverages.length > 0 },
    transforms: graph.updateOperations.map((operation) => {
      const [kind, name] = partOf(operation);
      return { kind, name };
    }),
  });
  return { collective, servers, program };
}

async function openServers(
  { memory, kernels }: Replica,
  optimizer: OptimizerSpec,
  names: ReadonlySet<string>,
  step: StepContext,
  isPlaced: boolean,
): Promise<ServerExchange> {
  const sharedMemory = settings.transport === 'shm';
  const servers = await startRunServers({ thread, secret, optimizer, rows: 'exact', sharedMemory });
  return ServerExchange.open({
    ...{ thread, servers, memory, kernels, names, step, steps: 0, hasExactRows: true },
    ...{ operations: new Map(), firstSlots: new Map() },
    ...{ localAggregation: isPlaced, boundaryAmongServers: isPlaced },
    boundaryBetweenWorkersAndServers: isPlaced,
  });
}

async function train(c: TrainingCase, run: TrainingRun, grouping: string, way: string): Promise<void> {
  const model = buildModel(c);
  if (c.clip_global_norm !== null && !clipsBefore) clipByGlobalNorm(model.graph, c.clip_global_norm);
  const groups = groupings(gradients(model.loss).map(({ parameter }) => parameter.name))[grouping]!;
  const rows = rowsOf(c.batches[0]!);
  const sizes = evenParts(rows, size);
  const from = sizes.slice(0, rank).reduce((sum, one) => sum + one, 0);
  const compute = new OnnxCompute();
  const optimizer = optimizerSpec(run);
  const replica = new Replica(model, {
    ...{ compute, space, optimizer, maxBatch: rows, groups, workers: size },
    segmentName: `test-${process.pid}-${c.name}-${grouping}-${way}`.replace(/[^\w-]/g, '-'),
  });
  const { memory } = replica;
  const step = new StepContext();
  const { collective, servers, program } = await openExchange(replica, way, optimizer, groups, step);
  if (servers) step.elsewhere = servers.elsewhere;
  const own = sizes[rank]!;
  const losses: number[] = [];
  let batch = 0;
  const walk = StepWalk.bind(program, {
    parts: [
      ({ kind }) =>
        kind === 'load'
          ? () => {
              load(replica, c.batches[batch]!, from, own);
              step.begin(sampleIds(from, own), undefined);
            }
          : undefined,
      replicaOperations({
        ...{ replica, step, checkLoss: (loss) => void losses.push(loss) },
        onGradients: () => {
          if (clipsBefore) clip(replica, c.clip_global_norm ?? Infinity);
        },
      }),
      (operation) => collective.handlerOf(operation),
      ...(servers ? [servers.handlers()] : []),
    ],
    finishedSteps: () => replica.step,
  });
  for (batch of c.batch_order.slice(0, run.losses.length)) await walk.step();
  await walk.settle();
  await servers?.fetchAll();
  const parameters = Object.fromEntries([...memory.parameters].map(([name, { view }]) => [name, [...view]]));
  say('trained', {
    ...{ case: c.name, grouping, way, rank, losses, checksum: checksum(memory.parameters.values()) },
    ...(rank === 0 ? { parameters } : {}),
  });
  await collective.close();
  await servers?.close();
  replica.close();
  compute.close();
}

/** What must not be done: each worker by the norm of its own gradients. */
function clip({ memory, kernels }: Replica, maxNorm: number): void {
  const values = [...memory.gradients.values()].map((place) =>
    place.kind === 'dense' ? place.region : place.rows.slice(0, place.count * place.rowLength),
  );
  const factor = clipFactor(globalNorm(kernels, values, 2), maxNorm);
  for (const region of values) kernels.scale(region, factor);
}

function sampleIds(from: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => from + i);
}

/** Order matters, every bit counts. */
function checksum(regions: Iterable<{ readonly view: Float32Array }>): number {
  let sum = 0;
  for (const { view } of regions) {
    for (const word of new Uint32Array(view.slice().buffer)) sum = (Math.imul(sum, 31) + word) | 0;
  }
  return sum;
}

const ways = settings['ways'] as Record<string, string[]>;
const hasTable = (c: TrainingCase) => gradients(buildModel(c).loss).some(({ kind }) => kind === 'sparse');
for (const c of trainingCases().filter((one) => settings['onlyTables'] !== true || hasTable(one))) {
  for (const run of runsOf(c, evenParts(rowsOf(c.batches[0]!), size)).slice(0, 1)) {
    for (const [way, groupingsOfWay] of Object.entries(ways)) {
      for (const grouping of groupingsOfWay) await train(c, run, grouping, way);
    }
  }
}
say('done', { rank });
await thread.close();
process.exit(0);
