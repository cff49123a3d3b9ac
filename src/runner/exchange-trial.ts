/**
 * What messages cost while workers compute, from real steps: dense gradients leave in a few groupings, and it is noted when each was ready
 * and when it had arrived. Messages that are timed alone tell neither how processors are shared nor how workers wait for each
 * other. Trains nothing. All workers call it together. Invariant: on all workers the same figures.
 */
import type { CommunicationThread } from '../communication/index.ts';
import { CollectiveExchange, tellAll, wallMs } from '../exchange/index.ts';
import { stepProgram, type LinearCost, type Route } from '../plan/index.ts';
import { replicaOperations, StepContext, StepWalk, type Replica } from '../runtime/index.ts';
import { cutEverywhere } from './layer-times.ts';
import { underWay, type Passage } from './under-way.ts';

export interface ExchangeTrial {
  /** Of a message of dense gradients, by its bytes. */
  readonly line: LinearCost;
  /** Bytes of the longest message that was seen. */
  readonly longestBytes: number;
  /** Forward and backward pass in one piece, when nothing else is going on here. */
  readonly computeMs: number;
  /** Share of a message's time that compute loses to it. */
  readonly busyShare: number;
}

/** What a step by some grouping took. */
export interface TriedStep {
  readonly messages: number;
  readonly bytes: number;
  readonly computeMs: number;
  /** In which messages were under way that were ready, and how much of that was before the end of compute. */
  readonly exchangeMs: number;
  readonly hiddenMs: number;
}

/** Several passes over all groupings, as machines have better and worse seconds. */
const [PASSES, WARM_UP, REPEATS] = [2, 1, 4];
const FEW_GROUPS = 4;

/** `segmentMs`: what one more cut costs. */
export async function tryExchange(
  thread: CommunicationThread,
  replica: Replica,
  samples: ArrayLike<number>,
  segmentMs: number,
): Promise<ExchangeTrial> {
  const names = [...replica.memory.gradients.keys()];
  const groupings = [cutEverywhere(names), inParts(names, FEW_GROUPS), [names]];
  const steps = groupings.map((): TriedStep[] => []);
  for (let pass = 0; pass < PASSES; pass++) {
    for (const [i, groups] of groupings.entries()) {
      steps[i]!.push(...(await trySteps(thread, replica, samples, groups)));
    }
  }
  const tried = steps.map((own) => typicalOf(jointly(thread, own)));
  const computeMs = tried.at(-1)!.computeMs;
  const lostMs = tried.map((step, i) => step.computeMs - computeMs - segmentMs * (groupings[i]!.length - 1));
  const hiddenMs = sum(tried.slice(0, -1).map((step) => step.hiddenMs));
  return {
    ...{ line: fitLine(tried), computeMs },
    longestBytes: Math.max(...tried.map(({ bytes }) => bytes)),
    busyShare: hiddenMs === 0 ? 0 : Math.max(0, Math.min(1, sum(lostMs) / hiddenMs)),
  };
}

async function trySteps(
  thread: CommunicationThread,
  replica: Replica,
  samples: ArrayLike<number>,
  groups: string[][],
): Promise<TriedStep[]> {
  const { memory, kernels } = replica;
  replica.setGroups(groups);
  // Tables stay where they are.
  const routes = new Map(
    [...memory.gradients].map(([name, { kind }]): [string, Route] => [
      name,
      kind === 'dense' ? 'collective' : 'server rows',
    ]),
  );
  const step = new StepContext();
  const exchange = new CollectiveExchange({ thread, memory, kernels, step, routes });
  const tables = [...memory.gradients].flatMap(([name, { kind }]) => (kind === 'sparse' ? [name] : []));
  const { operations } = stepProgram({
    ...{ parameters: [...memory.parameters.keys()], groups, routes, transforms: [] },
    ...{ tables: new Set(tables), hasStates: memory.nextStates.size > 0, hasAverages: false },
  });
  // What trains nothing.
  const tried = operations.filter(({ kind }) => ['forward', 'backward', 'reduce'].includes(kind));
  const ready: number[] = [];
  let passages: Passage[] = [];
  let bytes = 0;
  const walk = StepWalk.bind(
    { operations: tried },
    {
      parts: [
        replicaOperations({ replica, step, checkLoss: () => undefined }),
        (operation) => exchange.handlerOf(operation),
      ],
      finishedSteps: () => replica.step,
      onComputed: ({ kind, number }) => {
        if (kind === 'backward') ready[number!] = wallMs();
      },
      onMessage: ({ number }, { endedMs, bytes: moved = 0 }) => {
        passages.push({ startedMs: ready[number!]!, endedMs });
        bytes += moved;
      },
    },
  );
  const steps: TriedStep[] = [];
  for (let i = 0; i < WARM_UP + REPEATS; i++) {
    passages = [];
    bytes = 0;
    step.begin(samples, undefined);
    await walk.step();
    await walk.settle();
    const computeMs = step.computedMs - step.startedMs;
    const underWayOf = underWay(passages, performance.timeOrigin + step.computedMs);
    steps.push({ messages: passages.length, bytes, computeMs, ...underWayOf });
  }
  await exchange.close();
  return steps.slice(WARM_UP);
}

/**
 * The line `a + b M` that comes closest, by shares, to what all messages of a step took together. Single messages say less: which of
 * those that follow closely waited for which is chance.
 */
export function fitLine(steps: readonly TriedStep[]): LinearCost {
  let [nn, nm, mm, nt, mt] = [0, 0, 0, 0, 0];
  for (const { messages, bytes, exchangeMs } of steps) {
    const weight = 1 / Math.max(exchangeMs, 1e-3) ** 2;
    nn += weight * messages * messages;
    nm += weight * messages * bytes;
    mm += weight * bytes * bytes;
    nt += weight * messages * exchangeMs;
    mt += weight * bytes * exchangeMs;
  }
  const determinant = nn * mm - nm * nm;
  const startMs = determinant > 0 ? (nt * mm - mt * nm) / determinant : 0;
  const msPerByte = determinant > 0 ? (mt * nn - nt * nm) / determinant : 0;
  if (startMs <= 0) return { startMs: 0, msPerByte: mm > 0 ? mt / mm : 0 };
  return msPerByte > 0 ? { startMs, msPerByte } : { startMs: nn > 0 ? nt / nn : 0, msPerByte: 0 };
}

/** Messages count as they are when nobody is late: waiting for a worker that was held up is no cost of theirs. */
function typicalOf(steps: readonly TriedStep[]): TriedStep {
  const of = (name: 'computeMs' | 'exchangeMs' | 'hiddenMs', share: number) =>
    quantile(
      steps.map((step) => step[name]),
      share,
    );
  return {
    ...steps[0]!,
    ...{ computeMs: of('computeMs', 0.5), exchangeMs: of('exchangeMs', 0.25), hiddenMs: of('hiddenMs', 0.5) },
  };
}

/** The same steps as all workers saw them. */
function jointly(thread: CommunicationThread, own: readonly TriedStep[]): TriedStep[] {
  const numbers = own.flatMap(({ computeMs, exchangeMs, hiddenMs }) => [computeMs, exchangeMs, hiddenMs]);
  const all = tellAll(thread, numbers, 'times of tried steps');
  return own.map((step, i) => asOne(all.map((one) => ({ ...step, ...timesAt(one, 3 * i) }))));
}

function timesAt(
  numbers: ArrayLike<number>,
  at: number,
): Pick<TriedStep, 'computeMs' | 'exchangeMs' | 'hiddenMs'> {
  return { computeMs: numbers[at]!, exchangeMs: numbers[at + 1]!, hiddenMs: numbers[at + 2]! };
}

/** A step of all workers: means. What the last one to come sees is too little, as messages of the others are halfway there by then. */
export function asOne(workers: readonly TriedStep[]): TriedStep {
  const mean = (name: 'computeMs' | 'exchangeMs' | 'hiddenMs') =>
    sum(workers.map((one) => one[name])) / workers.length;
  return {
    ...workers[0]!,
    ...{ computeMs: mean('computeMs'), exchangeMs: mean('exchangeMs'), hiddenMs: mean('hiddenMs') },
  };
}

/** Neighbours together, in so many parts. */
function inParts(names: readonly string[], parts: number): string[][] {
  const size = Math.ceil(names.length / parts);
  return names.flatMap((_, i) => (i % size === 0 ? [names.slice(i, i + size)] : []));
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function quantile(values: readonly number[], share: number): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length * share)] ?? 0;
}
