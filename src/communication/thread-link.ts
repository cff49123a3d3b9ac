/**
 * The caller's connection to its communication thread: starts the worker, posts commands, takes reports, and knows when
 * the thread is gone. It knows nothing of collectives. Invariants: the thread keeps the process alive only while someone
 * has a hold on it; whatever way the thread ends, `onEnd` is called once and every request has an answer.
 */
import { MessageChannel, receiveMessageOnPort } from 'node:worker_threads';
import type { MessagePort, Worker } from 'node:worker_threads';
import { InternalError, startThread, UsageError, unpack } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import type { WasmMemory } from '../memory/index.ts';
import type { Command, Report, RequestName, Requests, ThreadData } from './messages.ts';
import type { PlainOptions } from './options.ts';
import { SharedWords } from './shared-words.ts';

/** How long the thread may take to end after it has left the cluster, after which it is ended. */
const END_TIMEOUT_MS = 5000;

export interface LinkListener {
  /** All but what the link itself understands. */
  report(report: Exclude<Report, { kind: 'answer' | 'refusal' | 'died' }>): void;
  /** The thread is gone, or about to be; nothing more comes from it. */
  ended(why: TributaryError): void;
}

interface Question {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: Error) => void;
}

export class ThreadLink {
  readonly words = new SharedWords();
  readonly #worker: Worker;
  readonly #port: MessagePort;
  readonly #listener: LinkListener;
  readonly #exited: Promise<void>;
  readonly #questions = new Map<number, Question>();
  #nextQuestion = 0;
  #holds = 0;
  #end: TributaryError | undefined;
  #closing = false;

  constructor(memory: WasmMemory, join: PlainOptions, listener: LinkListener) {
    this.#listener = listener;
    const { port1, port2 } = new MessageChannel();
    const data: ThreadData = { port: port2, words: this.words.buffer, memory, join };
    this.#port = port1.on('message', (report: Report) => this.#take(report));
    this.#port.unref();
    this.#worker = startThread(new URL('./thread-main', import.meta.url), data, [port2]);
    this.#worker.on('error', (error) => this.#finish(endedBy(error)));
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

  post(command: Command): void {
    if (this.#end) throw this.#end;
    try {
      this.#port.postMessage(command);
    } catch (cause) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `an option cannot be sent to the communication thread: ${(cause as Error).message}; give plain data`,
        { command: command.kind },
        cause,
      );
    }
    this.words.ring();
  }

  async request<Name extends RequestName>(
    what: Name,
    ask: Requests[Name]['ask'],
  ): Promise<Requests[Name]['answer']> {
    const id = this.#nextQuestion++;
    this.hold();
    try {
      return await new Promise<Requests[Name]['answer']>((resolve, reject) => {
        this.post({ kind: 'request', what, id, ask });
        this.#questions.set(id, { resolve: resolve as Question['resolve'], reject });
      });
    } finally {
      this.#questions.delete(id);
      this.release();
    }
  }

  /** Takes what the thread has reported, without the event loop, for a caller that blocks. */
  drain(): void {
    for (let next = receiveMessageOnPort(this.#port); next; next = receiveMessageOnPort(this.#port)) {
      this.#take(next.message as Report);
    }
  }

  /** For a caller that blocks and so gets no events: finds out whether the thread is still there. */
  checkAlive(): void {
    if (!this.#end && !this.words.isThreadAlive) this.#lookForTheEnd();
  }

  /** Keeps the process alive until the hold is released. */
  hold(): void {
    if (this.#holds++ === 0) this.#worker.ref();
  }

  release(): void {
    if (--this.#holds === 0) this.#worker.unref();
  }

  /** The caller has closed or aborted the cluster: lets the thread end; resolves when it is gone. */
  async ended(): Promise<void> {
    this.#closing = true;
    this.hold();
    const timer = setTimeout(() => void this.#worker.terminate(), END_TIMEOUT_MS);
    await this.#exited;
    clearTimeout(timer);
    this.#port.close();
  }

  #take(report: Report): void {
    switch (report.kind) {
      case 'answer':
        return this.#questions.get(report.id)?.resolve(report.answer);
      case 'refusal':
        return this.#questions.get(report.id)?.reject(unpack(report.error));
      case 'died':
        return this.#finish(unpack(report.error));
      default:
        return this.#listener.report(report);
    }
  }

  /** The thread is gone; what it said last may tell why. */
  #lookForTheEnd(): void {
    this.drain();
    this.#finish(this.#closing ? closed() : endedBy(undefined));
  }

  #finish(why: TributaryError): void {
    if (this.#end) return;
    this.#end = why;
    for (const { reject } of this.#questions.values()) reject(why);
    this.#listener.ended(why);
  }
}

function endedBy(cause: unknown): InternalError {
  const why = cause instanceof Error ? `: ${cause.message}` : ' without a word';
  return new InternalError(
    'BROKEN_INVARIANT',
    `the communication thread of process ${process.pid} ended${why}; this process has left the cluster: start a new thread, and please report it`,
    { pid: process.pid },
    cause,
  );
}

function closed(): UsageError {
  return new UsageError('INVALID_ARGUMENT', 'the communication thread is closed; start a new one');
}
