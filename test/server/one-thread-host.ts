/**
 * A machine whose servers run in the test's own thread, on real sockets: cores are turned by the event loop, checkpoints are
 * written at once. So a test can give it faulty files, and what a core does in which turn is the same every time.
 * Invariant: a turn never sleeps.
 */
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import type { LockableFiles, WasmMemory } from '../../src/memory/index.ts';
import type { Clock } from '../../src/base/index.ts';
import { CoreLoop } from '../../src/server/cores/core-loop.ts';
import type { CoreOptions } from '../../src/server/cores/core-loop.ts';
import { Office } from '../../src/server/cores/office.ts';
import type { ToCore, ToOffice } from '../../src/server/cores/office.ts';
import { CheckpointDesk } from '../../src/server/durability/checkpoint-desk.ts';
import type { Answer, CheckpointThreadData, Question } from '../../src/server/durability/checkpoint-desk.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import type { ServerHost, ThreadLine } from '../../src/server/server-host.ts';
import type { Libc } from '../../src/sockets/index.ts';

/** What a test sets and sees of such a machine. */
export interface Watched {
  /** What its clock shows. */
  nowMs: number;
  /** Bytes of headers and small messages that it has received. */
  receivedBytes: number;
}

export interface OneThreadHostOptions {
  /** Default: the files of this machine. */
  readonly files?: LockableFiles | undefined;
  /**
   * What passes whenever somebody looks at the clock, as if work had been done in between, in milliseconds. Default 0: no
   * tenant's turn is over before all that has come was read, however busy the machine is.
   */
  readonly lookMs?: number | undefined;
  /** Default: nothing is watched, and the clock begins at 0. */
  readonly watched?: Watched | undefined;
  /** Called with each message that a core takes over from its server. Default: nothing is called. */
  readonly onTake?: ((message: ToCore) => void) | undefined;
}

export class OneThreadHost implements ServerHost {
  readonly clock: Clock;
  readonly randomHex = systemServerHost.randomHex;
  readonly files: LockableFiles;
  readonly libc: Libc;
  readonly #onTake: OneThreadHostOptions['onTake'];

  constructor(options: OneThreadHostOptions = {}) {
    const { lookMs = 0, watched = { nowMs: 0, receivedBytes: 0 } } = options;
    this.#onTake = options.onTake;
    this.files = options.files ?? systemServerHost.files;
    this.clock = { ...systemServerHost.clock, nowMs: () => (watched.nowMs += lookMs) };
    const libc = systemServerHost.libc;
    this.libc = {
      ...libc,
      poll: (address, count) => libc.poll(address, count, 0),
      receiveBytes(fd, into) {
        const got = libc.receiveBytes(fd, into);
        watched.receivedBytes += Math.max(0, got);
        return got;
      },
    };
  }

  startCore(memory: WasmMemory, options: CoreOptions): ThreadLine<ToOffice, ToCore> {
    const inbox: ToCore[] = [];
    let hear: (message: ToOffice) => void = () => undefined;
    let end: (error: unknown) => void = () => undefined;
    const office = new Office({
      post: (message) => void setImmediate(() => hear(message)),
      take: () => {
        const message = inbox.shift();
        if (message) this.#onTake?.(message);
        return message;
      },
    });
    const kernels = Kernels.create(SharedSpace.fromMemory(memory));
    const loop = new CoreLoop(kernels, office, options, this);
    const turn = (): void => {
      loop.sleep();
      if (loop.act()) return void setImmediate(turn);
      office.ended(null);
      setImmediate(() => end(undefined));
    };
    setImmediate(turn);
    return {
      post: (message) => void inbox.push(message),
      onMessage: (take) => void (hear = take),
      onEnd: (take) => void (end = take),
      ...alwaysThere,
    };
  }

  startCheckpoints(data: CheckpointThreadData): ThreadLine<Answer, Question> {
    const desk = new CheckpointDesk(this, data);
    let hear: (answer: Answer) => void = () => undefined;
    return {
      post: (question) => void setImmediate(() => desk.take(question, (answer) => hear(answer))),
      onMessage: (take) => void (hear = take),
      onEnd: () => undefined,
      ...alwaysThere,
    };
  }
}

const alwaysThere = {
  ref: () => undefined,
  unref: () => undefined,
  terminate: () => Promise.resolve(),
};
