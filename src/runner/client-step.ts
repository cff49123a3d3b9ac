/**
 * A step of a worker whose client deals with parameter servers (MXNET-MPI, section 5): the client's
 * workers make one gradient of theirs by collectives, and servers combine that with those of other
 * clients, by the consistency of `on`. Invariants: every client pushes in every step, also without
 * samples, so that no clock of the servers misses one; a loss that is not a number changes nothing
 * anywhere.
 */
import type { CommunicationThread } from '../communication/index.ts';
import {
  ClientLink,
  type ClientServers,
  CollectiveExchange,
  NO_TABLES,
  tellAll,
  type SomeWorkers,
} from '../exchange/index.ts';
import type { Part } from '../data/index.ts';
import type { StepProgram } from '../plan/index.ts';
import {
  replicaOperations,
  StepContext,
  StepWalk,
  type LaneHandler,
  type MovedMessage,
  type Replica,
} from '../runtime/index.ts';
import { AgreedStop } from './agreed-stop.ts';
import { samplesOfClient, type ClientLayout } from './client-layout.ts';
import type { Asked, JointStep, StepOutcome, StepShare } from './joint-step.ts';
import type { Clients } from './on.ts';
import { compareReplicas } from './replica-check.ts';
import { compareProgram } from './run-program.ts';
import { StopRounds } from './stop-rounds.ts';
import type { Trace } from './trace.ts';

export interface ClientStepOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly way: Clients;
  readonly layout: ClientLayout;
  /** Connects to the servers; all workers call it together, before the first step. */
  readonly connect: (link: ClientLink, leaders: SomeWorkers | undefined) => Promise<ConnectedClient>;
  readonly programOf: (servers: ClientServers['kind']) => StepProgram;
  /** Receives trace events. Default: none. */
  readonly trace?: Trace | undefined;
}

export interface ConnectedClient {
  readonly servers: ClientServers;
  /** After the client has left them. All workers call it. */
  readonly close: () => Promise<void>;
  readonly abort: () => Promise<void>;
}

interface Open extends ConnectedClient {
  readonly walk: StepWalk;
  readonly link: ClientLink;
  readonly rounds: StopRounds | undefined;
  readonly groups: readonly number[];
  /** Gradients of the client's workers become one; undefined: it has but one worker. */
  readonly inside: CollectiveExchange | undefined;
}

export class ClientStep implements JointStep {
  readonly plan = undefined;
  /** Clients have whole tables. */
  readonly remoteTables = NO_TABLES;
  readonly part: Part;
  readonly stepSamples: number;
  readonly #options: ClientStepOptions;
  #open: Open | undefined;
  #program: StepProgram | undefined;
  #stop: AgreedStop | undefined;
  readonly #context = new StepContext();
  #load: (() => StepShare) | undefined;
  #checkLoss: (loss: number) => void = () => undefined;
  /** Samples of this step, of the client and of all workers. */
  #samples = { own: 0, all: 0 };
  /** Whether the last step was followed by an average with the centre. */
  #isAveraged = true;
  #isInRun = false;
  #signal: AbortSignal | undefined;
  #isStopWanted = false;
  #lastLoss = NaN;

  constructor(options: ClientStepOptions) {
    this.#options = options;
    this.part = options.layout.part;
    this.stepSamples = options.layout.stepSamples;
  }

  /** From the first step on. */
  get program(): StepProgram | undefined {
    return this.#program;
  }

  regroup(): undefined {
    return undefined;
  }

  get together(): JointStep['together'] {
    const { thread, layout, way } = this.#options;
    const { id: group, size, rank: index } = thread.world;
    if (way.consistency.kind === 'synchronous' || !this.#open) return { group, size, index };
    return { ...this.#open.link.workers, index: layout.index };
  }

  async begin(): Promise<void> {
    await this.end();
    this.#open ??= await this.#connect();
    this.#open.rounds?.begin();
    this.#stop = undefined;
    this.#isStopWanted = false;
    this.#isInRun = true;
  }

  async step(load: () => StepShare, checkLoss: (loss: number) => void): Promise<StepOutcome> {
    const { replica, trace } = this.#options;
    const { walk, servers } = this.#open!;
    this.#load = load;
    this.#checkLoss = checkLoss;
    this.#isAveraged = false;
    await walk.step();
    // What clients agree on between steps goes the same ways.
    if (await walk.settle()) trace?.lap('wait');
    // Servers have made it.
    if (servers.kind === 'updates') replica.step++;
    if (this.#context.isUsed) this.#lastLoss = this.#loss;
    const { startedMs, computedMs } = this.#context;
    const times = { computeMs: computedMs - startedMs, waitMs: performance.now() - computedMs };
    return { loss: this.#lastLoss, samples: this.#samples.all, ...times };
  }

  isDue(kind: Asked, isEpochEnd: boolean): boolean {
    return this.#open!.walk.isDue(kind, isEpochEnd);
  }

  async call<T>(kind: Asked, work: () => T | Promise<T>): Promise<T> {
    return this.#open ? this.#open.walk.call(kind, work) : work();
  }

  isStopped(signal: AbortSignal | undefined): boolean {
    const { thread } = this.#options;
    const { rounds, link } = this.#open!;
    this.#signal = signal;
    // Also without a signal: that is how the loss of another client is noticed.
    this.#isStopWanted ||= rounds?.isStopWanted(signal?.aborted ?? false) ?? false;
    if (!signal) return false;
    const isWanted = () => signal.aborted || this.#isStopWanted;
    if (this.together.size === 1) return isWanted();
    this.#stop ??= new AgreedStop(thread, isWanted, this.together);
    const isDue = this.#stop.isDue();
    // Another worker of the client may have wished it.
    if (isDue && link.isFirst) this.#isStopWanted = true;
    return isDue;
  }

  async leaveRun(): Promise<void> {
    if (this.#isInRun && this.#options.way.consistency.kind === 'bounded') await this.#open!.servers.pause();
  }

  async end(): Promise<void> {
    if (!this.#isInRun) return;
    this.#isInRun = false;
    const { servers, rounds, link } = this.#open!;
    const { kind } = this.#options.way.consistency;
    if (kind === 'synchronous') return;
    if (kind === 'elastic' && !this.#isAveraged) await servers.average();
    this.#isAveraged = true;
    // Those who are behind must not wait for one that makes no further step.
    if (kind === 'bounded') await servers.pause();
    await link.lead(() => rounds!.end(() => this.#isStopWanted || (this.#signal?.aborted ?? false)));
  }

  async withValues<T>(
    work: () => T | Promise<T>,
    { alone = false, withState = false }: { readonly alone?: boolean; readonly withState?: boolean } = {},
  ): Promise<T> {
    const open = this.#open;
    if (!open || (alone && !open.link.isFirst)) return work();
    const { servers } = open;
    const own = servers.values.map((region) => ({ region, kept: region.view.slice() }));
    await servers.pull({ alone, withState });
    try {
      return await work();
    } finally {
      for (const { region, kept } of own) region.view.set(kept);
    }
  }

  async prepareRows(): Promise<void> {}

  async fetchAll(): Promise<void> {
    await this.#open?.servers.pull({ alone: true, withState: true });
  }

  async close(): Promise<void> {
    const open = this.#open;
    if (!open) return;
    await this.end();
    this.#open = undefined;
    await open.servers.close();
    await open.inside?.close();
    await open.rounds?.close();
    await open.link.close();
    for (const group of open.groups) await this.#options.thread.closeGroup(group);
    await open.close();
  }

  async abort(): Promise<void> {
    await Promise.allSettled([this.#open?.servers.abort(), this.#open?.abort()]);
  }

  get #loss(): number {
    return this.#options.replica.memory.loss.view[0]!;
  }

  async #connect(): Promise<Open> {
    const { thread, layout, replica, way, connect, trace } = this.#options;
    const { ranks, leaders, index } = layout;
    const group = await thread.group(ranks);
    const isLeader = index === 0;
    const ofLeaders = isLeader ? { group: await thread.group(leaders), size: leaders.length } : undefined;
    const link = new ClientLink(thread, { group, size: ranks.length, index });
    const connected = await connect(link, ofLeaders);
    const { memory, kernels } = replica;
    const workers = { group, size: ranks.length };
    const inside =
      ranks.length === 1
        ? undefined
        : new CollectiveExchange({ thread, memory, kernels, workers, step: this.#context });
    const program = (this.#program = this.#options.programOf(connected.servers.kind));
    compareProgram(thread, program);
    if (trace) {
      replica.cutForward();
      trace.lap('plan');
    }
    return {
      ...{ ...connected, link, inside, groups: [group, ...(ofLeaders ? [ofLeaders.group] : [])] },
      walk: this.#bind(program, connected.servers, inside),
      rounds:
        ofLeaders && way.consistency.kind !== 'synchronous' ? new StopRounds(thread, ofLeaders) : undefined,
    };
  }

  /** This worker's parts, for the operations that each of them does. */
  #bind(program: StepProgram, servers: ClientServers, inside: CollectiveExchange | undefined): StepWalk {
    const { thread, replica, trace } = this.#options;
    const step = this.#context;
    const isUpdatedThere = servers.kind === 'updates';
    return StepWalk.bind(program, {
      parts: [
        ({ kind }) => {
          if (kind === 'load') return () => this.#takeBatch();
          if (kind === 'check') return () => compareReplicas(thread, replica, { parameters: [] });
          // Values have changed also where this client had no samples.
          if (kind === 'average' && isUpdatedThere) return () => replica.followAverages();
          return undefined;
        },
        replicaOperations({
          ...{ replica, step, checkLoss: (loss) => this.#checkLoss(loss) },
          onCompiled: () => trace?.lap('compile'),
        }),
        (operation) => {
          if (operation.kind !== 'reduce') return undefined;
          const handler = inside?.handlerOf(operation);
          // A client of one worker, or without samples, has nothing to add up.
          return new OnlyIf(() => handler !== undefined && this.#samples.own > 0, handler);
        },
        servers.handlers({
          samples: () => step.samples.length,
          push: () => ({ samples: this.#samples.own, lr: step.lr }),
          checkLoss: () => {
            if (isUpdatedThere && step.isUsed) this.#checkLoss(this.#loss);
          },
          onAveraged: () => (this.#isAveraged = true),
        }),
      ],
      finishedSteps: () => replica.step,
      onComputed: ({ kind, name }) => {
        // The first worker writes for all.
        if (kind !== 'checkpoint' || thread.world.rank === 0) trace?.lap(kind, name);
      },
      onWaited: ({ kind }) => trace?.lap(kind === 'pull rows' ? kind : 'wait'),
      onMessage: ({ kind, name }, { startedMs, endedMs, bytes }) =>
        trace?.message(kind, name, startedMs, endedMs, bytes),
    });
  }

  #takeBatch(): void {
    const { layout, way } = this.#options;
    const { samples, batchSize, isShared, lr } = this.#load!();
    this.#samples = isShared
      ? { own: samplesOfClient(layout, batchSize), all: batchSize }
      : this.#samplesOfAll(samples.length);
    const isUsed = this.#samples.own > 0 || way.consistency.kind === 'synchronous';
    this.#context.begin(samples, lr, isUsed);
  }

  #samplesOfAll(own: number): { readonly own: number; readonly all: number } {
    const { thread, way } = this.#options;
    const { workers } = this.#open!.link;
    const sum = (told: readonly (readonly number[])[]) => told.reduce((total, [count]) => total + count!, 0);
    const ofClient = workers.size === 1 ? own : sum(tellAll(thread, [own], 'samples of the client', workers));
    // Without lock step nobody waits for the others to say how many they have.
    const isTogether = way.consistency.kind === 'synchronous';
    const all = isTogether ? sum(tellAll(thread, [own], 'samples of all workers')) : ofClient * way.clients;
    return { own: ofClient, all };
  }
}

/** Does nothing in steps that have nothing for it. */
class OnlyIf implements LaneHandler {
  readonly #isNeeded: () => boolean;
  readonly #handler: LaneHandler | undefined;
  #isStarted = false;

  constructor(isNeeded: () => boolean, handler: LaneHandler | undefined) {
    this.#isNeeded = isNeeded;
    this.#handler = handler;
  }

  start(): void {
    this.#isStarted = this.#isNeeded();
    if (this.#isStarted) this.#handler!.start();
  }

  hasEnded(): boolean {
    return !this.#isStarted || this.#handler!.hasEnded();
  }

  wait(): void | Promise<unknown> {
    return this.#isStarted ? this.#handler!.wait() : undefined;
  }

  get message(): MovedMessage | undefined {
    return this.#isStarted ? this.#handler!.message : undefined;
  }
}
