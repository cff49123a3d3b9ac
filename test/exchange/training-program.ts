/**
 * A worker of the tests of exchanges: trains every case of training.json with its peers, by each route and grouping, and says the
 * losses, and on the first rank the final parameters. Not a test itself, and no judge: exchange-training.test.ts is.
 */
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { CommunicationThread } from '../../src/communication/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import {
  CollectiveExchange,
  MixedExchange,
  ServerExchange,
  startRunServers,
  type Exchange,
} from '../../src/exchange/index.ts';
import { clipByGlobalNorm, gradients } from '../../src/graph/index.ts';
import { clipFactor, globalNorm } from '../../src/kernels/index.ts';
import type { OptimizerSpec } from '../../src/kernels/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { Route } from '../../src/plan/index.ts';
import { Replica } from '../../src/runtime/index.ts';
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

async function openExchange(
  replica: Replica,
  way: string,
  optimizer: OptimizerSpec,
  groups: string[][],
): Promise<Exchange> {
  const { memory, kernels } = replica;
  const routes = routesBy(way, replica);
  const collective = new CollectiveExchange({
    ...{ thread, memory, kernels, groups, routes },
  });
  const names = new Set([...routes].flatMap(([name, route]) => (route.startsWith('server') ? [name] : [])));
  if (names.size === 0) return collective;
  const sharedMemory = settings.transport === 'shm';
  const servers = await startRunServers({ thread, secret, optimizer, rows: 'exact', sharedMemory });
  const isPlaced = way !== 'hybrid without placement';
  const options = {
    ...{ thread, servers, memory, kernels, names, groups, steps: 0, hasExactRows: true },
    ...{ operations: new Map(), firstSlots: new Map() },
    ...{ localAggregation: isPlaced, boundaryAmongServers: isPlaced },
    boundaryBetweenWorkersAndServers: isPlaced,
  };
  return new MixedExchange([collective, await ServerExchange.open(options)]);
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
  const exchange = await openExchange(replica, way, optimizer, groups);
  const own = sizes[rank]!;
  const losses: number[] = [];
  for (const index of c.batch_order.slice(0, run.losses.length)) {
    load(replica, c.batches[index]!, from, own);
    await exchange.prepare(own);
    exchange.begin(own);
    if (own > 0 && !clipsBefore) {
      replica.computeGradients(sampleIds(from, own), (group) => exchange.start(group));
    } else {
      if (own === 0) replica.clearGradients();
      else {
        replica.computeGradients(sampleIds(from, own));
        clip(replica, c.clip_global_norm ?? Infinity);
      }
      groups.forEach((_, group) => exchange.start(group));
    }
    const elsewhere = await exchange.finish();
    losses.push(memory.loss.view[0]!);
    const scale = replica.update(undefined, elsewhere);
    exchange.apply({ scale });
  }
  await exchange.fetchAll();
  const parameters = Object.fromEntries([...memory.parameters].map(([name, { view }]) => [name, [...view]]));
  say('trained', {
    ...{ case: c.name, grouping, way, rank, losses, checksum: checksum(memory.parameters.values()) },
    ...(rank === 0 ? { parameters } : {}),
  });
  await exchange.close();
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
