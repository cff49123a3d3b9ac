/**
 * A process of a simulated machine and its threads: what of a process can be killed, stopped and held up. It runs the real code by
 * the hosts that it gives. Invariant: whatever a dead process still tries changes nothing.
 */
import type { Clock } from '../../src/base/index.ts';
import type { LockableFiles } from '../../src/memory/index.ts';
import type { Host } from '../../src/sockets/index.ts';
import type { Disk, DiskFaults } from './disk.ts';
import type { Descriptor, Network, Watched } from './network.ts';
import type { Owner, Scheduler } from './scheduler.ts';

/** What a dead process meets when it goes on because it does not know. */
export class Killed extends Error {
  constructor() {
    super('simulated: the process is dead');
  }
}

export class SimProcess {
  readonly name: string;
  readonly scheduler: Scheduler;
  readonly network: Network;
  readonly descriptors = new Map<number, Descriptor>();
  readonly ports = new Set<number>();
  nextDescriptor = 3;
  isDead = false;
  stoppedUntilMs = 0;
  readonly #disk: Disk;

  constructor(name: string, scheduler: Scheduler, network: Network, disk: Disk) {
    this.name = name;
    this.scheduler = scheduler;
    this.network = network;
    this.#disk = disk;
    network.processes.push(this);
  }

  note(what: string): void {
    this.scheduler.note(this.name, what);
  }

  /** As by `kill -9`, or by the power: then nobody hears of it until the machine is back. */
  kill(inSilence = false): void {
    if (this.isDead) return;
    this.isDead = true;
    this.network.end(this, inSilence);
  }

  /** As by SIGSTOP and, later, SIGCONT. */
  stop(forMs: number): void {
    this.stoppedUntilMs = Math.max(this.stoppedUntilMs, this.scheduler.nowMs + forMs);
  }

  /** As one of its threads sees them, or all. */
  files(
    faults: DiskFaults,
    { isDead }: { readonly isDead: () => boolean } = { isDead: () => this.isDead },
  ): LockableFiles {
    const own: DiskFaults = {
      before: (point, path) => {
        if (isDead()) throw new Killed();
        faults.before(point, path);
        if (isDead()) throw new Killed();
      },
      after: (point, path) => {
        faults.after(point, path);
        if (isDead()) throw new Killed();
      },
      torn: (path, bytes) => faults.torn(path, bytes),
      failsFlush: (path) => faults.failsFlush(path),
      taken: (bytes) => faults.taken(bytes),
    };
    const files = this.#disk.filesFor(own, this);
    const guarded = <R>(call: () => R): R => {
      if (isDead()) throw new Killed();
      return call();
    };
    return {
      ...files,
      open: (path, flags, mode) => guarded(() => files.open(path, flags, mode)),
      list: (folder) => guarded(() => files.list(folder)),
      read: (file, into, position) => guarded(() => files.read(file, into, position)),
      remove: (path) => guarded(() => files.remove(path)),
      makeFolder: (path, mode) => guarded(() => files.makeFolder(path, mode)),
    };
  }
}

export class SimThread implements Owner {
  readonly process: SimProcess;
  readonly hasPromises: boolean;
  /** Held up by the system, alone of its process. */
  heldUpUntilMs = 0;
  #watched: readonly Watched[] = [];
  #asleepUntilMs = 0;
  #isAsleep = false;
  #hasEnded = false;
  /** What it does when it wakes. */
  #onWake: { readonly act: () => void; callOff: () => void } | undefined;

  constructor(process: SimProcess, hasPromises: boolean) {
    this.process = process;
    this.hasPromises = hasPromises;
  }

  get isDead(): boolean {
    return this.#hasEnded || this.process.isDead;
  }

  /** Alone of its process. */
  end(): void {
    this.#hasEnded = true;
  }

  get stoppedUntilMs(): number {
    return Math.max(this.process.stoppedUntilMs, this.heldUpUntilMs);
  }

  get clock(): Clock {
    const { scheduler } = this.process;
    return {
      nowMs: () => scheduler.nowMs,
      after: (delayMs, act) => scheduler.after(delayMs, this, act),
      soon: (act) => this.soon(act),
    };
  }

  host(files: LockableFiles): Host {
    const { network, scheduler } = this.process;
    return {
      clock: this.clock,
      files,
      libc: network.callsFor(this),
      randomHex: (bytes) => scheduler.randomHex(bytes),
    };
  }

  /** The thread has looked and found nothing: what it does next waits until something happens. */
  sleep(watched: readonly Watched[], forMs: number): void {
    this.#isAsleep = true;
    this.#watched = watched;
    this.#asleepUntilMs = this.process.scheduler.nowMs + forMs;
  }

  /** In the next turn; after a look that found nothing, when something has happened or its time is up. */
  soon(act: () => void): void {
    const { scheduler } = this.process;
    const jitterMs = scheduler.between(0, 0.02);
    if (!this.#isAsleep) return void scheduler.after(jitterMs, this, act);
    for (const { descriptor, wanted } of this.#watched) descriptor.watchers.set(this, wanted);
    const wake = (): void => {
      this.getUp();
      act();
    };
    const callOff = scheduler.after(Math.max(0, this.#asleepUntilMs - scheduler.nowMs), this, wake);
    this.#onWake = { act: wake, callOff };
  }

  /** Something happened on a descriptor that it watches. */
  wake(): void {
    const waiting = this.#onWake;
    if (waiting === undefined) return;
    waiting.callOff();
    this.#onWake = undefined;
    const { scheduler } = this.process;
    scheduler.after(scheduler.between(0.1, 0.6), this, waiting.act);
  }

  /** It has looked and found nothing since it last got up. */
  get isAsleep(): boolean {
    return this.#isAsleep;
  }

  getUp(): void {
    for (const { descriptor } of this.#watched) descriptor.watchers.delete(this);
    this.#watched = [];
    this.#isAsleep = false;
    this.#onWake = undefined;
  }
}
