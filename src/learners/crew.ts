/**
 * The processes of a run: starts them, notices which are dead or no longer move, takes from the dead what they held and starts
 * others in their place. Knows nothing of epochs and checkpoints. Invariants: what a process held is taken from it only
 * once it is surely dead; time in which nobody looked is not held against a process.
 */
import { PeerError } from '../base/index.ts';
import type { ErrorCode } from '../base/index.ts';
import type { ScriptCommand } from '../launcher/index.ts';
import { SERVER } from './board.ts';
import type { Identity, Reclaimed } from './board.ts';
import { LearnerChild } from './learner-child.ts';
import type { LearnerEnd } from './learner-child.ts';
import type { LearnerMemory } from './learner-memory.ts';
import type { LearnerAssignment } from './learn.ts';
import type { Processes, TrainEvent } from './train-options.ts';

export interface CrewOptions {
  readonly memory: LearnerMemory;
  readonly learners: number;
  readonly hasServer: boolean;
  /** Processes started in place of dead ones, at most, until all are started again. */
  readonly maxReplacements: number;
  /** See `TrainOptions`. */
  readonly stallMs: number;
  readonly startMs: number;
  readonly assign: (self: Identity) => LearnerAssignment;
  /** Of the script. Default: that of this process. */
  readonly command?: ScriptCommand | undefined;
  readonly onLost: (event: Extract<TrainEvent, { readonly type: 'learner-lost' }>) => void;
}

/** Why those that are left cannot finish. */
export interface Collapse {
  readonly code: ErrorCode;
  readonly why: string;
  /** Why the system did not start the last process, if it is that. */
  readonly cause?: Error | undefined;
}

/** What a process was last seen to have done, and when. */
interface Seen {
  readonly done: number;
  readonly isReady: boolean;
  readonly atMs: number;
  /** Looks since then, each half of `stallMs` after the other, at all of which it had work in hand. */
  readonly strikes: number;
}

/** From the first of them to the last is `stallMs`. */
const MOST_STRIKES = 3;
/** Between two looks no more than this counts: an evaluation or a machine that slept is not the learners' fault. */
const MOST_BETWEEN_LOOKS_MS = 100;
/** For the batch that is under way. */
const STOP_MS = 10_000;

export class Crew {
  readonly #options: CrewOptions;
  /** By number; the dead stay until somebody takes their place. */
  readonly #children = new Map<number, LearnerChild>();
  readonly #seen = new Map<number, Seen>();
  /** Those of the dead who hold nothing any more. */
  readonly #reclaimed = new Set<LearnerChild>();
  /** Over the whole run. */
  replacements = 0;
  #replacementsLeft = 0;
  /** Time in which somebody looked. */
  #watchedMs = 0;
  #lookedMs = performance.now();
  /** Batches of all processes together, and since when there are no more of them. */
  #moved = { done: 0, atMs: 0 };

  constructor(options: CrewOptions) {
    this.#options = options;
  }

  get processes(): Processes {
    return {
      learners: this.#learners().flatMap(({ pid }) => pid ?? []),
      server: this.#children.get(SERVER)?.pid,
    };
  }

  /** Learners that have begun to train. */
  get ready(): number {
    return this.#learners().filter(({ isReady, end }) => isReady && !end).length;
  }

  /** All of them, also again after `kill`; none of the earlier processes is mistaken for a new one. */
  start(): void {
    const { learners, hasServer, maxReplacements } = this.#options;
    this.#replacementsLeft = maxReplacements;
    for (let number = 0; number < learners; number++) this.#startNext(number);
    if (hasServer) this.#startNext(SERVER);
  }

  /** To be called often. Throws what a process ended with by itself; says if those that are left cannot finish. */
  look(): Collapse | undefined {
    const nowMs = performance.now();
    this.#watchedMs += Math.min(nowMs - this.#lookedMs, MOST_BETWEEN_LOOKS_MS);
    this.#lookedMs = nowMs;
    for (const child of [...this.#children.values()]) {
      if (child.end) this.#lose(child);
      else if (this.#isStalled(child)) child.kill();
    }
    return this.#collapse();
  }

  /** All end after the batch that they are at; who does not is killed. */
  async stop(): Promise<void> {
    this.#options.memory.stop();
    const timer = setTimeout(() => this.#killAll(), STOP_MS);
    await this.#allEnded();
    clearTimeout(timer);
  }

  /** All end at once. */
  async kill(): Promise<void> {
    this.#killAll();
    await this.#allEnded();
  }

  #killAll(): void {
    for (const child of this.#children.values()) if (!child.end) child.kill();
  }

  async #allEnded(): Promise<void> {
    const children = [...this.#children.values()];
    await Promise.all(children.map(({ ended }) => ended));
    for (const child of children) if (!this.#reclaimed.has(child)) this.#reclaim(child);
  }

  #learners(): LearnerChild[] {
    return [...this.#children.values()].filter(({ self }) => self.number !== SERVER);
  }

  #startNext(number: number): LearnerChild {
    const generation = (this.#children.get(number)?.self.generation ?? -1) + 1;
    const { assign, command } = this.#options;
    const child = new LearnerChild(assign({ number, generation }), command);
    this.#children.set(number, child);
    this.#seen.set(number, this.#see(child, 0));
    return child;
  }

  #see({ self, isReady }: LearnerChild, strikes: number): Seen {
    const { batches: done } = this.#options.memory.workOf(self.number);
    return { done, isReady, atMs: this.#watchedMs, strikes };
  }

  /** One without work in hand waits for others; one that is starting has a limit of its own. */
  #isStalled(child: LearnerChild): boolean {
    const { memory, stallMs, startMs } = this.#options;
    const { number } = child.self;
    const before = this.#seen.get(number)!;
    const now = this.#see(child, 0);
    if (now.done !== before.done || now.isReady !== before.isReady) {
      this.#seen.set(number, now);
      return false;
    }
    const sinceMs = now.atMs - before.atMs;
    if (!now.isReady) return sinceMs > startMs;
    if (sinceMs <= stallMs / (MOST_STRIKES - 1)) return false;
    const strikes = memory.board.isAtWork(child.self) ? before.strikes + 1 : 0;
    this.#seen.set(number, { ...now, strikes });
    return strikes >= MOST_STRIKES;
  }

  #lose(child: LearnerChild): void {
    const { self, pid, end } = child;
    const { error } = end!;
    if (error) throw error;
    if (!end!.hasCome && end!.code !== null) throw notCome(child, end!);
    if (this.#reclaimed.has(child)) return;
    const { returned, torn } = this.#reclaim(child);
    this.#options.memory.ring();
    const isReplaced = this.#replacementsLeft > 0;
    const replacement = isReplaced ? this.#startNext(self.number) : undefined;
    this.#replacementsLeft -= Number(isReplaced);
    this.replacements += Number(isReplaced);
    this.#options.onLost({
      ...{ type: 'learner-lost', pid, returned, torn },
      learner: self.number === SERVER ? undefined : self.number,
      how: howEnded(end!),
      replacement: replacement?.pid,
    });
  }

  #reclaim(child: LearnerChild): Reclaimed {
    const { memory } = this.#options;
    this.#reclaimed.add(child);
    memory.releaseLocks(child.self);
    return memory.board.reclaim(child.self);
  }

  #collapse(): Collapse | undefined {
    const isGone = ({ end }: LearnerChild) => end !== undefined;
    const after = `after ${this.replacements} replacement(s)`;
    const server = this.#children.get(SERVER);
    const died = (who: string, dead: readonly LearnerChild[]): Collapse => {
      const unstarted = dead.findLast(({ end }) => end?.cause)?.end;
      const how = unstarted ? `; the last one ${howEnded(unstarted)}` : '';
      return { code: 'PEER_LOST', why: `${who} died, ${after}${how}`, cause: unstarted?.cause };
    };
    if (server && isGone(server)) return died('the server has', [server]);
    if (this.#learners().every(isGone)) return died('all learners have', this.#learners());

    const { stallMs, memory } = this.#options;
    const children = [...this.#children.values()];
    const done = children.reduce((sum, { self }) => sum + memory.workOf(self.number).batches, 0);
    const isStarting = children.some(({ isReady, end }) => !isReady && !end);
    if (isStarting || done !== this.#moved.done) this.#moved = { done, atMs: this.#watchedMs };
    const sinceMs = this.#watchedMs - this.#moved.atMs;
    if (sinceMs <= 2 * stallMs) return undefined;
    const { heldLocks } = memory;
    const held = heldLocks === '' ? '' : ` (${heldLocks})`;
    return {
      code: 'TIMEOUT',
      why: `no learner has finished anything for ${Math.round(sinceMs)} ms${held}, ${after}`,
    };
  }
}

/** It would end so each time. */
function notCome({ self, pid }: LearnerChild, { code, lastWords }: LearnerEnd): PeerError {
  const who = self.number === SERVER ? 'the server' : `learner ${self.number}`;
  return new PeerError(
    'PEER_EXITED',
    `${who} (process ${pid}), which runs this script from its beginning, ended with code ${code} before it came to the call that trains${lastWords}. Let every process come to the same call.`,
    { learner: self.number === SERVER ? undefined : self.number, pid, code },
  );
}

/** Follows the name of the process. */
function howEnded({ code, signal, cause }: LearnerEnd): string {
  if (cause) {
    return `could not be started (${cause.message}); raise the user's limits of processes and open files (ulimit -u, ulimit -n), or use fewer learners`;
  }
  return signal === null ? `ended with code ${code}` : `was ended by ${signal}`;
}
