/**
 * A server whose cores run in the test's own thread, turn by turn, on real sockets but by a clock of the test: what a core does
 * in which turn is then the same every time. Invariant: a turn never sleeps.
 */
import type { Files } from '../../src/base/index.ts';
import { Kernels } from '../../src/kernels/index.ts';
import { SharedSpace } from '../../src/memory/index.ts';
import { CoreLoop } from '../../src/server/cores/core-loop.ts';
import { Office } from '../../src/server/cores/office.ts';
import type { ToCore, ToOffice } from '../../src/server/cores/office.ts';
import { systemServerHost } from '../../src/server/server-host.ts';
import type { ServerHost, ThreadLine } from '../../src/server/server-host.ts';
import type { Libc } from '../../src/sockets/index.ts';

/** What a test sets and sees of such a server. */
export interface Watched {
  /** What its clock shows. */
  nowMs: number;
  /** Bytes of headers and small messages that it has received. */
  receivedBytes: number;
}

/** `lookMs`: what passes whenever somebody looks at the clock, as if work had been done in between. */
export function oneThreadHost(
  lookMs: number,
  watched: Watched = { nowMs: 0, receivedBytes: 0 },
  files: Files = systemServerHost.files,
): ServerHost {
  const clock = { ...systemServerHost.clock, nowMs: () => (watched.nowMs += lookMs) };
  const { libc: system, randomHex } = systemServerHost;
  const libc: Libc = {
    ...system,
    receiveBytes(fd, into) {
      const got = system.receiveBytes(fd, into);
      watched.receivedBytes += Math.max(0, got);
      return got;
    },
  };
  return {
    ...{ clock, libc, files, randomHex },
    startCheckpoints: (data) => systemServerHost.startCheckpoints(data),
    startCore(memory, options): ThreadLine<ToOffice, ToCore> {
      const toCore: ToCore[] = [];
      let hear: (message: ToOffice) => void = () => undefined;
      let end: (error: unknown) => void = () => undefined;
      const office = new Office({
        post: (message) => void setImmediate(() => hear(message)),
        take: () => toCore.shift(),
      });
      const kernels = Kernels.create(SharedSpace.fromMemory(memory));
      const loop = new CoreLoop(kernels, office, options, { clock, libc, files, randomHex });
      const turn = () => {
        libc.ring(options.doorbell);
        loop.sleep();
        if (loop.act()) return void setImmediate(turn);
        office.ended(null);
        setImmediate(() => end(undefined));
      };
      setImmediate(turn);
      return {
        post: (message) => void toCore.push(message),
        onMessage: (take) => void (hear = take),
        onEnd: (take) => void (end = take),
        ...{ ref: () => undefined, unref: () => undefined, terminate: () => Promise.resolve() },
      };
    },
  };
}
