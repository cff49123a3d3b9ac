/**
 * The work of the communication thread once it has joined: takes commands, starts collectives, drives them, and says
 * how they ended. The caller's side is `communication-thread.ts`. Invariants: a command waits at most a millisecond
 * while operations are under way and is noticed at once otherwise, unless the caller is blocked and gives none; the thread's
 * event loop, on which membership lives, gets a turn about every `TURN_MS` or `IDLE_MS`.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { receiveMessageOnPort } from 'node:worker_threads';
import type { MessagePort } from 'node:worker_threads';
import { UsageError, pack, unpack } from '../base/index.ts';
import type { Cluster, Group } from '../cluster/index.ts';
import { costsOf, measureCosts } from '../collectives/index.ts';
import type { Operation } from '../progress/index.ts';
import { startCollective } from './start-collective.ts';
import { viewOf } from './messages.ts';
import type {
  CallCommand,
  EventReport,
  RequestName,
  Requests,
  ThreadCommand,
  ThreadReport,
} from './messages.ts';
import { Outcome } from './shared-words.ts';
import type { SharedWords } from './shared-words.ts';
import { ThreadRegions } from './thread-regions.ts';

/** Between two turns of the event loop while operations are under way. */
const TURN_MS = 5;
/** The same while nothing is; also how late a peer's question may be heard. */
const IDLE_MS = 20;
/** Between two turns of the event loop while a request waits for what comes by it. */
const REQUEST_MS = 0.2;
/** How long one sleep on the transport may take: less after a command, because the next one comes soon. */
const BLOCK_MS = 1;
const BLOCK_AFTER_COMMAND_MS = 0.1;
const AFTER_COMMAND_MS = 2;

type Handlers = {
  readonly [Name in RequestName]: (ask: Requests[Name]['ask']) => Promise<Requests[Name]['answer']>;
};

export class CommandServer {
  readonly #cluster: Cluster;
  readonly #port: MessagePort;
  readonly #words: SharedWords;
  readonly #regions: ThreadRegions;
  readonly #groups = new Map<number, Group>();
  readonly #running = new Map<number, Operation>();
  readonly #isCalled = (): boolean => this.#words.rings !== this.#rings;
  /** How often the bell had been rung when commands were last taken. */
  #rings = 0;
  #commandMs = 0;
  #requests = 0;
  #ended = false;

  constructor(cluster: Cluster, port: MessagePort, words: SharedWords) {
    this.#cluster = cluster;
    this.#port = port;
    this.#words = words;
    this.#regions = new ThreadRegions(cluster.space);
    this.#groups.set(cluster.world.id, cluster.world);
    const tell = (report: EventReport): void => this.#post(report);
    cluster.on('left', (event) => tell({ kind: 'event', name: 'left', event }));
    cluster.on('waiting', (event) => tell({ kind: 'event', name: 'waiting', event }));
    cluster.on('scheduler-lost', (event) => tell({ kind: 'event', name: 'scheduler-lost', event }));
    cluster.on('formed', ({ group, added, lost }) =>
      tell({ kind: 'event', name: 'formed', event: { group: viewOf(group), added, lost } }),
    );
  }

  /** Returns when the caller has closed or aborted the cluster. */
  async serve(): Promise<void> {
    let turnedMs = 0;
    while (!this.#ended) {
      this.#takeCommands();
      this.#drive();
      if (this.#requests === 0 && performance.now() - turnedMs < TURN_MS) continue;
      await nextTurn();
      turnedMs = performance.now();
    }
    this.#regions.close();
  }

  /** The thread cannot go on: whoever waits for it learns so. Say why first. */
  abandon(): void {
    for (const slot of this.#running.keys()) this.#words.settle(slot, Outcome.FAILED);
    this.#running.clear();
  }

  /** Does what there is to do, or sleeps where the next thing will come. */
  #drive(): void {
    const { progress, transport } = this.#cluster;
    const isSoonCalled = performance.now() - this.#commandMs < AFTER_COMMAND_MS;
    const blockMs = isSoonCalled ? BLOCK_AFTER_COMMAND_MS : BLOCK_MS;
    const budgetMs = this.#requests > 0 ? REQUEST_MS : TURN_MS;
    if (progress.inFlight.length > 0) progress.advance(budgetMs, blockMs, this.#isCalled);
    else if (this.#requests > 0) this.#words.sleep(this.#rings, REQUEST_MS);
    else if (transport.idle) this.#words.sleep(this.#rings, IDLE_MS);
    else if (!progress.poll()) transport.block(blockMs);
  }

  #takeCommands(): void {
    if (!this.#isCalled()) return;
    this.#rings = this.#words.rings;
    this.#commandMs = performance.now();
    for (let next = receiveMessageOnPort(this.#port); next; next = receiveMessageOnPort(this.#port)) {
      this.#obey(next.message as ThreadCommand);
    }
  }

  #obey(command: ThreadCommand): void {
    switch (command.kind) {
      case 'call':
        return this.#call(command);
      case 'request':
        return void this.#answer(command.id, command.what, command.ask);
      case 'cancel':
        return this.#running.get(command.slot)?.cancel();
      case 'adopt':
        return this.#regions.adopt(command.segment, command.range);
      case 'forget':
        return this.#forget(command.segment);
      case 'give up joining':
        return;
    }
  }

  #call(command: CallCommand): void {
    const { slot } = command;
    this.#words.begin(slot);
    try {
      const regions = command.regions.map((region) => this.#regions.unpack(region));
      const unpackRegion = this.#regions.unpack.bind(this.#regions);
      const operation = startCollective(this.#group(command.group), command, regions, unpackRegion);
      if (operation.settled) return this.#end(slot, operation.error);
      this.#running.set(slot, operation);
      operation.onSettled = () => this.#end(slot, operation.error);
    } catch (error) {
      this.#end(slot, error);
    }
  }

  #end(slot: number, error: unknown): void {
    this.#running.delete(slot);
    if (error !== undefined) this.#post({ kind: 'failure', slot, error: pack(error) });
    this.#words.settle(slot, error === undefined ? Outcome.DONE : Outcome.FAILED);
  }

  async #answer<Name extends RequestName>(id: number, what: Name, ask: Requests[Name]['ask']): Promise<void> {
    this.#requests++;
    try {
      const answer = await this.#handlers[what](ask);
      this.#post({ kind: 'answer', id, answer });
    } catch (error) {
      this.#post({ kind: 'refusal', id, error: pack(error) });
    } finally {
      this.#requests--;
    }
  }

  readonly #handlers: Handlers = {
    group: async ({ ranks }) => this.#keep(await this.#cluster.group(ranks)),
    regroup: async () => {
      const before = this.#cluster.world.id;
      const world = await this.#cluster.regroup();
      this.#groups.delete(before);
      return this.#keep(world);
    },
    closeGroup: async ({ group }) => {
      this.#group(group).close();
      this.#groups.delete(group);
      return Promise.resolve(undefined);
    },
    forget: ({ segments }) => {
      for (const segment of segments) this.#forget(segment);
      return Promise.resolve(undefined);
    },
    costs: ({ group }) => Promise.resolve(costsOf(this.#group(group))),
    measureCosts: ({ group, options }) => measureCosts(this.#group(group), options),
    close: () => this.#leave(() => this.#cluster.close()),
    abort: ({ error }) => this.#leave(() => this.#cluster.abort(unpack(error))),
  };

  async #leave(how: () => Promise<void>): Promise<undefined> {
    try {
      await how();
    } finally {
      this.#ended = true;
    }
  }

  #forget(number: number): void {
    const segment = this.#regions.forget(number);
    if (segment) this.#cluster.transport.inPlace?.letGo?.(segment);
  }

  #keep(group: Group) {
    this.#groups.set(group.id, group);
    return viewOf(group);
  }

  #group(id: number): Group {
    const group = this.#groups.get(id);
    if (group) return group;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `group ${id} is not open in the communication thread, which knows ${[...this.#groups.keys()].join(', ')}; use the ids that it gave, and after a regroup that of the new world`,
      { group: id },
    );
  }

  #post(report: ThreadReport): void {
    this.#port.postMessage(report);
  }
}
