/**
 * A worker of the tests of exchanges: trains every case of training.json with its peers, by each way of grouping, and says the
 * losses, and on the first rank the final parameters. Not a test itself, and no judge: exchange-training.test.ts is.
 */
import { CommunicationThread } from '../../src/communication/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import { CollectiveExchange } from '../../src/exchange/index.ts';
import { clipByGlobalNorm, gradients } from '../../src/graph/index.ts';
import { clipFactor, combineNorms, partialNorm } from '../../src/kernels/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
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
});
const { rank, size } = thread.world;
const clipsBefore = settings['clipsBefore'] === true;

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

function train(c: TrainingCase, run: TrainingRun, grouping: string): void {
  const model = buildModel(c);
  if (c.clip_global_norm !== null && !clipsBefore) clipByGlobalNorm(model.graph, c.clip_global_norm);
  const groups = groupings(gradients(model.loss).map(({ parameter }) => parameter.name))[grouping]!;
  const rows = rowsOf(c.batches[0]!);
  const sizes = evenParts(rows, size);
  const from = sizes.slice(0, rank).reduce((sum, one) => sum + one, 0);
  const compute = new OnnxCompute();
  const replica = new Replica(model, {
    ...{ compute, space, optimizer: optimizerSpec(run), maxBatch: rows, groups, workers: size },
    segmentName: `test-${process.pid}-${c.name}-${grouping}`.replace(/[^\w-]/g, '-'),
  });
  const { memory, kernels } = replica;
  const exchange = new CollectiveExchange({ thread, memory, kernels, groups });
  const losses = c.batch_order.slice(0, run.losses.length).map((index) => {
    const own = sizes[rank]!;
    load(replica, c.batches[index]!, from, own);
    exchange.begin(own);
    if (own === 0) replica.clearGradients();
    else if (!clipsBefore) replica.computeGradients(sampleIds(from, own), (group) => exchange.start(group));
    if (own > 0 && clipsBefore) {
      replica.computeGradients(sampleIds(from, own));
      clip(replica, c.clip_global_norm ?? Infinity);
    }
    if (own === 0 || clipsBefore) groups.forEach((_, group) => exchange.start(group));
    exchange.finish();
    const loss = memory.loss.view[0]!;
    replica.update();
    return loss;
  });
  const parameters = Object.fromEntries([...memory.parameters].map(([name, { view }]) => [name, [...view]]));
  say('trained', {
    case: c.name,
    grouping,
    rank,
    losses,
    ...(rank === 0 ? { parameters } : {}),
    checksum: checksum(memory.parameters.values()),
  });
  replica.close();
  compute.close();
}

/** What must not be done: each worker by the norm of its own gradients. */
function clip({ memory, kernels }: Replica, maxNorm: number): void {
  const values = [...memory.gradients.values()].map((place) =>
    place.kind === 'dense' ? place.region : place.rows.slice(0, place.count * place.rowLength),
  );
  const factor = clipFactor(combineNorms([partialNorm(kernels, values, 'l2')], 'l2'), maxNorm);
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

for (const c of trainingCases()) {
  for (const run of runsOf(c, evenParts(rowsOf(c.batches[0]!), size)).slice(0, 1)) {
    for (const grouping of settings['groupings'] as string[]) train(c, run, grouping);
  }
}
say('done', { rank });
await thread.close();
process.exit(0);
