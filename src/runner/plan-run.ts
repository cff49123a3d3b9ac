/**
 * The plan of a run, from measurements on the workers themselves: the first batch is computed a few times, uncut and cut behind
 * every gradient, and messages were timed before. Nothing is trained meanwhile. What is best is decided in `plan/`.
 * Invariants: all workers call it at the same step and come to the same plan; parameters and states stay as they were.
 */
import type { CommunicationThread } from '../communication/index.ts';
import {
  agree,
  lookedUp,
  type MessageCosts,
  type ServerCosts,
  type ServerPlacement,
} from '../exchange/index.ts';
import {
  linearCost,
  measuredCost,
  planExchange,
  type ExchangeCost,
  type ExchangeCosts,
  type ExchangeInput,
  type ExchangePlan,
  type PlannedParameter,
  type Route,
} from '../plan/index.ts';
import { operationsElsewhere, seesTouchedRows } from '../runtime/index.ts';
import type { GradientPlace, Replica } from '../runtime/index.ts';
import { tryExchange, type ExchangeTrial } from './exchange-trial.ts';
import { cutEverywhere, layerTimes, scaledTo, type LayerTimes } from './layer-times.ts';
import type { LockStep } from './on.ts';

export interface PlanOptions extends ServerPlacement {
  /** Size of a bucket, for merging by 'buckets'. Default 25 MB. */
  readonly bucketBytes?: number | undefined;
  /** Whether dense gradients are averaged over all workers; otherwise their sum is taken. Default true. */
  readonly averageDense?: boolean | undefined;
  /** The same for the gradients of tables. Default true. */
  readonly averageSparse?: boolean | undefined;
}

export interface PlanFacts {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  /** What an allreduce costs with nothing else going on. */
  readonly messages: MessageCosts;
  /** What it costs to exchange rows by collectives, if the model has tables. */
  readonly gather?: MessageCosts | undefined;
  /** What exchanges with the servers of the run cost, if it has some. */
  readonly servers?: { readonly count: number; readonly costs: ServerCosts } | undefined;
  /** Of tables. */
  readonly sparseUpdates: 'exact' | 'lazy';
  /** By which ways gradients may travel, and how they are merged. */
  readonly way: LockStep;
  readonly options: PlanOptions;
}

const [WARM_UP, REPEATS] = [2, 4];
/** Predictions are no better than this. */
const LEAST_GAIN = 0.05;

/** A plan, and the figures that it was made of. */
export interface PlannedRun {
  readonly plan: ExchangePlan;
  readonly input: ExchangeInput;
}

/** The batch lies in the replica's inputs; `samples` may be empty on some workers. */
export async function planRun(facts: PlanFacts, samples: ArrayLike<number>): Promise<PlannedRun> {
  const { thread, replica, way, options } = facts;
  const states = [...replica.memory.states.values()].map(({ view }) => ({ view, kept: view.slice() }));
  const timed = await meanOver(thread, timeLayers(replica, samples), samples.length);
  const trial = await tryExchange(thread, replica, samples, timed.segmentMs);
  const times = scaledTo(trial.computeMs, timed);
  for (const { view, kept } of states) view.set(kept);
  const { strategy, merging } = way;
  const { localAggregation = true, bucketBytes } = options;
  return planned(thread, {
    ...{ ...inputOf(facts, times, trial), strategy, localAggregation, merging, leastGain: LEAST_GAIN },
    ...(bucketBytes === undefined ? {} : { bucketBytes }),
  });
}

/** The first worker's figures count. */
export function planned(thread: CommunicationThread, input: ExchangeInput): PlannedRun {
  return { input, plan: agree(thread, planExchange(input)) };
}

/** By name. */
export function routesOf({ parameters }: ExchangePlan): ReadonlyMap<string, Route> {
  return new Map(parameters.map(({ name, route }) => [name, route]));
}

/** Names of the parameters of each group. */
export function groupsOf({ groups }: ExchangePlan): string[][] {
  return groups.map(({ layers }) => [...layers]);
}

function timeLayers(replica: Replica, samples: ArrayLike<number>): LayerTimes {
  const names = [...replica.memory.gradients.keys()];
  if (samples.length === 0) return { forwardMs: 0, backwardMs: names.map(() => 0), segmentMs: 0 };
  const time = (groups: string[][], repeats: number): number[][] => {
    replica.setGroups(groups);
    return Array.from({ length: repeats }, () => {
      let last = performance.now();
      const pieces: number[] = [];
      replica.computeGradients(samples, () => {
        const now = performance.now();
        pieces.push(now - last);
        last = now;
      });
      return pieces;
    });
  };
  time([names], WARM_UP);
  const uncut = time([names], REPEATS).map(([ms]) => ms!);
  const cut = time(cutEverywhere(names), WARM_UP + REPEATS).slice(WARM_UP);
  return layerTimes(uncut, cut);
}

/** Of the workers that had something to compute. */
async function meanOver(thread: CommunicationThread, own: LayerTimes, samples: number): Promise<LayerTimes> {
  const all = thread.allocate('float32', own.backwardMs.length + 2);
  all.view.set([own.forwardMs, own.segmentMs, ...own.backwardMs]);
  thread.allReduce(all, { op: 'mean', weight: Math.min(1, samples) }).wait();
  const [forwardMs, segmentMs, ...backwardMs] = all.view;
  await thread.free(all);
  return { forwardMs: forwardMs!, segmentMs: segmentMs!, backwardMs };
}

function inputOf(
  { thread, replica, messages, gather, servers, sparseUpdates }: PlanFacts,
  times: LayerTimes,
  trial: ExchangeTrial,
): ExchangeInput {
  const { size, hosts } = thread.world;
  const machines = new Set(hosts).size;
  const { gradients } = replica.memory;
  return {
    forwardMs: times.forwardMs,
    segmentMs: times.segmentMs,
    busyShare: trial.busyShare,
    layers: [...gradients].map(([name, place], i) => ({
      ...{ name, backwardMs: times.backwardMs[i]! },
      parameters: [parameterOf(replica, name, place, sparseUpdates)],
    })),
    cluster: {
      ...{ workers: size, machines, workersPerMachine: Math.ceil(size / machines) },
      servers: servers?.count ?? 0,
    },
    costs: {
      ...{ collective: collectiveCost(messages, trial), ...(gather ? { gather } : {}) },
      ...(servers ? serverCostsOf(servers.costs) : {}),
    },
  };
}

function serverCostsOf({ dense, rows, pushShare }: ServerCosts): Partial<ExchangeCosts> {
  return { serverDense: dense, serverRows: rows, serverPushShare: pushShare };
}

/** As tried while workers computed; beyond that, for whole tables, as measured alone. */
function collectiveCost(messages: MessageCosts, { line, longestBytes }: ExchangeTrial): ExchangeCost {
  const tried = linearCost(line.startMs, line.msPerByte);
  const alone = measuredCost(messages);
  const offsetMs = tried(longestBytes) - alone(longestBytes);
  const longer = messages.filter(({ bytes }) => bytes > longestBytes);
  return [
    { bytes: 0, ms: line.startMs },
    { bytes: longestBytes, ms: tried(longestBytes) },
    ...longer.map(({ bytes, ms }) => ({ bytes, ms: Math.max(tried(longestBytes), ms + offsetMs) })),
  ];
}

function parameterOf(
  replica: Replica,
  name: string,
  place: GradientPlace,
  sparseUpdates: PlanFacts['sparseUpdates'],
): PlannedParameter {
  const isOnServers = replica.memory.rowBuffers.has(name);
  const kept = isOnServers ? undefined : whyKeptHere(replica, place);
  const keptHere = kept === undefined ? {} : { keptHere: kept };
  if (place.kind === 'dense') return { name, kind: 'dense', elements: place.region.length, ...keptHere };
  const { tableRows, rowLength, count } = place;
  const sparsity = Math.min(1, Math.max(1, count) / tableRows);
  const { parameter } = place.gradient;
  const byRowsOnly = sparseUpdates === 'lazy' || seesTouchedRows(replica.model.graph, parameter);
  return {
    ...{ name, kind: 'sparse', elements: tableRows * rowLength, rowLength, sparsity, byRowsOnly },
    ...(isOnServers ? { isOnServers } : {}),
    ...keptHere,
  };
}

/** What must be done with its gradient or its value that servers do not do. */
function whyKeptHere({ model, memory }: Replica, place: GradientPlace): string | undefined {
  const why = operationsElsewhere(model.graph, place.gradient.parameter);
  if (typeof why === 'string') return why;
  if (place.kind === 'sparse' && !lookedUp(memory, place, 1))
    return 'the model computes which rows it looks up';
  return undefined;
}
