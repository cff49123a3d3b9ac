/**
 * The main thread's side of the checkpoint thread: starts it, puts questions to it, and knows when it is gone. It knows
 * nothing of what a checkpoint holds. Invariants: every question is answered or fails within its deadline; the thread
 * keeps the process alive only while a question is open; once a thread was lost, only the holder of the folder's lock
 * asks again.
 */
import { InternalError, PeerError, unpack, UsageError } from '../../base/index.ts';
import type { ServerHost, ThreadLine } from '../server-host.ts';
import type { Answer, Question, QuestionName, Questions } from './checkpoint-desk.ts';

type Line = ThreadLine<Answer, Question>;

interface Open {
  readonly settle: (answer: Answer) => void;
  readonly reject: (error: Error) => void;
}

export class CheckpointLink {
  readonly #host: ServerHost;
  readonly #folder: string;
  readonly #timeoutMs: number;
  readonly #open = new Map<number, Open>();
  #worker: Line | undefined;
  #nextId = 0;
  /** How many threads it has had. */
  #started = 0;
  #closed = false;

  constructor(host: ServerHost, folder: string, timeoutMs: number) {
    this.#host = host;
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
    let callOff = (): void => undefined;
    try {
      return await new Promise<Questions[Name]['answer']>((resolve, reject) => {
        const settle = (answer: Answer) =>
          'failure' in answer ? reject(unpack(answer.failure)) : resolve(answer.answer);
        this.#open.set(id, { settle, reject });
        callOff = this.#host.clock.after(this.#timeoutMs, () =>
          this.#giveUp(worker, late(name, this.#folder, this.#timeoutMs)),
        );
        worker.post({ id, name, ask } as Question);
      });
    } finally {
      callOff();
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

  #start(): Line {
    const isSuccessor = this.#started++ > 0;
    const worker = this.#host.startCheckpoints({ folder: this.#folder, isSuccessor });
    worker.onMessage((answer) => this.#open.get(answer.id)?.settle(answer));
    worker.onEnd((error) => this.#giveUp(worker, ended(this.#folder, error)));
    return worker;
  }

  /**
   * The next question gets a new thread. Not awaited: a thread may hang in a call of the system. When that returns it runs
   * none of its code any more; what the call itself still does is the business of the next thread.
   */
  #giveUp(worker: Line, why: Error): void {
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
