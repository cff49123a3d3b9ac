/**
 * The starter's side of a thread that takes commands: starts it, posts commands and rings, takes
 * reports, and knows when the thread is gone. It knows nothing of what commands mean. Invariants:
 * the thread keeps the process alive only while someone has a hold on it; whatever way the thread
 * ends, `ended` is called once and every request has an answer.
 */
import { existsSync, readlinkSync } from 'node:fs';
import { MessageChannel, receiveMessageOnPort } from 'node:worker_threads';
import type { MessagePort, Worker } from 'node:worker_threads';
import { InternalError, UsageError } from './errors.ts';
import type { TributaryError } from './errors.ts';
import { unpack } from './packed-error.ts';
import type { PackedError } from './packed-error.ts';
import { startThread } from './start-thread.ts';

/** How long the thread may take to end after it was told to, after which it is ended. */
const END_TIMEOUT_MS = 5000;

/** What is asked and answered once, by name. */
export type RequestTable<Names extends string | number | symbol = string> = {
  readonly [Name in Names]: { readonly ask: unknown; readonly answer: unknown };
};

/** What the link posts by itself, beside commands. */
export type LinkCommand<Requests extends RequestTable<keyof Requests>> = {
  [Name in keyof Requests]: {
    readonly kind: 'request';
    readonly what: Name;
    readonly id: number;
    readonly ask: Requests[Name]['ask'];
  };
}[keyof Requests];

/** What the link understands by itself. */
export type LinkReport =
  | { readonly kind: 'answer'; readonly id: number; readonly answer: unknown }
  | { readonly kind: 'refusal'; readonly id: number; readonly error: PackedError }
  /** The thread cannot go on; nothing follows. */
  | { readonly kind: 'died'; readonly error: PackedError };

export interface LinkOptions {
  /** The thread's module, without its ending. */
  readonly entry: URL;
  /** Given to the thread, with the `port` of its side. */
  readonly data: object;
  /** For messages: 'communication thread'. */
  readonly title: string;
  /** What follows from its end, and what to do, for the message of that. */
  readonly afterEnd: string;
  /** Commands were posted: wakes the thread where it may sleep. */
  readonly ring: () => void;
  /** Whether it runs, as far as the system says. */
  readonly isAlive: () => boolean;
}

export interface LinkListener<Report> {
  /** All but what the link itself understands. */
  report(report: Report): void;
  /** The thread is gone, or about to be; nothing more comes from it. */
  ended(why: TributaryError): void;
}

interface Question {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: Error) => void;
}

export class ThreadLink<
  Command extends { readonly kind: string },
  Report extends { readonly kind: string },
  Requests extends RequestTable<keyof Requests>,
> {
  readonly #options: LinkOptions;
  readonly #worker: Worker;
  readonly #port: MessagePort;
  readonly #listener: LinkListener<Report>;
  readonly #exited: Promise<void>;
  readonly #questions = new Map<number, Question>();
  #nextQuestion = 0;
  #holds = 0;
  #end: TributaryError | undefined;
  #closing = false;

  constructor(options: LinkOptions, listener: LinkListener<Report>) {
    this.#options = options;
    this.#listener = listener;
    const { port1, port2 } = new MessageChannel();
    this.#port = port1.on('message', (report: Report | LinkReport) => this.#take(report));
    this.#port.unref();
    this.#worker = startThread(options.entry, { ...options.data, port: port2 }, [port2]);
    this.#worker.on('error', (error) => this.#finish(this.#endedBy(error)));
    this.#exited = new Promise((resolve) => {
      this.#worker.once('exit', () => {
        this.#lookForTheEnd();
        resolve();
      });
    });
    this.#worker.unref();
  }

  /** Why nothing can be asked of the thread any more; undefined as long as it can. */
  get end(): TributaryError | undefined {
    return this.#end;
  }

  /** Requests that are not answered yet. */
  get unanswered(): number {
    return this.#questions.size;
  }

  post(command: Command | LinkCommand<Requests>): void {
    if (this.#end) throw this.#end;
    try {
      this.#port.postMessage(command);
    } catch (cause) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `an option cannot be sent to the ${this.#options.title}: ${(cause as Error).message}; give plain data`,
        { command: command.kind },
        cause,
      );
    }
    this.#options.ring();
  }

  /** Posted before this returns. */
  async request<Name extends keyof Requests>(
    what: Name,
    ask: Requests[Name]['ask'],
  ): Promise<Requests[Name]['answer']> {
    const id = this.#nextQuestion++;
    this.hold();
    try {
      return await new Promise<Requests[Name]['answer']>((resolve, reject) => {
        this.post({ kind: 'request', what, id, ask });
        this.#questions.set(id, { resolve: resolve, reject });
      });
    } finally {
      this.#questions.delete(id);
      this.release();
    }
  }

  /** Takes what the thread has reported, without the event loop, for a caller that blocks. */
  drain(): void {
    for (let next = receiveMessageOnPort(this.#port); next; next = receiveMessageOnPort(this.#port)) {
      this.#take(next.message as Report | LinkReport);
    }
  }

  /**
   * For a caller that blocks and so gets no events: finds out whether the thread is still there.
   */
  checkAlive(): void {
    if (!this.#end && !this.#options.isAlive()) this.#lookForTheEnd();
  }

  /** Keeps the process alive until the hold is released. */
  hold(): void {
    if (this.#holds++ === 0) this.#worker.ref();
  }

  release(): void {
    if (--this.#holds === 0) this.#worker.unref();
  }

  /** The thread was told to end: lets it; resolves when it is gone. */
  async ended(): Promise<void> {
    this.#closing = true;
    this.hold();
    const timer = setTimeout(() => void this.#worker.terminate(), END_TIMEOUT_MS);
    await this.#exited;
    clearTimeout(timer);
    this.#port.close();
  }

  #take(report: Report | LinkReport): void {
    if (!isOfLink(report)) return this.#listener.report(report);
    switch (report.kind) {
      case 'answer':
        return this.#ask(report.id)?.resolve(report.answer);
      case 'refusal':
        return this.#ask(report.id)?.reject(unpack(report.error));
      case 'died':
        return this.#finish(unpack(report.error));
    }
  }

  /** Answered from now on: what awaits it goes on later. */
  #ask(id: number): Question | undefined {
    const question = this.#questions.get(id);
    this.#questions.delete(id);
    return question;
  }

  /** The thread is gone; what it said last may tell why. */
  #lookForTheEnd(): void {
    this.drain();
    this.#finish(this.#closing ? this.#closed() : this.#endedBy(undefined));
  }

  #finish(why: TributaryError): void {
    if (this.#end) return;
    this.#end = why;
    for (const { reject } of this.#questions.values()) reject(why);
    this.#questions.clear();
    this.#listener.ended(why);
  }

  #endedBy(cause: unknown): InternalError {
    const { title, afterEnd } = this.#options;
    const why = cause instanceof Error ? `: ${cause.message}` : ' without a word';
    return new InternalError(
      'BROKEN_INVARIANT',
      `the ${title} of process ${process.pid} ended${why}; ${afterEnd}, and please report it`,
      { pid: process.pid },
      cause,
    );
  }

  #closed(): UsageError {
    return new UsageError('INVALID_ARGUMENT', `the ${this.#options.title} is closed; start a new one`);
  }
}

/** The system's number of the calling thread; 0 where that cannot be found out. */
export function systemThreadId(): number {
  try {
    const link = readlinkSync('/proc/thread-self');
    return Number(link.slice(link.lastIndexOf('/') + 1));
  } catch {
    // Not Linux: its end is only learnt by the event of the worker.
    return 0;
  }
}

/**
 * Of this process, as far as the system says; true also for a caller that is blocked and gets no
 * events.
 */
export function isThreadAlive(id: number): boolean {
  return id === 0 || existsSync(`/proc/self/task/${id}`);
}

function isOfLink(report: { readonly kind: string }): report is LinkReport {
  return report.kind === 'answer' || report.kind === 'refusal' || report.kind === 'died';
}
