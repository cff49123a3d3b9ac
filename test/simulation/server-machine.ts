/**
 * The simulated machine of a parameter server: its disk, its process, and the threads of that
 * process, which run the real `ParameterServer`, `CoreLoop` and `CheckpointDesk`. It can be killed,
 * stopped, lose its power, and be started again with the same disk. Invariant: messages between two
 * threads arrive in the order in which they were sent.
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
import { DESK_TIMEOUT_MS } from './faults.ts';
import type { MachineFaults } from './faults.ts';
import type { Network } from './network.ts';
import { SimProcess, SimThread } from './process.ts';
import type { Scheduler } from './scheduler.ts';

export interface MachineOptions {
  readonly name: string;
  readonly scheduler: Scheduler;
  readonly network: Network;
  readonly kernels: Kernels;
  readonly cores: number;
  readonly port: number;
  readonly faults: MachineFaults;
  /** The services that it has whenever it starts. */
  readonly services: () => readonly ServiceOptions[];
  readonly onLog: (line: string) => void;
}

export class ServerMachine {
  readonly disk = new Disk();
  readonly #options: MachineOptions;
  process!: SimProcess;
  server: ParameterServer | undefined;
  readonly #started = new Set<SimProcess>();

  constructor(options: MachineOptions) {
    this.#options = options;
  }

  get address(): string {
    return `127.0.0.1:${this.#options.port}`;
  }

  /** Whether it is, or was, a process of this machine. */
  hasStarted(process: SimProcess): boolean {
    return this.#started.has(process);
  }

  /** Starts the process; the server is there some time later. */
  start(): void {
    const { name, scheduler, network, cores, port, kernels, services, onLog } = this.#options;
    const title = `${name}.${this.#started.size + 1}`;
    const process = (this.process = new SimProcess(title, scheduler, network, this.disk));
    this.#started.add(process);
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
          // One that has lost a core already is started again.
          if (process.isDead || server.failure) return;
          this.server = server;
          for (const service of services()) server.createService(service);
        },
        (error: unknown) => process.isDead || onLog(`a server did not start: ${String(error)}`),
      );
    });
  }

  #hostOf(process: SimProcess, main: SimThread): ServerHost {
    const { scheduler, kernels, faults } = this.#options;
    const files = process.files(faults);
    const { clock } = main;
    // Instead of ten minutes: requests of workers are to outlast a checkpoint thread that hangs.
    return {
      ...main.host(files),
      clock: { ...clock, after: (ms, act) => clock.after(Math.min(ms, DESK_TIMEOUT_MS), act) },
      startCore(_, coreOptions) {
        const thread = new SimThread(process, false);
        const inbox: ToCore[] = [];
        const toMain = new Lane<ToOffice>(scheduler, main);
        const line = {
          ...threadLine(thread, toMain),
          post: (message: ToCore) => void inbox.push(structuredClone(message)),
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
          const heldUpMs = faults.holdUp();
          if (heldUpMs === Infinity) return line.end();
          scheduler.after(scheduler.between(0.001, 0.05) + heldUpMs, thread, act);
        };
        scheduler.after(0, thread, () => turn(false));
        return line;
      },
      startCheckpoints(data) {
        const thread = new SimThread(process, false);
        const own = process.files(faults, { isDead: () => thread.isDead });
        const desk = new CheckpointDesk(thread.host(own), data);
        const toMain = new Lane<Answer>(scheduler, main);
        const toDesk = new Lane<Question>(scheduler, thread);
        const line = threadLine(thread, toMain);
        // What it still tries once it has ended changes nothing.
        const answer = (one: Answer): void => void (thread.isDead || toMain.send(one));
        toDesk.take = (question) =>
          faults.inDesk(
            { folder: data.folder, question: question.name, end: line.end, hang: () => thread.end() },
            () => {
              if (!thread.isDead) desk.take(question, answer);
            },
          );
        return { ...line, post: (question) => toDesk.send(question) };
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
    const copy = structuredClone(message);
    this.then(() => this.take(copy));
  }

  /** When everything has arrived that was sent before. */
  then(act: () => void): void {
    const { nowMs } = this.#scheduler;
    if (this.#to.isDead) return;
    this.#lastMs = Math.max(this.#lastMs, nowMs + this.#scheduler.between(0.005, 0.1));
    this.#scheduler.after(this.#lastMs - nowMs, this.#to, act);
  }
}

function threadLine<Heard>(
  thread: SimThread,
  lane: Lane<Heard>,
): Omit<ThreadLine<Heard, never>, 'post'> & { end: () => void } {
  let onEnd: (error: unknown) => void = () => undefined;
  return {
    onMessage: (take) => void (lane.take = take),
    onEnd: (take) => void (onEnd = take),
    end: () => {
      thread.end();
      lane.then(() => onEnd(undefined));
    },
    ref: () => undefined,
    unref: () => undefined,
    terminate: () => {
      thread.end();
      return Promise.resolve();
    },
  };
}
