/**
 * A process of a simulated machine and its threads: what of a process can be killed, stopped and held up. It runs the real code by
 * the hosts that it gives. Invariant: whatever a dead process still tries changes nothing.
 */
import type { Clock } from '../../src/base/index.ts';
import type { LockableFiles } from '../../src/memory/index.ts';
import type { Host } from '../../src/sockets/index.ts';
import type { Disk, DiskFaults } from './disk.ts';
import type { Descriptor, Network, Watched, Watcher } from './network.ts';
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
      before: (point, path, act) => {
        if (isDead()) throw new Killed();
        faults.before(point, path, act);
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

/** What a pause takes besides: the machine has other things to do. */
const PAUSE_MS = 4;
/** From one look that finds nothing to the next, of those who look all the time. */
const LOOK_MS = 100;

export class SimThread implements Owner {
  readonly process: SimProcess;
  readonly hasPromises: boolean;
  /** Held up by the system, alone of its process. */
  heldUpUntilMs = 0;
  /** Its last look, if that found nothing. What looks next does not count: another event, or one that has got up. */
  #vainLook:
    { readonly watched: readonly Watched[]; readonly untilMs: number; readonly event: number } | undefined;
  #hasEnded = false;

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
      pause: (delayMs) => new Promise((resolve) => this.#pause(delayMs, resolve)),
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
    const { nowMs, event } = this.process.scheduler;
    this.#vainLook = { watched, untilMs: nowMs + forMs, event };
  }

  /** In the next turn; after a look that found nothing, when something has happened or its time is up. */
  soon(act: () => void): void {
    const { scheduler } = this.process;
    const jitterMs = scheduler.between(0, 0.02);
    const look = this.#vainLook;
    if (look === undefined || !this.isAsleep) return void scheduler.after(jitterMs, this, act);
    this.getUp();
    this.#wait(look.watched, Math.max(0, look.untilMs - scheduler.nowMs), act);
  }

  /** Who has looked in vain and looks again and again sees nothing before something happens: such looks are left out. */
  #pause(delayMs: number, act: () => void): void {
    const { scheduler } = this.process;
    const look = this.#vainLook;
    if (look === undefined || !this.isAsleep) return void scheduler.after(delayMs + PAUSE_MS, this, act);
    this.getUp();
    this.#wait(look.watched, LOOK_MS, act);
  }

  #wait(watched: readonly Watched[], forMs: number, act: () => void): void {
    const { scheduler } = this.process;
    const wake = (): void => {
      for (const { descriptor } of watched) descriptor.watchers.delete(watcher);
      act();
    };
    const callOff = scheduler.after(forMs, this, wake);
    let hasWoken = false;
    const watcher: Watcher = {
      wake: () => {
        if (hasWoken) return;
        hasWoken = true;
        callOff();
        scheduler.after(scheduler.between(0.1, 0.6), this, wake);
      },
    };
    for (const { descriptor, wanted } of watched) descriptor.watchers.set(watcher, wanted);
  }

  /** It has looked and found nothing since it last got up. */
  get isAsleep(): boolean {
    return this.#vainLook?.event === this.process.scheduler.event;
  }

  getUp(): void {
    this.#vainLook = undefined;
  }
}
