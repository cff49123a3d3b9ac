/**
 * The main thread's side of the checkpoint thread: starts it, puts questions to it, and knows when it is gone. It knows
 * nothing of what a checkpoint holds. Invariants: every question is answered or fails within its deadline; the thread
 * keeps the process alive only while a question is open.
 */
import type { Worker } from 'node:worker_threads';
import { InternalError, PeerError, startThread, UsageError } from '../../base/index.ts';
import type { Answer, QuestionName, Questions } from './checkpoint-thread.ts';

interface Open {
  readonly settle: (answer: Answer) => void;
  readonly reject: (error: Error) => void;
}

export class CheckpointLink {
  readonly #folder: string;
  readonly #timeoutMs: number;
  readonly #open = new Map<number, Open>();
  #worker: Worker | undefined;
  #nextId = 0;
  #closed = false;

  constructor(folder: string, timeoutMs: number) {
    this.#folder = folder;
    this.#timeoutMs = timeoutMs;
  }

  async ask<Name extends QuestionName>(
    name: Name,
    ask: Questions[Name]['ask'],
  ): Promise<Questions[Name]['answer']> {
    if (this.#closed) throw closed(this.#folder);
    const worker = (this.#worker ??= this.#start());
    const id = this.#nextId++;
    worker.ref();
    let timer: NodeJS.Timeout | undefined;
    try {
      return await new Promise<Questions[Name]['answer']>((resolve, reject) => {
        const settle = (answer: Answer) =>
          'failure' in answer ? reject(errorOf(answer.failure)) : resolve(answer.answer);
        this.#open.set(id, { settle, reject });
        timer = setTimeout(
          () => this.#giveUp(worker, late(name, this.#folder, this.#timeoutMs)),
          this.#timeoutMs,
        );
        worker.postMessage({ id, name, ask });
      });
    } finally {
      clearTimeout(timer);
      this.#open.delete(id);
      if (this.#open.size === 0) worker.unref();
    }
  }

  /** Ends the thread; what it was writing has no effect. */
  async close(): Promise<void> {
    this.#closed = true;
    const worker = this.#worker;
    if (worker === undefined) return;
    this.#worker = undefined;
    this.#rejectAll(closed(this.#folder));
    await worker.terminate();
  }

  #start(): Worker {
    const worker = startThread(new URL('./checkpoint-thread', import.meta.url), { folder: this.#folder });
    worker.on('message', (answer: Answer) => this.#open.get(answer.id)?.settle(answer));
    worker.on('error', (error) => this.#giveUp(worker, ended(this.#folder, error)));
    worker.on('exit', () => this.#giveUp(worker, ended(this.#folder, undefined)));
    return worker;
  }

  /** The next question gets a new thread. Not awaited: a thread may hang in a call of the system. */
  #giveUp(worker: Worker, why: Error): void {
    if (this.#worker !== worker) return;
    this.#worker = undefined;
    worker.unref();
    void worker.terminate();
    this.#rejectAll(why);
  }

  #rejectAll(why: Error): void {
    for (const { reject } of this.#open.values()) reject(why);
  }
}

function errorOf({ code, message, facts }: Extract<Answer, { failure: unknown }>['failure']): Error {
  if (code === undefined || code === 'BROKEN_INVARIANT') {
    return new InternalError(
      'BROKEN_INVARIANT',
      `The checkpoint thread failed: ${message}; please report it.`,
      facts,
    );
  }
  return new UsageError(code, message, facts);
}

function closed(folder: string): UsageError {
  return new UsageError('INVALID_ARGUMENT', `The checkpoints in ${folder} are closed; open them again.`, {
    folder,
  });
}

function late(what: string, folder: string, timeoutMs: number): PeerError {
  return new PeerError(
    'TIMEOUT',
    `Checkpoints in ${folder}: '${what}' was not done within ${timeoutMs} ms; check whether the file system hangs, or raise timeoutMs.`,
    { folder, what, timeoutMs },
  );
}

function ended(folder: string, cause: unknown): InternalError {
  const why = cause instanceof Error ? `: ${cause.message}` : ' without a word';
  return new InternalError(
    'BROKEN_INVARIANT',
    `The checkpoint thread of ${folder} ended${why}; earlier checkpoints are untouched; please report it.`,
    { folder },
    cause,
  );
}
