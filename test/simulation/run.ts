/**
 * One simulated run: servers of two cores, two tenants with their workers, tenants that come and
 * go, and faults, all by one seed. It ends when every tenant is done, or with the first thing that
 * did not hold. Invariants that are checked: what was acknowledged is there, once; lock step ends
 * with the bits of an undisturbed run; no tenant's values change by another's; everything that was
 * asked for ends.
 */
import { TributaryError } from '../../src/base/index.ts';
import type { ErrorCode } from '../../src/base/index.ts';
import type { Kernels } from '../../src/kernels/index.ts';
import type { MemberAddress } from '../../src/transport/index.ts';
import { Start } from './clients.ts';
import { Disk } from './disk.ts';
import { Faults } from './faults.ts';
import type { Cause, FaultCounts } from './faults.ts';
import { Network } from './network.ts';
import { Killed, SimProcess, SimThread } from './process.ts';
import { Scheduler } from './scheduler.ts';
import type { TraceLine } from './scheduler.ts';
import { ServerMachine } from './server-machine.ts';
import { isInLockStep, Tenant, Violation } from './tenant.ts';
import type { TenantPlan } from './tenant.ts';
import { Visitors } from './visitors.ts';

const KINDS = ['synchronous', 'held', 'asynchronous', 'bounded', 'elastic'] as const;
/** In every so many seeds a tenant trains in clients. */
const CLIENTS_EVERY = 3;
const CLIENT_KINDS = ['synchronous', 'asynchronous', 'bounded', 'elastic'] as const;
export const CLIENTS = 2;
export const CLIENT_STEPS = 14;
export const CLIENT_SIZES = [2, 3] as const;
const NAMES = ['server', 'second server'];
const PORT = 7000;
const CORES = 2;
/** Virtual time that a run has after the last fault has healed. */
const LEFT_MS = 300_000;
const MOST_RESTARTS = 200;
const LEAST_FAULTS = 3;
/** There are fewer seeds with clients; each fault is to hit each point often enough there, too. */
const LEAST_WITH_CLIENTS = 7;
const OVERTAKEN = /some cores had taken that of step|those of later steps|others were asked for since/;
/** Errors that faults of the machine may lead to, by code and text, and of which. */
const CAUSES: readonly { readonly code: ErrorCode; readonly text?: RegExp; readonly causes: Cause[] }[] = [
  { code: 'FILE_NOT_WRITTEN', causes: ['disk'] },
  { code: 'CHECKPOINT_NOT_WRITTEN', causes: ['disk', 'desk'] },
  // Cores hear of a checkpoint at different times, or not at all, where a request or its answer is
  // lost on its way.
  { code: 'CHECKPOINT_NOT_WRITTEN', text: OVERTAKEN, causes: ['server', 'link', 'worker'] },
  // A request that was on its way for long, behind a restart after a later one.
  { code: 'INVALID_ARGUMENT', text: /cannot be written after it/, causes: ['link'] },
  { code: 'CHECKPOINT_NOT_WRITTEN', text: /started again before it was on the disk/, causes: ['server'] },
  { code: 'BROKEN_INVARIANT', text: /^The checkpoint thread of \S+ ended/, causes: ['desk'] },
  { code: 'TIMEOUT', text: /^Checkpoints in \S+ '\w+' was not done within/, causes: ['desk'] },
  { code: 'UNREACHABLE', causes: ['server', 'link'] },
];
/**
 * Of all steps, those after which no fault is planned, but those that have not hit are made up for.
 */
const LATE = 0.7;

export interface RunOptions {
  readonly seed: number;
  readonly kernels: Kernels;
  readonly counts: FaultCounts;
  /** Of an undisturbed run with the same plan. Default: nothing is compared. */
  readonly expectedHash?: ((plan: TenantPlan) => string) | undefined;
  /** Faults of the run. Default: 3 to 5, with clients 7 to 9, by the seed. */
  readonly faults?: number | undefined;
  /** Default: two, by the seed. */
  readonly plans?: readonly TenantPlan[] | undefined;
}

export interface RunResult {
  readonly seed: number;
  readonly violation: string | undefined;
  readonly trace: readonly TraceLine[];
  readonly virtualMs: number;
  readonly events: number;
  readonly tenants: readonly Tenant[];
  readonly hits: number;
}

export async function run(options: RunOptions): Promise<RunResult> {
  const simulation = new Run(options);
  return simulation.run();
}

class Run {
  readonly #options: RunOptions;
  readonly #scheduler: Scheduler;
  readonly #network: Network;
  readonly #faults: Faults;
  readonly #machines: readonly ServerMachine[];
  readonly #tenants: Tenant[];
  readonly #visitors: Visitors;
  readonly #processes = new Map<string, SimProcess>();
  /** Workers that are about to be started again. */
  readonly #starting = new Set<string>();
  /** By worker, the last start of its client. */
  readonly #starts = new Map<string, Start>();
  #restarts = 0;
  readonly #repairing = new Set<ServerMachine>();
  #violation: string | undefined;

  constructor(options: RunOptions) {
    this.#options = options;
    const { seed, kernels, counts } = options;
    const scheduler = (this.#scheduler = new Scheduler(seed));
    this.#network = new Network(scheduler, kernels.space);
    const plans = options.plans ?? this.#choosePlans();
    const hasClients = plans.some(({ clientSize }) => clientSize > 1);
    this.#faults = new Faults(scheduler, counts, hasClients ? 'with clients' : 'workers only');
    this.#network.links = this.#faults;
    this.#tenants = plans.map((plan) => new Tenant(plan, scheduler.randomHex(32)));
    const servers = Math.max(...plans.map((plan) => plan.servers));
    this.#machines = NAMES.slice(0, servers).map((name, i) => this.#newMachine(name, i));
    this.#faults.use(this.#machines);
    this.#visitors = new Visitors({
      ...{ scheduler, network: this.#network, faults: this.#faults, space: kernels.space },
      machine: () => this.#machines[0]!,
      startWorker: (tenant) => this.#startClient(tenant, 0),
      onViolation: ({ message }) => this.#found(message),
    });
    this.#faults.onPowerCut = () => {
      for (const tenant of this.#tenants) tenant.powerWasCut();
    };
    this.#faults.onDamaged = (folder) => {
      for (const tenant of this.#tenants) tenant.fileWasDamaged(folder);
    };
    this.#faults.onWorkerKilled = ({ name }) => this.#startAgain(name);
  }

  async run(): Promise<RunResult> {
    const onRejection = (error: unknown): void => {
      if (error instanceof Killed) return;
      this.#found(`nobody handled: ${textOf(error)}`);
    };
    process.on('unhandledRejection', onRejection);
    try {
      for (const machine of this.#machines) machine.start();
      for (const tenant of this.#tenants) {
        for (let worker = 0; worker < tenant.plan.workers; worker += tenant.plan.clientSize)
          this.#startClient(tenant, worker);
      }
      this.#planFaults();
      if (this.#options.plans === undefined) this.#visitors.come();
      const isOver = () =>
        this.#violation !== undefined ||
        (this.#tenants.every(({ isDone }) => isDone) && !this.#visitors.isBusy);
      let limitMs = LEFT_MS;
      // Faults that come late give the run more time.
      while (!(await this.#scheduler.runUntil(isOver, limitMs))) {
        const nextMs = this.#faults.healedMs + LEFT_MS;
        if (nextMs <= limitMs) {
          this.#found(this.#whoWaits());
          break;
        }
        limitMs = nextMs;
      }
      this.#compareHashes();
    } finally {
      process.off('unhandledRejection', onRejection);
    }
    for (const one of this.#network.processes) one.kill();
    return {
      ...{ seed: this.#options.seed, violation: this.#violation, trace: this.#scheduler.trace },
      ...{ virtualMs: this.#scheduler.nowMs, events: this.#scheduler.events, tenants: this.#tenants },
      hits: this.#faults.hits,
    };
  }

  #newMachine(name: string, index: number): ServerMachine {
    const machine: ServerMachine = new ServerMachine({
      ...{ name, scheduler: this.#scheduler, network: this.#network, kernels: this.#options.kernels },
      ...{ cores: CORES, port: PORT + index * CORES, faults: this.#faults.of(() => machine) },
      services: () => {
        const visitors = index === 0 ? this.#visitors.tenants : [];
        const tenants = [...this.#tenants, ...visitors].filter(({ plan }) => plan.servers > index);
        return tenants.map((tenant) => tenant.serve());
      },
      onLog: (line) => {
        machine.process.note(line);
        if (line.startsWith('a core failed') && this.#faults.hasEndedCore(machine))
          return this.#repair(machine);
        if (line.startsWith('a core failed') || line.startsWith('a server did not start')) this.#found(line);
      },
    });
    return machine;
  }

  #choosePlans(): TenantPlan[] {
    const { random } = this.#scheduler;
    return ['first', 'second'].map((namespace) => {
      if (namespace === 'first' && this.#options.seed % CLIENTS_EVERY === CLIENTS_EVERY - 1)
        return this.#chooseClients(namespace);
      const kind = KINDS[random.below(KINDS.length)]!;
      // Only in lock step must servers agree on anything.
      const servers = isInLockStep(kind) && random.below(2) === 0 ? 2 : 1;
      return {
        ...{ namespace, kind, servers, workers: random.below(8) === 0 ? 3 : 2, clientSize: 1 },
        ...{ steps: 20 + random.below(2), checkpointEvery: 3 + random.below(5) },
        ...{ sharedMemory: random.below(2) === 0, isKept: true, isOnDisk: random.below(2) === 0 },
        goesOn: random.below(2) === 0,
      };
    });
  }

  /** Two clients of two or three workers. */
  #chooseClients(namespace: string): TenantPlan {
    const { random } = this.#scheduler;
    const kind = CLIENT_KINDS[random.below(CLIENT_KINDS.length)]!;
    const servers = isInLockStep(kind) && random.below(2) === 0 ? 2 : 1;
    const clientSize = CLIENT_SIZES[random.below(4) === 0 ? 1 : 0];
    return {
      ...{ namespace, kind, servers, clientSize, workers: CLIENTS * clientSize },
      ...{ steps: CLIENT_STEPS, checkpointEvery: 2 + random.below(4) },
      ...{ sharedMemory: random.below(2) === 0, isKept: true, isOnDisk: random.below(2) === 0 },
      goesOn: random.below(2) === 0,
    };
  }

  /** Those that the tenant trains on. */
  #machinesOf({ plan }: Tenant): readonly ServerMachine[] {
    return this.#machines.slice(0, plan.servers);
  }

  /** Each is armed when training has come so far. */
  #planFaults(): void {
    const { random } = this.#scheduler;
    const hasClients = this.#tenants.some(({ plan }) => plan.clientSize > 1);
    const least = hasClients ? LEAST_WITH_CLIENTS : LEAST_FAULTS;
    const count = this.#options.faults ?? least + random.below(3);
    const total = this.#tenants.reduce((sum, { plan }) => sum + plan.steps * plan.workers, 0);
    // Some hit before the first step: checkpoint 0, the first logs.
    const isEarly = random.below(3) === 0;
    const due = Array.from({ length: count }, (_, i) =>
      i === 0 && isEarly ? 0 : random.below(Math.floor(total * LATE)),
    ).sort((a, b) => b - a);
    const look = (): void => {
      const progress = this.#tenants.reduce((sum, tenant) => sum + tenant.progress, 0);
      while (due.length > 0 && due.at(-1)! <= progress) {
        due.pop();
        this.#faults.arm();
      }
    };
    const last = (): void => {
      look();
      // What was armed for a point that is passed no more hits nothing.
      const missing = Math.min(count, LEAST_FAULTS) - this.#faults.hits;
      const progress = this.#tenants.reduce((sum, tenant) => sum + tenant.progress, 0);
      if (progress >= LATE * total && missing > 0 && due.length === 0) this.#faults.armOnWire(missing);
    };
    for (const tenant of this.#tenants) tenant.onProgress = last;
    look();
  }

  /** All workers of a client, of which `first` is the first, or a worker alone. */
  #startClient(tenant: Tenant, first: number): void {
    const { namespace, clientSize } = tenant.plan;
    const start = new Start(this.#scheduler, clientSize, (rank) => `${namespace}.${first + rank}`);
    for (let worker = first; worker < first + clientSize; worker++) {
      this.#starts.set(`${namespace}.${worker}`, start);
      this.#startWorker(tenant, worker, start);
    }
  }

  #startWorker(tenant: Tenant, worker: number, start: Start): void {
    const name = `${tenant.plan.namespace}.${worker}`;
    const rank = worker % tenant.plan.clientSize;
    const process = new SimProcess(name, this.#scheduler, this.#network, new Disk());
    const thread = new SimThread(process, true);
    this.#processes.set(name, process);
    const place = {
      ...{ host: thread.host(process.files(NO_FAULTS)), kernels: this.#options.kernels },
      addresses: this.#machinesOf(tenant).map(({ address }) => address),
      note: (what: string) => void (process.isDead || process.note(what)),
      stored: (folder: string) => this.#machinesOf(tenant).map(({ disk }) => disk.list(folder)),
      nowMs: () => this.#scheduler.nowMs,
      isExcused: (error: TributaryError) => this.#isExcused(tenant, worker, error),
      pause: (ms: number) => new Promise<void>((resolve) => thread.clock.after(ms, resolve)),
      meet: (address: MemberAddress['address']) => start.meet(rank, thread, address),
    };
    this.#scheduler.after(this.#scheduler.between(0, 5), thread, () => {
      tenant.work(worker, place).then(
        () => {
          if (process.isDead) return;
          process.note('is done');
          process.kill();
          start.leave(rank, true);
          this.#startAgainIfOver(tenant, worker, start);
        },
        (error: unknown) => {
          if (process.isDead) return;
          if (!(error instanceof TributaryError) || !this.#isExpected(tenant, worker, error)) {
            return this.#found(textOf(error));
          }
          process.note(`fails: ${error.code}: ${error.message}`);
          process.kill();
          const isLost = error.code === 'CHECKPOINT_CORRUPT' || this.#isUneven(tenant, error);
          if (isLost && tenant.beginAnew(error)) this.#startAllAgain(tenant);
          if (isLost || error.code === 'FILE_NOT_WRITTEN')
            this.#machinesOf(tenant).forEach((one) => this.#repair(one));
          this.#startAgain(name);
        },
      );
    });
  }

  /** Whether faults of the machine may lead to the error, and not only faults of the code. */
  #isExpected(tenant: Tenant, worker: number, error: TributaryError): boolean {
    const { wasCut, isLockStep } = tenant;
    const { code, message } = error;
    if (this.#isExcused(tenant, worker, error)) return true;
    if (this.#hasLostMate(tenant, worker, error)) return true;
    // Whoever works for a service that was ended cannot find it.
    if (!tenant.plan.isKept && !this.#visitors.tenants.includes(tenant)) return code === 'REFUSED';
    // Nothing of them is kept; nor of what was trained in a folder that was given up before the
    // server knew.
    if (code === 'PEER_LOST' && message.includes('has kept nothing'))
      return tenant.hasBegunAnew || !tenant.plan.isKept;
    // Pushes that a power cut took with it are pushed no more, and versions may be behind those of
    // checkpoints.
    const isBehind =
      /pushed step .* expected step|cannot be written after it/.test(message) || OVERTAKEN.test(message);
    return (
      wasCut && !isLockStep && (code === 'CHECKPOINT_CORRUPT' || isBehind || this.#isUneven(tenant, error))
    );
  }

  /** Whether it names a mate who is gone, or cannot be reached. */
  #hasLostMate(tenant: Tenant, worker: number, { code, message }: TributaryError): boolean {
    if (code !== 'PEER_LOST' && code !== 'UNREACHABLE') return false;
    const { namespace } = tenant.plan;
    const start = this.#starts.get(`${namespace}.${worker}`)!;
    if (start.names(message, 'lost')) return true;
    return (
      start.names(message, 'any') && this.#faults.hasStruck(['link'], tenant.steppedMs(worker), namespace)
    );
  }

  /**
   * Whether something was broken from which the error follows, since the worker last got something
   * done: not in its last step, whose answers may have been on their way, but since the one before.
   * What is written in the background is reported with the next checkpoint.
   */
  #isExcused(tenant: Tenant, worker: number, { code, message }: TributaryError): boolean {
    const sinceMs = code === 'CHECKPOINT_NOT_WRITTEN' ? tenant.keptMs(worker) : tenant.steppedMs(worker);
    const fitting = CAUSES.filter((one) => one.code === code && (one.text?.test(message) ?? true));
    const causes = fitting.flatMap((one) => one.causes);
    return this.#faults.hasStruck(causes, sinceMs, tenant.plan.namespace);
  }

  /**
   * Cores that have lost more than others leave workers that wait for each other where staleness is
   * bounded.
   */
  #isUneven({ wasCut, plan: { kind } }: Tenant, { code, message }: TributaryError): boolean {
    return wasCut && kind === 'bounded' && code === 'TIMEOUT' && message.includes('has waited');
  }

  /**
   * As whoever looks after the server does when its log cannot be written: looks at the disk, and
   * starts it again.
   */
  #repair(machine: ServerMachine): void {
    if (this.#repairing.has(machine)) return;
    this.#repairing.add(machine);
    this.#scheduler.after(this.#scheduler.between(1000, 4000), undefined, () => {
      this.#repairing.delete(machine);
      this.#faults.startServerAgain(machine);
    });
  }

  #startAllAgain({ plan: { namespace, workers } }: Tenant): void {
    for (let worker = 0; worker < workers; worker++) {
      const name = `${namespace}.${worker}`;
      this.#processes.get(name)?.kill();
      this.#startAgain(name);
    }
  }

  /** As whoever looks after the workers does. */
  #startAgain(name: string): void {
    const [namespace, worker] = name.split('.') as [string, string];
    const tenant = this.#tenants.find(({ plan }) => plan.namespace === namespace);
    if (tenant === undefined) return;
    const start = this.#starts.get(name)!;
    start.leave(Number(worker) % tenant.plan.clientSize, false);
    // Mates who have met hear of it by themselves; the launcher ends those who wait for one who will never come.
    if (!start.hasMet) {
      for (const [mate, one] of this.#starts) {
        if (one !== start || this.#processes.get(mate)!.isDead) continue;
        this.#processes.get(mate)!.kill();
        start.leave(Number(mate.split('.')[1]) % tenant.plan.clientSize, false);
      }
    }
    this.#startAgainIfOver(tenant, Number(worker), start);
  }

  /** Workers of a client start together, when all of them have ended. */
  #startAgainIfOver(tenant: Tenant, worker: number, before: Start): void {
    const { namespace, clientSize } = tenant.plan;
    const first = worker - (worker % clientSize);
    const name = `${namespace}.${first}`;
    if (!before.isOver || tenant.isDone || this.#starting.has(name)) return;
    this.#starting.add(name);
    if (++this.#restarts > MOST_RESTARTS)
      return this.#found(`workers were started again ${MOST_RESTARTS} times`);
    const start = (): void => {
      if (!tenant.isServed) return void this.#scheduler.after(100, undefined, start);
      this.#starting.delete(name);
      if (!tenant.isDone) this.#startClient(tenant, first);
    };
    this.#scheduler.after(this.#scheduler.between(10, 2000), undefined, start);
  }

  #compareHashes(): void {
    const { expectedHash } = this.#options;
    if (this.#violation !== undefined || expectedHash === undefined) return;
    for (const { plan, isLockStep, hashes } of this.#tenants) {
      if (!isLockStep) continue;
      const expected = expectedHash(plan);
      for (const [worker, hash] of hashes) {
        if (hash === expected) continue;
        this.#found(
          `'${plan.namespace}', worker ${worker}: the parameters are not those of an undisturbed run`,
        );
      }
    }
  }

  #whoWaits(): string {
    const open = [...this.#tenants, ...this.#visitors.tenants].filter(({ isDone }) => !isDone);
    const where = open.map(
      ({ plan, acknowledged, progress }) =>
        `'${plan.namespace}' (${plan.kind}, ${acknowledged.join('/')} acknowledged, ${progress} steps begun)`,
    );
    return `not done ${LEFT_MS / 1000} s of virtual time after the last fault: ${where.join(', ')}`;
  }

  #found(what: string): void {
    if (this.#violation !== undefined) return;
    this.#violation = what;
    this.#scheduler.note('FOUND', what);
  }
}

const NO_FAULTS = {
  before: () => undefined,
  after: () => undefined,
  torn: () => undefined,
  failsFlush: () => false,
  taken: (bytes: number) => bytes,
};

function textOf(error: unknown): string {
  return error instanceof Violation ? error.message : String((error as Error).stack ?? error);
}
