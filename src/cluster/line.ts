/**
 * The main thread's end of the line to the scheduler (line-thread.ts): dials, sends and receives checked messages. It
 * knows nothing of membership. Invariant: the thread keeps the process alive only while someone has a hold on the line,
 * and messages of an earlier connection are never taken for those of the current one.
 */
import type { Worker } from 'node:worker_threads';
import { startThread } from '../base/index.ts';
import { ProtocolFault } from './frames.ts';
import type { Dialed, LineCommand, LineReport, LineTarget, LineThreadData } from './line-messages.ts';
import type { LivenessView } from './liveness-view.ts';
import { readSchedulerMessage } from './messages.ts';
import type { MemberMessage, SchedulerMessage } from './messages.ts';

/** How long the thread may take to end by itself, after which it is ended. */
const END_TIMEOUT_MS = 2000;

/** The connection is no more; the message says why. */
export class LineClosed extends Error {
  override readonly name = 'LineClosed';
}

export interface LineListener {
  message(message: SchedulerMessage): void;
  closed(reason: Error): void;
}

export class Line {
  readonly #worker: Worker;
  readonly #exited: Promise<void>;
  #dials = 0;
  /** Whether the scheduler has proved that it knows the secret. */
  #trusted = false;
  #holds = 0;
  #ended = false;
  #queue: SchedulerMessage[] = [];
  #closed: Error | undefined = new LineClosed('not connected');
  #dialed: Dialed | undefined;
  #listener: LineListener | undefined;
  /** Wakes whoever waits for a message or for the connection. */
  #wake: (() => void) | undefined;

  constructor(liveness: LivenessView) {
    const workerData: LineThreadData = { liveness: liveness.buffer };
    this.#worker = startThread(new URL('./line-thread', import.meta.url), workerData);
    this.#exited = new Promise((resolve) => this.#worker.once('exit', () => resolve()));
    this.#worker.on('message', (report: LineReport) => this.#take(report));
    this.#worker.on('error', (error) =>
      this.#close(error instanceof Error ? error : new Error(String(error))),
    );
    this.#worker.once('exit', () => this.#close(new LineClosed('the thread of the connection ended')));
    this.#worker.unref();
  }

  /** Keeps the process alive until the hold is released. */
  hold(): void {
    if (this.#holds++ === 0) this.#worker.ref();
  }

  release(): void {
    if (--this.#holds === 0) this.#worker.unref();
  }

  /** Connects. A connection that was there before is dropped. */
  async dial(target: LineTarget): Promise<Dialed> {
    if (!this.#closed) this.#post({ drop: true });
    this.#dials++;
    this.#queue = [];
    this.#closed = undefined;
    this.#dialed = undefined;
    this.#trusted = false;
    this.#post({ dial: target });
    for (;;) {
      if (this.#dialed !== undefined) return this.#dialed;
      await this.#change();
    }
  }

  send(message: MemberMessage): void {
    this.#post({ send: message });
  }

  /** The scheduler has proved itself: believes its news, sends heartbeats, and loses it when it is silent for so long. */
  trust(heartbeatMs: number, lostAfterMs: number): void {
    this.#trusted = true;
    this.#post({ beat: { heartbeatMs, lostAfterMs } });
  }

  /** The next message; only before `listen`, and by one caller at a time. */
  async next(): Promise<SchedulerMessage> {
    for (;;) {
      const message = this.#queue.shift();
      if (message) return message;
      await this.#change();
    }
  }

  /** Hands over everything from here on, what has come already included. */
  listen(listener: LineListener): void {
    this.#listener = listener;
    for (const message of this.#queue.splice(0)) listener.message(message);
    if (this.#closed) listener.closed(this.#closed);
  }

  /** Sends what was given, then closes; resolves when the thread is gone. */
  async end(): Promise<void> {
    if (!this.#ended) {
      this.#ended = true;
      this.#post({ end: true });
    }
    this.hold();
    const timer = setTimeout(() => void this.#worker.terminate(), END_TIMEOUT_MS);
    await this.#exited;
    clearTimeout(timer);
  }

  /** Closes without a word; resolves when the thread is gone. */
  async abort(): Promise<void> {
    this.#ended = true;
    await this.#worker.terminate();
  }

  #post(command: LineCommand): void {
    this.#worker.postMessage(command);
  }

  /** Resolves when something has come; rejects when nothing can come any more. */
  async #change(): Promise<void> {
    if (!this.#closed) await new Promise<void>((resolve) => (this.#wake = resolve));
    if (this.#closed && this.#queue.length === 0) throw this.#closed;
  }

  #take(report: LineReport): void {
    if (report.dial !== this.#dials || this.#closed) return;
    if ('closed' in report) return this.#close(new LineClosed(report.closed));
    if ('connected' in report) {
      this.#dialed = report.connected;
    } else {
      const message = this.#read(report.frame);
      if (!message) return;
      if (this.#listener) this.#listener.message(message);
      else this.#queue.push(message);
    }
    this.#wake?.();
  }

  #read(frame: unknown): SchedulerMessage | undefined {
    try {
      return readSchedulerMessage(frame, this.#trusted);
    } catch (error) {
      if (!(error instanceof ProtocolFault)) throw error;
      this.#post({ drop: true });
      this.#close(error);
      return undefined;
    }
  }

  #close(reason: Error): void {
    if (this.#closed) return;
    this.#closed = reason;
    this.#listener?.closed(reason);
    this.#wake?.();
  }
}
