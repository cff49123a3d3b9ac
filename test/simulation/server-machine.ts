/**
 * The simulated machine of a parameter server: its disk, its process, and the threads of that process, which run the real
 * `ParameterServer`, `CoreLoop` and `CheckpointDesk`. It can be killed, stopped, lose its power, and be started again with the
 * same disk. Invariant: messages between two threads arrive in the order in which they were sent.
 */
import type { Kernels } from '../../src/kernels/index.ts';
import { CoreLoop } from '../../src/server/cores/core-loop.ts';
import { Office } from '../../src/server/cores/office.ts';
import type { ToCore, ToOffice } from '../../src/server/cores/office.ts';
import { CheckpointDesk } from '../../src/server/durability/checkpoint-desk.ts';
import type { Answer, Question } from '../../src/server/durability/checkpoint-desk.ts';
import { ParameterServer } from '../../src/server/index.ts';
import type { ServiceOptions } from '../../src/server/index.ts';
import type { ServerHost, ThreadLine } from '../../src/server/server-host.ts';
import { Disk } from './disk.ts';
import type { DiskFaults } from './disk.ts';
import type { Network } from './network.ts';
import { SimProcess, SimThread } from './process.ts';
import type { Scheduler } from './scheduler.ts';

export interface MachineOptions {
  readonly scheduler: Scheduler;
  readonly network: Network;
  readonly kernels: Kernels;
  readonly cores: number;
  readonly port: number;
  readonly faults: DiskFaults;
  /** A core is about to act on what it saw; returns for how long it is held up first, in milliseconds. */
  readonly holdUp: () => number;
  /** The services that it has whenever it starts. */
  readonly services: () => readonly ServiceOptions[];
  readonly onLog: (line: string) => void;
}

export class ServerMachine {
  readonly disk = new Disk();
  readonly #options: MachineOptions;
  process!: SimProcess;
  server: ParameterServer | undefined;
  #starts = 0;

  constructor(options: MachineOptions) {
    this.#options = options;
  }

  get address(): string {
    return `127.0.0.1:${this.#options.port}`;
  }

  /** Starts the process; the server is there some time later. */
  start(): void {
    const { scheduler, network, cores, port, kernels, services, onLog } = this.#options;
    const process = (this.process = new SimProcess(
      `server.${++this.#starts}`,
      scheduler,
      network,
      this.disk,
    ));
    const main = new SimThread(process, true);
    this.server = undefined;
    scheduler.after(0, main, () => {
      process.note('starts');
      const started = ParameterServer.start(
        { cores, port, space: kernels.space, log: (line) => void (process.isDead || onLog(line)) },
        this.#hostOf(process, main),
      );
      started.then(
        (server) => {
          if (process.isDead) return;
          this.server = server;
          for (const service of services()) server.createService(service);
        },
        (error: unknown) => process.isDead || onLog(`a server did not start: ${String(error)}`),
      );
    });
  }

  #hostOf(process: SimProcess, main: SimThread): ServerHost {
    const { scheduler, kernels, holdUp, faults } = this.#options;
    const files = process.files(faults);
    return {
      ...main.host(files),
      startCore(_, coreOptions) {
        const thread = new SimThread(process, false);
        const inbox: ToCore[] = [];
        const toMain = new Lane<ToOffice>(scheduler, main);
        const line: ThreadLine<ToOffice, ToCore> = {
          ...threadLine(toMain),
          post: (message) => void inbox.push(structuredClone(message)),
        };
        const office = new Office({ post: (message) => toMain.send(message), take: () => inbox.shift() });
        const loop = new CoreLoop(kernels, office, coreOptions, thread.host(files));
        const act = (): void => {
          if (loop.act()) turn(false);
          else office.ended(null);
        };
        const turn = (hasWoken: boolean): void => {
          loop.sleep();
          if (thread.isAsleep && !hasWoken) return thread.soon(() => turn(true));
          thread.getUp();
          scheduler.after(scheduler.between(0.001, 0.05) + holdUp(), thread, act);
        };
        scheduler.after(0, thread, () => turn(false));
        return line;
      },
      startCheckpoints(data) {
        const thread = new SimThread(process, false);
        const desk = new CheckpointDesk(thread.host(files), data);
        const toMain = new Lane<Answer>(scheduler, main);
        const toDesk = new Lane<Question>(scheduler, thread);
        toDesk.take = (question) => desk.take(question, (answer) => toMain.send(answer));
        return { ...threadLine(toMain), post: (question) => toDesk.send(question) };
      },
    };
  }
}

/** One way between two threads. */
class Lane<Message> {
  readonly #scheduler: Scheduler;
  readonly #to: SimThread;
  #lastMs = 0;
  take: (message: Message) => void = () => undefined;

  constructor(scheduler: Scheduler, to: SimThread) {
    this.#scheduler = scheduler;
    this.#to = to;
  }

  send(message: Message): void {
    const { nowMs } = this.#scheduler;
    if (this.#to.isDead) return;
    const copy = structuredClone(message);
    this.#lastMs = Math.max(this.#lastMs, nowMs + this.#scheduler.between(0.005, 0.1));
    this.#scheduler.after(this.#lastMs - nowMs, this.#to, () => this.take(copy));
  }
}

function threadLine<Heard>(lane: Lane<Heard>): Omit<ThreadLine<Heard, never>, 'post'> {
  return {
    onMessage: (take) => void (lane.take = take),
    onEnd: () => undefined,
    ref: () => undefined,
    unref: () => undefined,
    terminate: () => Promise.resolve(),
  };
}
