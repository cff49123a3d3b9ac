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
import { namesInShort } from '../plan/index.ts';
import type { Replica } from '../runtime/index.ts';
import { AgreedStop } from './agreed-stop.ts';
import { samplesOfClient, type ClientLayout } from './client-layout.ts';
import type { JointStep, StepOutcome, StepShare } from './joint-step.ts';
import type { Clients } from './on.ts';
import { compareReplicas } from './replica-check.ts';
import { StopRounds } from './stop-rounds.ts';
import type { Trace } from './trace.ts';

export interface ClientStepOptions {
  readonly thread: CommunicationThread;
  readonly replica: Replica;
  readonly way: Clients;
  readonly layout: ClientLayout;
  /** Connects to the servers; all workers call it together, before the first step. */
  readonly connect: (link: ClientLink, leaders: SomeWorkers | undefined) => Promise<ConnectedClient>;
  /** Between two comparisons of replicas that must be the same. */
  readonly compareEverySteps: number;
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
  readonly link: ClientLink;
  readonly rounds: StopRounds | undefined;
  readonly groups: readonly number[];
  /** Gradients of the client's workers become one; undefined: it has but one worker. */
  readonly inside: CollectiveExchange | undefined;
}

export class ClientStep implements JointStep {
  readonly plan = undefined;
  readonly program = undefined;
  /** Clients have whole tables. */
  readonly remoteTables = NO_TABLES;
  readonly part: Part;
  readonly stepSamples: number;
  readonly #options: ClientStepOptions;
  #open: Open | undefined;
  #stop: AgreedStop | undefined;
  /** Steps since the last average. */
  #sinceAverage = 0;
  #isInRun = false;
  #signal: AbortSignal | undefined;
  #isStopWanted = false;
  #lastLoss = NaN;
  #segmentName = '';

  constructor(options: ClientStepOptions) {
    this.#options = options;
    this.part = options.layout.part;
    this.stepSamples = options.layout.stepSamples;
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

  async step(share: StepShare, checkLoss: (loss: number) => void): Promise<StepOutcome> {
    const { replica, way, thread, compareEverySteps, trace } = this.#options;
    const { servers } = this.#open!;
    const { kind } = way.consistency;
    if (kind === 'synchronous' && replica.step > 0 && replica.step % compareEverySteps === 0) {
      compareReplicas(thread, replica, { parameters: [] });
      trace?.lap('check');
    }
    const { samples, batchSize, isShared, lr } = share;
    const { own, all } = isShared
      ? { own: samplesOfClient(this.#options.layout, batchSize), all: batchSize }
      : this.#samplesOfAll(samples.length);
    if (kind === 'asynchronous' || kind === 'bounded') {
      await servers.prepare(samples.length);
      trace?.lap('pull rows');
    }
    const startedMs = performance.now();
    const computedMs = await this.#compute(samples, own);
    const push = { samples: own, lr };
    switch (kind) {
      case 'synchronous':
        await servers.sum(push);
        trace?.lap('wait');
        replica.memory.takeStates(replica.kernels);
        checkLoss(this.#loss);
        replica.update(lr, undefined, trace?.lap);
        break;
      case 'asynchronous':
      case 'bounded':
        if (own > 0) {
          replica.memory.takeStates(replica.kernels);
          checkLoss(this.#loss);
          replica.transformGradients(trace?.lap);
        }
        await servers.push(push);
        trace?.lap('wait');
        replica.follow(trace?.lap);
        break;
      case 'elastic':
        if (own > 0) {
          replica.memory.takeStates(replica.kernels);
          checkLoss(this.#loss);
          replica.update(lr, undefined, trace?.lap);
        } else replica.step++;
        if (++this.#sinceAverage >= way.consistency.everySteps) await this.#average(servers);
    }
    if (own > 0 || kind === 'synchronous') this.#lastLoss = this.#loss;
    const waitMs = performance.now() - computedMs;
    return { loss: this.#lastLoss, samples: all, computeMs: computedMs - startedMs, waitMs };
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
    if (kind === 'elastic' && this.#sinceAverage > 0) await this.#average(servers);
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
    const names = [...memory.gradients.keys()];
    this.#segmentName = `backward ${namesInShort(names, memory.parameters.keys())}`;
    const inside =
      ranks.length === 1
        ? undefined
        : new CollectiveExchange({
            ...{ thread, memory, kernels, groups: [names] },
            workers: { group, size: ranks.length },
          });
    if (trace) {
      replica.cutForward();
      inside?.traceTo(trace.message);
      trace.lap('plan');
    }
    return {
      ...{ ...connected, link, inside, groups: [group, ...(ofLeaders ? [ofLeaders.group] : [])] },
      rounds:
        ofLeaders && way.consistency.kind !== 'synchronous' ? new StopRounds(thread, ofLeaders) : undefined,
    };
  }

  /** The gradient of the client's batch, and its loss and states, on all its workers. */
  async #compute(samples: ArrayLike<number>, ofClient: number): Promise<number> {
    const { replica, trace } = this.#options;
    const { inside } = this.#open!;
    if (ofClient === 0) {
      replica.clearGradients();
      return performance.now();
    }
    inside?.begin(samples.length);
    if (samples.length > 0) {
      replica.computeGradients(samples, () => trace?.lap('backward', this.#segmentName), trace?.lap);
    } else replica.clearGradients();
    const computedMs = performance.now();
    inside?.start(0);
    await inside?.finish();
    trace?.lap('wait');
    return computedMs;
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

  async #average(servers: ClientServers): Promise<void> {
    this.#sinceAverage = 0;
    await servers.average();
    this.#options.trace?.lap('wait');
  }
}
