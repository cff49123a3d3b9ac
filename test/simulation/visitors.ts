/**
 * Tenants of a simulated run that come and go: services that end while their worker pushes. One
 * whose push has come to a core that is about to be held up ends meanwhile, and memory is taken
 * that others have given back: a core that is late must not write there. They check their own
 * counts like all tenants.
 */
import type { SharedSpace } from '../../src/memory/index.ts';
import type { Faults } from './faults.ts';
import type { Network } from './network.ts';
import type { Scheduler } from './scheduler.ts';
import type { ServerMachine } from './server-machine.ts';
import { Tenant, Violation } from './tenant.ts';

/** A core that is to be held up waits no longer for a push to come. */
const PATIENCE_MS = 200;
/** After the end of a service, memory is taken between these. */
const [EARLIEST_MS, LATEST_MS] = [900, 1100];
/** When no core is held up any more. */
const OVER_MS = 3100;
/** Taken page by page, so that all gaps are filled. */
const PAGES = 64;
const PAGE_BYTES = 64 * 1024;
const PATTERN = 0xa5;

export interface VisitorOptions {
  readonly scheduler: Scheduler;
  readonly network: Network;
  readonly space: SharedSpace;
  readonly machine: () => ServerMachine;
  readonly faults: Faults;
  readonly startWorker: (tenant: Tenant) => void;
  readonly onViolation: (violation: Violation) => void;
}

export class Visitors {
  readonly #options: VisitorOptions;
  /** Whose services have not ended. */
  readonly #present = new Set<Tenant>();
  #looksLater = 0;
  #count = 0;

  constructor(options: VisitorOptions) {
    this.#options = options;
    options.faults.beforeHoldUp = () => this.#prepare();
  }

  get tenants(): readonly Tenant[] {
    return [...this.#present];
  }

  /** Whether it is still to be seen if memory that was given back is written to. */
  get isBusy(): boolean {
    return this.#looksLater > 0;
  }

  /** One comes, and goes soon. */
  come(): void {
    const { scheduler } = this.#options;
    this.#whenServed(() => {
      const visitor = this.#invite(50);
      scheduler.after(scheduler.between(1, 40), undefined, () => this.#end(visitor));
    });
  }

  #prepare(): void {
    const { scheduler, network, faults } = this.#options;
    this.#whenServed(() => {
      const visitor = this.#invite(200);
      const latestMs = scheduler.nowMs + PATIENCE_MS;
      faults.mayHoldUp = ({ process }) =>
        scheduler.nowMs > latestMs ||
        (visitor.acknowledged[0]! > 0 && network.hasUnread(process, `${visitor.plan.namespace}.0`));
      faults.onHeldUp = () => {
        scheduler.after(scheduler.between(0, 2), undefined, () => this.#end(visitor));
        this.#takeWhatIsFree();
      };
    });
  }

  #takeWhatIsFree(): void {
    const { scheduler, space, onViolation } = this.#options;
    this.#looksLater++;
    const takenMs = scheduler.between(EARLIEST_MS, LATEST_MS);
    scheduler.after(takenMs, undefined, () => {
      const taken = Array.from({ length: PAGES }, () => space.allocate(PAGE_BYTES));
      const pages = taken.map((segment) => segment.allocate('uint8', PAGE_BYTES).view.fill(PATTERN));
      scheduler.after(OVER_MS - takenMs, undefined, () => {
        this.#looksLater--;
        const isWritten = pages.some((page) => page.some((byte) => byte !== PATTERN));
        for (const segment of taken) segment.close();
        if (isWritten) onViolation(new Violation('memory was written to by one who had given it back'));
      });
    });
  }

  #whenServed(act: () => void): void {
    const { scheduler, machine } = this.#options;
    const { server, process } = machine();
    if (server !== undefined && server.failure === undefined && !process.isDead) return act();
    scheduler.after(50, undefined, () => this.#whenServed(act));
  }

  #invite(steps: number): Tenant {
    const { scheduler, machine, startWorker } = this.#options;
    const tenant = new Tenant(
      {
        ...{ namespace: `visitor-${this.#count++}`, kind: 'asynchronous', workers: 1, steps },
        ...{ checkpointEvery: Infinity, sharedMemory: scheduler.random.below(2) === 0, servers: 1 },
        ...{ isKept: false, isOnDisk: false, goesOn: false },
      },
      scheduler.randomHex(32),
    );
    this.#present.add(tenant);
    machine().server!.createService(tenant.serve());
    startWorker(tenant);
    return tenant;
  }

  #end(tenant: Tenant): void {
    const { server, process } = this.#options.machine();
    if (!this.#present.delete(tenant) || server === undefined || process.isDead) return;
    process.note(`ends the service '${tenant.plan.namespace}'`);
    server.endService(tenant.plan.namespace);
  }
}
