/**
 * The plan of a run, from measurements on the workers themselves: the first batch is computed a few times, uncut and cut behind
 * every gradient, and messages were timed before. Nothing is trained meanwhile. What is best is decided in `plan/`.
 * Invariants: all workers call it at the same step and come to the same plan; parameters and states stay as they were.
 */
import { availableParallelism } from 'node:os';
import type { CommunicationThread } from '../communication/index.ts';
import { agree, lookedUp, type MeasuredMessages, type ServerCosts } from '../exchange/index.ts';
import {
  planExchange,
  type ExchangeInput,
  type ExchangePlan,
  type Merging,
  type PlannedParameter,
  type Route,
  type Strategy,
} from '../plan/index.ts';
import type { GradientPlace, Replica } from '../runtime/index.ts';
import { cutEverywhere, layerTimes, type LayerTimes } from './layer-times.ts';

export interface PlanOptions {
  /** By which ways gradients may travel: the cheapest for each parameter, or those of one kind. Default 'hybrid'. */
  readonly strategy?: Strategy | undefined;
  /** How neighbouring gradients are merged. Default 'optimal'. */
  readonly merging?: Merging | undefined;
  /** Size of a bucket, for merging by 'buckets'. Default 25 MB. */
  readonly bucketBytes?: number | undefined;
}

export interface PlanFacts {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly messages: MeasuredMessages;
  /** What exchanges with the servers of the run cost, if it has some. */
  readonly servers?: { readonly count: number; readonly costs: ServerCosts } | undefined;
  /** Of tables. */
  readonly sparseUpdates: 'exact' | 'lazy';
  readonly options: PlanOptions;
}

const [WARM_UP, REPEATS] = [2, 5];
/** A message that keeps a processor busy for so much of its time hides behind nothing if all processors compute. */
const MOSTLY_BUSY = 0.5;

/** A plan, and the figures that it was made of. */
export interface PlannedRun {
  readonly plan: ExchangePlan;
  readonly input: ExchangeInput;
}

/** The batch lies in the replica's inputs; `samples` may be empty on some workers. */
export function planRun(facts: PlanFacts, samples: ArrayLike<number>): PlannedRun {
  const { thread, replica, options } = facts;
  const own = timeLayers(replica, samples);
  const times = meanOver(thread, own, samples.length);
  const { strategy = 'hybrid' } = options;
  return planned(thread, { ...inputOf(facts, times), ...mergingOf(facts, options), strategy });
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
  const states = [...replica.memory.states.values()].map(({ view }) => ({ view, kept: view.slice() }));
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
  for (const { view, kept } of states) view.set(kept);
  return layerTimes(uncut, cut);
}

/** Of the workers that had something to compute. */
function meanOver(thread: CommunicationThread, own: LayerTimes, samples: number): LayerTimes {
  const all = thread.allocate('float32', own.backwardMs.length + 2);
  all.view.set([own.forwardMs, own.segmentMs, ...own.backwardMs]);
  thread.allReduce(all, { op: 'mean', weight: Math.min(1, samples) }).wait();
  const [forwardMs, segmentMs, ...backwardMs] = all.view;
  return { forwardMs: forwardMs!, segmentMs: segmentMs!, backwardMs };
}

function inputOf(
  { thread, replica, messages, servers, sparseUpdates }: PlanFacts,
  times: LayerTimes,
): ExchangeInput {
  const { size, hosts } = thread.world;
  const machines = new Set(hosts).size;
  const slowdown = hasFreeProcessor(thread) ? 1 : 1 + lostShare(replica, messages, times);
  return {
    forwardMs: times.forwardMs,
    segmentMs: times.segmentMs,
    layers: [...replica.memory.gradients].map(([name, place], i) => ({
      ...{
        name,
        backwardMs: times.backwardMs[i]! * slowdown,
        parameters: [parameterOf(replica, name, place, sparseUpdates)],
      },
    })),
    cluster: {
      ...{ workers: size, machines, workersPerMachine: Math.ceil(size / machines) },
      servers: servers?.count ?? 0,
    },
    costs: {
      ...{ collective: messages.collective, gather: messages.gather },
      ...(servers ? { serverDense: servers.costs.dense, serverRows: servers.costs.rows } : {}),
    },
  };
}

/** The share by which backward becomes longer because messages need the same processors. */
function lostShare(
  { memory }: Replica,
  { collective, busyProcessors }: MeasuredMessages,
  times: LayerTimes,
): number {
  const longest = collective.at(-1)!;
  const exchangeMs = (longest.ms * memory.exchanged.byteLength) / longest.bytes;
  const backwardMs = times.backwardMs.reduce((sum, ms) => sum + ms, 0);
  return backwardMs === 0 ? 0 : (Math.min(1, busyProcessors) * exchangeMs) / backwardMs;
}

function mergingOf(
  { thread, messages }: PlanFacts,
  options: PlanOptions,
): Pick<ExchangeInput, 'merging' | 'bucketBytes'> {
  const hides = hasFreeProcessor(thread) || messages.busyProcessors < MOSTLY_BUSY;
  const { merging = hides ? 'optimal' : 'single', bucketBytes } = options;
  return { merging, ...(bucketBytes === undefined ? {} : { bucketBytes }) };
}

/** Whether messages have a processor of their own while all workers of this machine compute. */
function hasFreeProcessor({ world }: CommunicationThread): boolean {
  const here = world.hosts.filter((host) => host === world.hosts[world.rank]).length;
  return here < availableParallelism();
}

function parameterOf(
  replica: Replica,
  name: string,
  place: GradientPlace,
  sparseUpdates: PlanFacts['sparseUpdates'],
): PlannedParameter {
  const kept = whyKeptHere(replica, name, place);
  const keptHere = kept === undefined ? {} : { keptHere: kept };
  if (place.kind === 'dense') return { name, kind: 'dense', elements: place.region.length, ...keptHere };
  const { tableRows, rowLength, count } = place;
  const sparsity = Math.min(1, Math.max(1, count) / tableRows);
  const byRowsOnly = sparseUpdates === 'lazy';
  return {
    ...{ name, kind: 'sparse', elements: tableRows * rowLength, rowLength, sparsity, byRowsOnly },
    ...keptHere,
  };
}

/** What must be done with its gradient or its value that servers do not do. */
function whyKeptHere({ model, memory }: Replica, name: string, place: GradientPlace): string | undefined {
  const { graph } = model;
  const operation = graph.updateOperations.find(
    (one) =>
      !(one.kind === 'clip_global_norm' && one.order === 2) &&
      !(one.kind === 'weight_decay' && !one.applies(place.gradient.parameter)),
  );
  if (operation) return `${operation.kind} comes between aggregation and update`;
  const average = graph.movingAverages.find(({ applies }) => applies(place.gradient.parameter));
  if (average) return `moving average ${average.name} follows ${name}`;
  if (place.kind === 'sparse' && !lookedUp(memory, place, 1))
    return 'the model computes which rows it looks up';
  return undefined;
}
