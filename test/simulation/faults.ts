/**
 * What goes wrong in a simulated run: faults of disks, networks and processes, each armed for a
 * point in the way of a request (before a write, at a write, a flush, a rename, an acknowledgement,
 * a request, a core's turn), and counted when it hits. Which ones, when and where follows from the
 * seed. Invariant: every fault heals by itself; after the last one training can end.
 */
import { basename, dirname } from 'node:path';
import type { DiskFaults, DiskPoint } from './disk.ts';
import type { Links } from './network.ts';
import type { SimProcess } from './process.ts';
import type { Scheduler } from './scheduler.ts';
import type { ServerMachine } from './server-machine.ts';

export const POINTS = [
  'new log',
  'before write',
  'write',
  'flush',
  'rename',
  'truncate',
  'acknowledgement',
  'request',
  'turn',
  'question',
  'mate',
] as const;
export type Point = (typeof POINTS)[number];

const ON_DISK: readonly Point[] = ['before write', 'write', 'flush', 'rename', 'acknowledgement'];
const ON_WIRE: readonly Point[] = ['acknowledgement', 'request', 'mate'];

/** Of the checkpoint thread: before it does what it was asked for, and in the middle of it. */
const IN_DESK: readonly Point[] = ['question', 'write', 'flush', 'rename'];

/** Which fault can hit where. A desk is the thread that writes checkpoints, a mate another worker of the same client. */
export const FAULTS = {
  'server killed': ON_DISK,
  'power cut': ON_DISK,
  'disk full': ['write', 'new log'],
  'write error': ['write', 'new log'],
  'truncate error': ['truncate'],
  'flush error': ['flush'],
  'torn write': ['write'],
  'checkpoint damaged': ['write'],
  'link cut': ON_WIRE,
  'link cut one way': ON_WIRE,
  'link slow': ON_WIRE,
  'connection reset': ON_WIRE,
  'server stopped': ['acknowledgement', 'write'],
  'worker stopped': ON_WIRE,
  'worker killed': ON_WIRE,
  'core held up': ['turn'],
  'core ended': ['turn'],
  'desk ended': IN_DESK,
  'desk hangs': IN_DESK,
  'name lost': ['rename'],
} as const satisfies Record<string, readonly Point[]>;
export type Fault = keyof typeof FAULTS;

/** What a fault breaks, by which errors that follow from it are told from others. */
export type Cause = 'disk' | 'server' | 'desk' | 'link' | 'worker';

const CAUSES: Record<Fault, Cause> = {
  ...{ 'server killed': 'server', 'power cut': 'server', 'torn write': 'server' },
  ...{ 'checkpoint damaged': 'server', 'server stopped': 'server', 'core held up': 'server' },
  ...{
    'disk full': 'disk',
    'write error': 'disk',
    'truncate error': 'disk',
    'flush error': 'disk',
    'name lost': 'disk',
  },
  ...{ 'link cut': 'link', 'link cut one way': 'link', 'link slow': 'link', 'connection reset': 'link' },
  ...{ 'core ended': 'server', 'desk ended': 'desk', 'desk hangs': 'desk' },
  ...{ 'worker stopped': 'link', 'worker killed': 'worker' },
};

interface Struck {
  readonly cause: Cause;
  /** Of a link or a worker: whose. */
  readonly namespace: string | undefined;
  /** When it has healed, as far as is known. */
  untilMs: number;
}

/** After so long a checkpoint thread counts as hung. */
export const DESK_TIMEOUT_MS = 15_000;

/** Runs are counted apart. */
export const RUN_KINDS = ['workers only', 'with clients'] as const;
export type RunKind = (typeof RUN_KINDS)[number];

/** By kind of run, fault and point, how often it hit. */
export type FaultCounts = Map<string, number>;

export function countName(kind: RunKind, fault: string, point: string): string {
  return `${kind}: ${fault} @ ${point}`;
}

interface Armed {
  readonly fault: Fault;
  readonly point: Point;
  /** Whether it hits when what happens at the point has happened, or just before. */
  readonly isAfter: boolean;
  /** How often the point is passed unharmed before. */
  skips: number;
  /** Whether it hits logs only. */
  readonly isOfLog?: boolean;
  /** Whether it hits the checkpoint thread only. */
  readonly isOfDesk?: boolean;
}

const EVERY = Object.entries(FAULTS).flatMap(([fault, points]) =>
  points.map((point) => ({ fault: fault as Fault, point: point })),
);
const EACH = EVERY.filter(({ point }) => point !== 'mate');
/** Only where workers have mates. */
const MATES = EVERY.filter(({ point }) => point === 'mate');
/** Logs are cut so seldom that most of these hit nothing. */
const TRUNCATIONS = EACH.filter(({ point }) => point === 'truncate');
const ALL = [...EACH, ...Array<typeof EACH>(4).fill(TRUNCATIONS).flat()];

const EVERYWHERE = EACH.filter(({ point }) => point === 'request' || point === 'turn');

/** A worker, and the server or mate at the other end of its link. */
interface LinkEnds {
  readonly to: SimProcess;
  readonly worker: SimProcess;
}

/** What can become of a checkpoint thread, alone of its process. */
export interface DeskThread {
  /** Of its checkpoints. */
  readonly folder: string;
  /** What it is asked for. */
  readonly question: string;
  /** The one who started it hears of it. */
  end(): void;
  /** It does nothing more, and nobody hears of it. */
  hang(): void;
}

/** What asks on a machine whether something goes wrong. */
export interface MachineFaults extends DiskFaults {
  /**
   * A core is about to act on what it saw; returns for how long it is held up first, in
   * milliseconds; Infinity: it ends.
   */
  holdUp(): number;
  /** The checkpoint thread is about to do what it was asked for. */
  inDesk(thread: DeskThread, act: () => void): void;
}

export class Faults implements Links {
  readonly #scheduler: Scheduler;
  readonly #counts: FaultCounts;
  readonly #kind: RunKind;
  /** What can be armed for any point, and for those that are passed as long as anybody trains. */
  readonly #choice: { readonly all: typeof EACH; readonly everywhere: typeof EACH };
  #machines!: readonly ServerMachine[];
  /** Where it is that something happens now. */
  #machine!: ServerMachine;
  readonly #armed: Armed[] = [];
  readonly #cuts: { readonly from: SimProcess; readonly to: SimProcess; readonly untilMs: number }[] = [];
  readonly #slow: {
    readonly a: SimProcess;
    readonly b: SimProcess;
    readonly untilMs: number;
    readonly ms: number;
  }[] = [];
  /** Folders with a checkpoint that was damaged, on one of the machines. */
  readonly #damaged = new Set<string>();
  /**
   * Folders with a log that could not be continued: until there is a second one, the next
   * checkpoint is all there is.
   */
  readonly #broken = new Set<string>();
  #failsFlush = false;
  #tears = false;
  #heldUpMs = 0;
  /** While the checkpoint thread does something. */
  #desk: DeskThread | undefined;
  /**
   * The folder of a checkpoint whose name was not flushed, and until when nothing of that thread
   * comes to the disk; the power is cut when training goes back to the checkpoint, or when others
   * are written.
   */
  #unflushed:
    { readonly machine: ServerMachine; readonly folder: string; readonly failsUntilMs: number } | undefined;
  /** Processes of servers one of whose cores was ended. */
  readonly #coreless = new Set<SimProcess>();
  readonly #struck: Struck[] = [];
  hits = 0;
  /** A core is about to be held up, as soon as it may be. */
  beforeHoldUp: () => void = () => undefined;
  mayHoldUp: (machine: ServerMachine) => boolean = () => true;
  onHeldUp: () => void = () => undefined;
  onPowerCut: () => void = () => undefined;
  /** The newest checkpoint in that folder. */
  onDamaged: (folder: string) => void = () => undefined;
  onWorkerKilled: (process: SimProcess) => void = () => undefined;

  constructor(scheduler: Scheduler, counts: FaultCounts, kind: RunKind) {
    this.#scheduler = scheduler;
    this.#counts = counts;
    this.#kind = kind;
    const mates = kind === 'with clients' ? MATES : [];
    this.#choice = { all: [...ALL, ...mates], everywhere: [...EVERYWHERE, ...mates] };
  }

  use(machines: readonly ServerMachine[]): void {
    this.#machines = machines;
    this.#machine = machines[0]!;
  }

  /** Those of one machine. */
  of(machine: () => ServerMachine): MachineFaults {
    const at = (): this => {
      this.#machine = machine();
      return this;
    };
    return {
      before: (point, path, act) => at().#before(point, path, act),
      after: (point, path) => at().#after(point, path),
      torn: (path, bytes) => at().#torn(path, bytes),
      failsFlush: () => at().#flushFails(),
      taken: (bytes) => this.#taken(bytes),
      holdUp: () => at().#holdUp(),
      inDesk: (thread, act) => at().#inDesk(thread, act),
    };
  }

  /** One more, at the next occasion or soon after. */
  arm(): void {
    const { random } = this.#scheduler;
    const { all } = this.#choice;
    const { fault, point } = all[random.below(all.length)]!;
    const isEnd = fault === 'server killed' || fault === 'power cut' || fault === 'server stopped';
    const isAfter =
      fault === 'name lost' || (isEnd && (point === 'write' || (isOnDisk(point) && random.below(2) === 0)));
    const isOfDesk = fault === 'desk ended' || fault === 'desk hangs' || fault === 'name lost';
    this.#armed.push({ fault, point, isAfter, skips: random.below(4), isOfDesk });
    // A log is cut only where a write to it has failed.
    if (fault === 'truncate error') {
      this.#armed.push({ fault: 'write error', point: 'write', isAfter, skips: 0, isOfLog: true });
    }
    if (fault === 'core held up') this.beforeHoldUp();
  }

  /** When the last fault has healed, as far as is known. */
  get healedMs(): number {
    return Math.max(0, ...this.#struck.map(({ untilMs }) => untilMs));
  }

  /**
   * Whether something of that kind was broken at that time or later, for all tenants or for this
   * one.
   */
  hasStruck(causes: readonly Cause[], sinceMs: number, namespace: string): boolean {
    return this.#struck.some(
      (one) =>
        causes.includes(one.cause) &&
        one.untilMs >= sinceMs &&
        (one.namespace === undefined || one.namespace === namespace),
    );
  }

  /**
   * So many instead of all that have not hit, where something is passed as long as anybody trains.
   */
  armOnWire(count: number): void {
    const { random } = this.#scheduler;
    this.#armed.length = 0;
    for (let i = 0; i < count; i++) {
      const { everywhere } = this.#choice;
      const { fault, point } = everywhere[random.below(everywhere.length)]!;
      this.#armed.push({ fault, point, isAfter: false, skips: 0 });
    }
  }

  #before(diskPoint: DiskPoint, path: string, act?: () => void): void {
    this.#call = act;
    if (diskPoint === 'write') this.#pass('before write', undefined, path);
    if (diskPoint === 'open' && isLog(path)) this.#pass('new log', undefined, path);
    if (!this.#machine.process.isDead && isOnDisk(diskPoint)) this.#pass(diskPoint, undefined, path);
    const isWrite = diskPoint === 'open' || diskPoint === 'write';
    if (this.#throws || (isWrite && this.#isFailing)) {
      this.#throws = false;
      throw Object.assign(new Error(`EIO: simulated, '${path}'`), { code: 'EIO' });
    }
  }

  #after(diskPoint: DiskPoint, path: string): void {
    if (isOnDisk(diskPoint)) this.#pass(diskPoint, undefined, path, true);
  }

  #torn(_path: string, bytes: number): number | undefined {
    if (!this.#tears) return undefined;
    this.#tears = false;
    this.#endServer('kill');
    return this.#scheduler.random.below(bytes);
  }

  #taken(bytes: number): number {
    const { random } = this.#scheduler;
    return random.below(16) === 0 ? 1 + random.below(bytes) : bytes;
  }

  #flushFails(): boolean {
    const fails = this.#failsFlush || this.#isFailing;
    this.#failsFlush = false;
    return fails;
  }

  /** What the checkpoint thread does now does not come to the disk. */
  get #isFailing(): boolean {
    if (this.#desk === undefined || !this.#isOfUnflushed(this.#desk)) return false;
    return this.#scheduler.nowMs < this.#unflushed!.failsUntilMs;
  }

  #isOfUnflushed({ folder }: DeskThread): boolean {
    return this.#unflushed?.machine === this.#machine && this.#unflushed.folder === folder;
  }

  /** What the checkpoint thread does, all at once. */
  #inDesk(thread: DeskThread, act: () => void): void {
    const machine = this.#machine;
    this.#desk = thread;
    this.#call = undefined;
    this.#pass('question', undefined, '');
    const { random, nowMs } = this.#scheduler;
    const isOver =
      this.#isOfUnflushed(thread) &&
      (thread.question === 'read' ||
        (thread.question === 'write' && nowMs >= this.#unflushed!.failsUntilMs && random.below(2) === 0));
    act();
    this.#desk = undefined;
    // A thread that has ended before it flushed leaves the flushes of others alone.
    this.#failsFlush = false;
    if (!isOver) return;
    this.#unflushed = undefined;
    const scheduler = this.#scheduler;
    this.#strike('server');
    scheduler.after(this.#lastsMs(scheduler.between(2, 20)), undefined, () =>
      this.#endServer('power', machine),
    );
  }

  #holdUp(): number {
    if (this.mayHoldUp(this.#machine)) this.#pass('turn', undefined, '');
    const ms = this.#heldUpMs;
    this.#heldUpMs = 0;
    return ms;
  }

  cutUntilMs(from: SimProcess, to: SimProcess): number {
    let untilMs = 0;
    for (const cut of this.#cuts) {
      if (cut.from.name === from.name && cut.to.name === to.name) untilMs = Math.max(untilMs, cut.untilMs);
    }
    return untilMs;
  }

  delayMs(from: SimProcess, to: SimProcess): number {
    const { nowMs } = this.#scheduler;
    for (const { a, b, untilMs, ms } of this.#slow) {
      if (untilMs > nowMs && ((a === from && b === to) || (a === to && b === from))) return ms;
    }
    return 0;
  }

  beforeSend(from: SimProcess, to: SimProcess): 'goes' | 'resets' {
    const machine = this.#machines.find((one) => one.hasStarted(from) || one.hasStarted(to));
    this.#resets = false;
    if (machine === undefined) this.#pass('mate', { to, worker: from }, '');
    else {
      this.#machine = machine;
      const isServer = machine.hasStarted(from);
      this.#pass(
        isServer ? 'acknowledgement' : 'request',
        { to: isServer ? from : to, worker: isServer ? to : from },
        '',
      );
    }
    return this.#resets ? 'resets' : 'goes';
  }

  #resets = false;
  #throws = false;
  /** What the kernel is about to do on the disk. */
  #call: (() => void) | undefined;

  #pass(point: Point, ends: LinkEnds | undefined, path: string, isAfter = false): void {
    const isOfLog = isLog(path);
    const index = this.#armed.findIndex(
      (one) =>
        one.point === point &&
        one.isAfter === isAfter &&
        (isOfLog || !one.isOfLog) &&
        (this.#desk || !one.isOfDesk),
    );
    if (index < 0) return;
    const armed = this.#armed[index]!;
    if (armed.skips-- > 0) return;
    this.#armed.splice(index, 1);
    const name = countName(this.#kind, armed.fault, point);
    this.#counts.set(name, (this.#counts.get(name) ?? 0) + 1);
    this.hits++;
    this.#scheduler.note('fault', `${armed.fault} at ${point}${path === '' ? '' : ` of ${path}`}`);
    const breaksLogs = armed.fault === 'flush error' || armed.fault === 'truncate error';
    if (breaksLogs && isOfLog) this.#broken.add(basename(dirname(path)));
    const cause = CAUSES[armed.fault];
    this.#strike(cause, cause === 'link' || cause === 'worker' ? ends!.worker.name.split('.')[0] : undefined);
    this.#hit(armed.fault, ends);
  }

  #strike(cause: Cause, namespace?: string): void {
    this.#struck.push({ cause, namespace, untilMs: this.#scheduler.nowMs });
  }

  /** What struck last takes so long to heal. */
  #lastsMs(ms: number): number {
    const last = this.#struck.at(-1)!;
    last.untilMs = Math.max(last.untilMs, this.#scheduler.nowMs + ms);
    return ms;
  }

  #hit(fault: Fault, ends: LinkEnds | undefined): void {
    const scheduler = this.#scheduler;
    const forMs = (least: number, most: number): number => this.#lastsMs(scheduler.between(least, most));
    const { disk, process } = this.#machine;
    switch (fault) {
      case 'server killed':
        return this.#endServer('kill');
      case 'power cut':
        return this.#endServer('power');
      case 'disk full':
        // Of most, less than the next record takes.
        disk.fillUp(scheduler.random.below(2) * scheduler.random.below(500));
        return void scheduler.after(forMs(20, 3000), undefined, () => disk.clearUp());
      case 'write error':
      case 'truncate error':
        this.#throws = true;
        return;
      case 'flush error':
        this.#failsFlush = true;
        return;
      case 'torn write':
        this.#tears = true;
        return;
      case 'checkpoint damaged':
        this.#damageCheckpoint();
        return this.#endServer('kill');
      case 'server stopped':
        return process.stop(forMs(50, 8000));
      case 'core held up':
        this.#heldUpMs = forMs(5, 3000);
        return this.onHeldUp();
      case 'core ended':
        this.#heldUpMs = Infinity;
        this.#coreless.add(process);
        return;
      case 'name lost':
        // The next flush of the thread is that of the folder; a disk that fails once fails for a while.
        this.#unflushed = {
          ...{ machine: this.#machine, folder: this.#desk!.folder },
          failsUntilMs: scheduler.nowMs + forMs(1, 1000),
        };
        return;
      case 'desk ended':
        return this.#desk!.end();
      case 'desk hangs':
        this.#lastsMs(DESK_TIMEOUT_MS);
        this.#goOnLater();
        return this.#desk!.hang();
      case 'connection reset':
        this.#resets = true;
        return;
      case 'link cut':
      case 'link cut one way': {
        const { to, worker } = ends!;
        const untilMs = scheduler.nowMs + forMs(20, 30_000);
        const isToServer = fault === 'link cut' || scheduler.random.below(2) === 0;
        if (isToServer) this.#cuts.push({ from: worker, to, untilMs });
        if (fault === 'link cut' || !isToServer) this.#cuts.push({ from: to, to: worker, untilMs });
        return;
      }
      case 'link slow':
        return void this.#slow.push({
          ...{ a: ends!.to, b: ends!.worker, ms: scheduler.between(1, 200) },
          untilMs: scheduler.nowMs + forMs(50, 2000),
        });
      case 'worker stopped':
        return ends!.worker.stop(forMs(50, 8000));
      case 'worker killed':
        ends!.worker.kill();
        return this.onWorkerKilled(ends!.worker);
    }
  }

  /** The call of the system in which a thread hangs is done in the end, when the thread was given up. */
  #goOnLater(): void {
    const [call, { process }] = [this.#call, this.#machine];
    const afterMs = this.#scheduler.between(1, 2) * DESK_TIMEOUT_MS;
    if (call === undefined) return;
    this.#scheduler.after(afterMs, undefined, () => {
      if (process.isDead) return;
      try {
        call();
        process.note('what hung is done');
      } catch {
        // Nobody hears of it.
      }
    });
  }

  /**
   * A byte of the newest checkpoint of one tenant that has an older one with all logs since, on all
   * machines that it trains on; once for each folder, since older ones go.
   */
  #damageCheckpoint(): void {
    const scheduler = this.#scheduler;
    const machine = this.#machine;
    const isWhole = (name: string): boolean => !this.#damaged.has(name) && !this.#broken.has(name);
    for (const folder of machine.disk.list('/data').filter(isWhole)) {
      const checkpoints = checkpointsIn(machine, folder);
      const others = this.#machines.filter(
        (one) => one !== machine && one.disk.list('/data').includes(folder),
      );
      const left = checkpoints.slice(0, -1);
      if (!left.some((name) => others.every((one) => checkpointsIn(one, folder).includes(name)))) continue;
      this.#damaged.add(folder);
      const path = `/data/${folder}/${checkpoints.at(-1)!}`;
      scheduler.note('fault', `damages ${path}`);
      machine.disk.damage(path, scheduler.random);
      return this.onDamaged(`/data/${folder}`);
    }
  }

  /** Whether a core of the server that runs there was ended. */
  hasEndedCore({ process }: ServerMachine): boolean {
    return this.#coreless.has(process);
  }

  /** No fault: the one who runs the server does it. */
  startServerAgain(machine: ServerMachine): void {
    machine.process.note('the operator starts it again');
    this.#strike('server');
    this.#endServer('kill', machine);
  }

  #endServer(how: 'kill' | 'power', machine = this.#machine): void {
    const scheduler = this.#scheduler;
    const dead = machine.process;
    if (dead.isDead) return;
    const downMs = this.#lastsMs(scheduler.between(10, 3000));
    dead.kill(how === 'power');
    if (how === 'power') {
      machine.disk.cutPower(scheduler.random);
      this.onPowerCut();
    }
    scheduler.after(downMs, undefined, () => {
      if (how === 'power') dead.network.resetAll(dead);
      machine.start();
    });
  }
}

function isOnDisk(point: string): point is 'write' | 'flush' | 'rename' | 'truncate' {
  return point === 'write' || point === 'flush' || point === 'rename' || point === 'truncate';
}

function checkpointsIn({ disk }: ServerMachine, folder: string): string[] {
  return disk.list(`/data/${folder}`).filter((name) => /^step-\d+\.checkpoint$/.test(name));
}

function isLog(path: string): boolean {
  return path.endsWith('.pushes');
}
