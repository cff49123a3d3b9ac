/**
 * The plan of a run, from measurements on the workers themselves: the first batch is computed a few times, uncut and cut behind
 * every gradient, and messages were timed before. Nothing is trained meanwhile. What is best is decided in `plan/`.
 * Invariants: all workers call it at the same step and come to the same plan; parameters and states stay as they were.
 */
import { availableParallelism } from 'node:os';
import type { CommunicationThread } from '../communication/index.ts';
import { agree, type MeasuredMessages } from '../exchange/index.ts';
import { planExchange, type ExchangeInput, type ExchangePlan, type Merging } from '../plan/index.ts';
import type { GradientPlace, Replica } from '../runtime/index.ts';
import { cutEverywhere, layerTimes, type LayerTimes } from './layer-times.ts';

export interface PlanOptions {
  /** How neighbouring gradients are merged. Default 'optimal'. */
  readonly merging?: Merging | undefined;
  /** Size of a bucket, for merging by 'buckets'. Default 25 MB. */
  readonly bucketBytes?: number | undefined;
}

export interface PlanFacts {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly messages: MeasuredMessages;
  readonly options: PlanOptions;
}

const [WARM_UP, REPEATS] = [2, 5];
/** A message that keeps a processor busy for so much of its time hides behind nothing if all processors compute. */
const MOSTLY_BUSY = 0.5;

/** The batch lies in the replica's inputs; `samples` may be empty on some workers. */
export function planRun(facts: PlanFacts, samples: ArrayLike<number>): ExchangePlan {
  const { thread, replica, options } = facts;
  const own = timeLayers(replica, samples);
  const times = meanOver(thread, own, samples.length);
  const input = inputOf(facts, times);
  return agree(thread, planExchange({ ...input, ...mergingOf(facts, options) }));
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

function inputOf({ thread, replica, messages }: PlanFacts, times: LayerTimes): ExchangeInput {
  const { size, hosts } = thread.world;
  const machines = new Set(hosts).size;
  const slowdown = hasFreeProcessor(thread) ? 1 : 1 + lostShare(replica, messages, times);
  return {
    forwardMs: times.forwardMs,
    segmentMs: times.segmentMs,
    layers: [...replica.memory.gradients].map(([name, place], i) => ({
      ...{ name, backwardMs: times.backwardMs[i]! * slowdown, parameters: [parameterOf(name, place)] },
    })),
    cluster: { workers: size, machines, workersPerMachine: Math.ceil(size / machines), servers: 0 },
    costs: { collective: messages.collective, gather: messages.gather },
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
  name: string,
  place: GradientPlace,
): ExchangeInput['layers'][number]['parameters'][number] {
  if (place.kind === 'dense') return { name, kind: 'dense', elements: place.region.length };
  const { tableRows, rowLength, count } = place;
  const sparsity = Math.min(1, Math.max(1, count) / tableRows);
  return { name, kind: 'sparse', elements: tableRows * rowLength, rowLength, sparsity };
}
