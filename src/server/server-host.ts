/**
 * The machine of a parameter server: what any process has, and the threads that a server starts. The cores and the writer of
 * checkpoints are reached by lines only, so that a simulation can run them without threads. Invariant: `onEnd` is called
 * once for a thread that ends, in whatever way.
 */
import { MessageChannel } from 'node:worker_threads';
import type { Worker } from 'node:worker_threads';
import { startThread } from '../base/index.ts';
import { systemHost } from '../sockets/index.ts';
import type { Host } from '../sockets/index.ts';
import type { WasmMemory } from '../memory/index.ts';
import type { CoreOptions } from './cores/core-loop.ts';
import type { CoreThreadData } from './cores/core-thread.ts';
import type { ToCore, ToOffice } from './cores/office.ts';
import type { Answer, CheckpointThreadData, Question } from './durability/checkpoint-desk.ts';

/** A thread as the one who started it sees it. It keeps the process alive only while `ref` holds. */
export interface ThreadLine<Heard, Said> {
  post(message: Said): void;
  onMessage(take: (message: Heard) => void): void;
  /** `error`: why it ended without being asked to; undefined if no reason is known. */
  onEnd(take: (error: unknown) => void): void;
  ref(): void;
  unref(): void;
  terminate(): Promise<void>;
}

export interface ServerHost extends Host {
  /** `rulesPath`: of the module with users' rules. Default: there is none. */
  startCore(
    memory: WasmMemory,
    options: Omit<CoreOptions, 'rules'>,
    rulesPath?: string,
  ): ThreadLine<ToOffice, ToCore>;
  startCheckpoints(data: CheckpointThreadData): ThreadLine<Answer, Question>;
}

export const systemServerHost: ServerHost = {
  clock: systemHost.clock,
  files: systemHost.files,
  randomHex: systemHost.randomHex,
  get libc() {
    return systemHost.libc;
  },
  startCore(memory, options, rulesPath) {
    // A core blocks in the kernel, so it takes its messages itself, from a port of its own.
    const { port1, port2 } = new MessageChannel();
    const data: CoreThreadData = { port: port2, memory, options, rulesPath };
    const worker = startThread(new URL('./cores/core-thread', import.meta.url), data, [port2]);
    worker.unref();
    port1.unref();
    return {
      post: (message) => port1.postMessage(message),
      onMessage(take) {
        port1.on('message', take);
        port1.unref();
      },
      onEnd: (take) => onEnd(worker, take),
      ref() {
        // The port of a thread that dies is closed before its end is heard of.
        worker.ref();
        port1.ref();
      },
      unref() {
        worker.unref();
        port1.unref();
      },
      async terminate() {
        await worker.terminate();
        port1.close();
      },
    };
  },
  startCheckpoints(data) {
    const worker = startThread(new URL('./durability/checkpoint-thread', import.meta.url), data);
    worker.unref();
    return {
      post: (message) => worker.postMessage(message),
      onMessage(take) {
        worker.on('message', take);
        worker.unref();
      },
      onEnd: (take) => onEnd(worker, take),
      ref: () => worker.ref(),
      unref: () => worker.unref(),
      async terminate() {
        await worker.terminate();
      },
    };
  },
};

function onEnd(worker: Worker, take: (error: unknown) => void): void {
  let hasEnded = false;
  const end = (error: unknown) => {
    if (!hasEnded) take(error);
    hasEnded = true;
  };
  worker.on('error', end);
  worker.on('exit', () => end(undefined));
}
