/**
 * A worker of the tests of tried routes: has candidates tried whose predictions are alike, trains on
 * by what was chosen, and again from the same first values without a trial. Not a test itself, and no
 * judge: route-trial.test.ts is.
 */
import { createHash } from 'node:crypto';
import { CommunicationThread } from '../../src/communication/index.ts';
import { OnnxCompute } from '../../src/compute/index.ts';
import { CollectiveExchange, startRunServers } from '../../src/exchange/index.ts';
import {
  batchNorm,
  crossEntropy,
  embedding,
  Graph,
  gradients,
  linear,
  mean,
  N,
} from '../../src/graph/index.ts';
import type { TransportChoice } from '../../src/launcher/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { recordOf, stepProgram, type ExchangeInput, type Route } from '../../src/plan/index.ts';
import { groupsOf, planned, routesOf } from '../../src/runner/plan-run.ts';
import { withTriedRoutes, type RouteTrialOptions } from '../../src/runner/route-trial.ts';
import { Replica, replicaOperations, StepContext, StepWalk } from '../../src/runtime/index.ts';
import { say, settings } from '../collectives/rank-program-start.ts';
import { segmentFiles } from '../support/segment-files.ts';

const { scheduler, secret, transport } = settings;
const [WORDS, COLUMNS, LENGTH, BATCH] = [120, 8, 5, 8];
const space = SharedSpace.create({ maxBytes: 512 * 2 ** 20 });
const thread = await CommunicationThread.start({
  ...{ scheduler, secret, space, measure: false, transport: transport as TransportChoice },
  ...(settings['onHostsOfTheirOwn'] === true ? { host: `host-${process.pid}` } : {}),
});
const { rank, size } = thread.world;
const optimizer = { name: 'adam', lr: 0.01 } as const;

/** A table, dense layers, and running statistics. */
function buildModel() {
  const graph = new Graph();
  const tokens = graph.input('tokens', [N, LENGTH], 'int32');
  const words = mean(embedding(tokens, WORDS, COLUMNS, { name: 'words' }), [1]);
  const hidden = batchNorm(linear(words, 16, { bias: false, name: 'hidden' }), { name: 'norm' });
  const logits = linear(hidden, 2, { name: 'output' });
  const loss = crossEntropy(logits, graph.input('labels', [N], 'int32'));
  return { graph, loss, outputs: { logits } };
}

function makeReplica(): { readonly replica: Replica; readonly compute: OnnxCompute } {
  const compute = new OnnxCompute();
  const model = buildModel();
  const groups = [gradients(model.loss).map(({ parameter }) => parameter.name)];
  const replica = new Replica(model, {
    ...{ compute, space, optimizer, seed: 7, maxBatch: BATCH, groups, workers: size },
    segmentName: `route-trial-${process.pid}-${Math.random().toString(16).slice(2)}`,
  });
  replica.inputs['tokens']!.set(
    Int32Array.from({ length: BATCH * LENGTH }, (_, i) => (rank * 31 + i * 7) % WORDS),
  );
  replica.inputs['labels']!.set(Int32Array.from({ length: BATCH }, (_, i) => i % 2));
  return { replica, compute };
}

/** Of all that training goes on from. */
function hashOf({ memory, step }: Replica): string {
  const hash = createHash('sha256').update(String(step));
  const slots = [...memory.slots.values()].flatMap(
    (own) => Object.values(own as object) as { view: Uint8Array }[],
  );
  for (const { view } of [...memory.parameters.values(), ...memory.states.values(), ...slots]) {
    hash.update(new Uint8Array(view.buffer, view.byteOffset, view.byteLength));
  }
  return hash.digest('hex');
}

/** As quick by any route, as far as predictions go. */
function inputOf({ memory }: Replica): ExchangeInput {
  const line = { startMs: 1, msPerByte: 1e-7 };
  return {
    forwardMs: 1,
    layers: [...memory.gradients].map(([name, place]) => ({
      ...{ name, backwardMs: 0.5 },
      parameters: [
        place.kind === 'dense'
          ? { name, kind: 'dense' as const, elements: place.region.length }
          : {
              ...{ name, kind: 'sparse' as const, elements: WORDS * COLUMNS, rowLength: COLUMNS },
              sparsity: 0.3,
            },
      ],
    })),
    cluster: { workers: size, machines: 1, workersPerMachine: size, servers: 1 },
    costs: { collective: line, gather: line, serverDense: line, serverRows: line },
    leastGain: 0.05,
  };
}

/** By collectives: losses of some steps and what they lead to. */
async function train(replica: Replica): Promise<unknown[]> {
  const { memory, kernels } = replica;
  const groups = [[...memory.gradients.keys()]];
  replica.setGroups(groups);
  const step = new StepContext();
  const routes = new Map(
    [...memory.gradients].map(([name, { kind }]): [string, Route] => [
      name,
      kind === 'dense' ? 'collective' : 'collective rows',
    ]),
  );
  const exchange = new CollectiveExchange({ thread, memory, kernels, step, routes });
  const losses: number[] = [];
  const tables = [...memory.gradients].flatMap(([name, { kind }]) => (kind === 'sparse' ? [name] : []));
  const program = stepProgram({
    ...{ parameters: [...memory.parameters.keys()], groups, routes, tables: new Set(tables) },
    ...{ transforms: [], hasStates: true, hasAverages: false },
  });
  const walk = StepWalk.bind(program, {
    parts: [
      ({ kind }) => (kind === 'load' ? () => step.begin(ids, undefined) : undefined),
      replicaOperations({ replica, step, checkLoss: (loss) => void losses.push(loss) }),
      (operation) => exchange.handlerOf(operation),
    ],
    finishedSteps: () => replica.step,
  });
  for (let i = 0; i < 4; i++) await walk.step();
  await walk.settle();
  await exchange.close();
  return [losses, hashOf(replica)];
}

const ids = Array.from({ length: BATCH }, (_, i) => i);
const first = makeReplica();
const untried = await train(first.replica);
first.replica.close();
first.compute.close();

const { replica, compute } = makeReplica();
const before = hashOf(replica);
const servers = await startRunServers({ thread, secret, optimizer, rows: 'exact' });
let keysMeanwhile = 0;
const openTrial: RouteTrialOptions['openTrial'] = async () => {
  const { store, close } = await servers.openTrial!();
  const look = (): Promise<void> => {
    keysMeanwhile = segmentFiles().filter((name) => name.includes('-values-')).length;
    return close();
  };
  return { store, close: look };
};
const run = planned(thread, inputOf(replica));
const options = { thread, replica, openTrial, localAggregation: true, hasExactRows: true };
// The second worker has no samples, as at the end of an epoch.
const samples = settings['hasEmptyWorker'] === true && rank === 1 ? [] : ids;
const chosen = await withTriedRoutes(options, run, samples);
say('tried', {
  ...{ rank, keysMeanwhile, isUntouched: hashOf(replica) === before },
  tried: chosen.plan.tried,
  ...{ reason: chosen.plan.reason, routes: recordOf(chosen.plan), given: chosen.input.routes },
});
const trained = await train(replica);
say('trained', { rank, trained, untried, groups: groupsOf(chosen.plan), size: routesOf(chosen.plan).size });
await servers.close();
replica.close();
compute.close();
await thread.close();
say('closed', { rank });
process.exit(0);
