/**
 * A machine whose servers run in the test's own thread, so that it can be given faulty files: core loops are turned by the
 * event loop and never sleep, checkpoints are written at once. Sockets are real. Invariant: after `stop` nothing turns.
 */
import { Kernels } from '../../../src/kernels/index.ts';
import { SharedSpace } from '../../../src/memory/index.ts';
import type { WasmMemory } from '../../../src/memory/index.ts';
import type { Files } from '../../../src/base/index.ts';
import { CoreLoop } from '../../../src/server/cores/core-loop.ts';
import type { CoreOptions } from '../../../src/server/cores/core-loop.ts';
import { Office } from '../../../src/server/cores/office.ts';
import type { ToCore, ToOffice } from '../../../src/server/cores/office.ts';
import { CheckpointDesk } from '../../../src/server/durability/checkpoint-desk.ts';
import type {
  Answer,
  CheckpointThreadData,
  Question,
} from '../../../src/server/durability/checkpoint-desk.ts';
import { systemServerHost } from '../../../src/server/server-host.ts';
import type { ServerHost, ThreadLine } from '../../../src/server/server-host.ts';
import type { Libc } from '../../../src/sockets/index.ts';

export class OneThreadHost implements ServerHost {
  /** It stands still, so that no tenant's turn is over before all that has come was read, however busy the machine is. */
  readonly clock = { ...systemServerHost.clock, nowMs: () => 0 };
  readonly randomHex = systemServerHost.randomHex;
  readonly files: Files;
  readonly libc: Libc;
  #isStopped = false;

  constructor(files: Files) {
    this.files = files;
    const libc = systemServerHost.libc;
    this.libc = { ...libc, poll: (address, count) => libc.poll(address, count, 0) };
  }

  /** As if the process had ended: nothing of it does anything any more. */
  stop(): void {
    this.#isStopped = true;
  }

  startCore(memory: WasmMemory, options: CoreOptions): ThreadLine<ToOffice, ToCore> {
    const inbox: ToCore[] = [];
    let hear: (message: ToOffice) => void = () => undefined;
    const office = new Office({
      post: (message) => setImmediate(() => !this.#isStopped && hear(message)),
      take: () => inbox.shift(),
    });
    const kernels = Kernels.create(SharedSpace.fromMemory(memory));
    const loop = new CoreLoop(kernels, office, options, this);
    const turn = (): void => {
      if (this.#isStopped) return;
      loop.sleep();
      if (loop.act()) setImmediate(turn);
      else office.ended(null);
    };
    setImmediate(turn);
    return {
      post: (message) => void inbox.push(message),
      onMessage: (take) => void (hear = take),
      onEnd: () => undefined,
      ref: () => undefined,
      unref: () => undefined,
      terminate: () => Promise.resolve(),
    };
  }

  startCheckpoints(data: CheckpointThreadData): ThreadLine<Answer, Question> {
    const desk = new CheckpointDesk(this, data);
    let hear: (answer: Answer) => void = () => undefined;
    return {
      post: (question) =>
        setImmediate(() => {
          if (!this.#isStopped) desk.take(question, (answer) => hear(answer));
        }),
      onMessage: (take) => void (hear = take),
      onEnd: () => undefined,
      ref: () => undefined,
      unref: () => undefined,
      terminate: () => Promise.resolve(),
    };
  }
}
