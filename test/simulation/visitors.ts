/**
 * Tenants of a simulated run that come and go: services that end while their worker pushes. When a core is about to be held up,
 * one pushes and another is connected and waits: the first one's service ends while the core is held up, and the other one
 * takes memory later, which must not be what the core still uses. They check their own counts like all tenants.
 */
import type { Faults } from './faults.ts';
import type { Scheduler } from './scheduler.ts';
import type { ServerMachine } from './server-machine.ts';
import { Tenant } from './tenant.ts';

/** A core that is to be held up waits no longer for those who are to suffer from it. */
const PATIENCE_MS = 200;

export class Visitors {
  readonly #scheduler: Scheduler;
  readonly #machine: () => ServerMachine;
  readonly #startWorker: (tenant: Tenant) => void;
  /** Whose services have not ended. */
  readonly #present = new Set<Tenant>();
  /** The one that takes memory after another one's service has ended. */
  #heir: Tenant | undefined;
  /** Names of those whose worker has ended. */
  readonly #failed = new Set<string>();
  #count = 0;

  constructor(
    scheduler: Scheduler,
    machine: () => ServerMachine,
    faults: Faults,
    startWorker: (tenant: Tenant) => void,
  ) {
    this.#scheduler = scheduler;
    this.#machine = machine;
    this.#startWorker = startWorker;
    faults.beforeHoldUp = () => this.#prepare(faults);
  }

  get tenants(): readonly Tenant[] {
    return [...this.#present];
  }

  /** Whether somebody is about to look whether its memory is its own. */
  get isBusy(): boolean {
    const heir = this.#heir;
    return (
      heir !== undefined && this.#present.has(heir) && !heir.isDone && !this.#failed.has(heir.plan.namespace)
    );
  }

  /** One comes, and goes soon. */
  come(): void {
    this.#whenServed(() => {
      const visitor = this.#invite(50);
      this.#scheduler.after(this.#scheduler.between(1, 40), undefined, () => this.#end(visitor));
    });
  }

  /** Nobody works for it any more. */
  failed(namespace: string): void {
    this.#failed.add(namespace);
  }

  #prepare(faults: Faults): void {
    const scheduler = this.#scheduler;
    this.#whenServed(() => {
      const first = this.#invite(200);
      const heir = this.#invite(5);
      heir.mayBegin = () => false;
      const latestMs = scheduler.nowMs + PATIENCE_MS;
      faults.mayHoldUp = () => scheduler.nowMs > latestMs || (first.acknowledged[0]! > 0 && heir.isConnected);
      faults.onHeldUp = () => {
        scheduler.after(scheduler.between(0, 2), undefined, () => this.#end(first));
        this.#heir = heir;
        const beginsMs = scheduler.nowMs + scheduler.between(1000, 1500);
        heir.mayBegin = () => scheduler.nowMs >= beginsMs;
      };
    });
  }

  #whenServed(act: () => void): void {
    const { server, process } = this.#machine();
    if (server !== undefined && server.failure === undefined && !process.isDead) return act();
    this.#scheduler.after(50, undefined, () => this.#whenServed(act));
  }

  #invite(steps: number): Tenant {
    const { random } = this.#scheduler;
    const tenant = new Tenant(
      {
        ...{ namespace: `visitor-${this.#count++}`, kind: 'asynchronous', workers: 1, steps },
        ...{
          checkpointEvery: Infinity,
          sharedMemory: random.below(2) === 0,
          servers: 1,
          isKept: false,
          isOnDisk: false,
          goesOn: false,
        },
      },
      this.#scheduler.randomHex(32),
    );
    this.#present.add(tenant);
    this.#machine().server!.createService(tenant.serve());
    this.#startWorker(tenant);
    return tenant;
  }

  #end(tenant: Tenant): void {
    const { server, process } = this.#machine();
    if (!this.#present.delete(tenant) || server === undefined || process.isDead) return;
    process.note(`ends the service '${tenant.plan.namespace}'`);
    server.endService(tenant.plan.namespace);
  }
}
