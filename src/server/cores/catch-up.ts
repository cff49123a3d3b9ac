/**
 * Requests of one session that need rows of tables up to date: that goes first, in the tenant's turns if it takes long, and
 * nothing else is done for the tenant meanwhile, so that nobody adds to what is missing. Training may have to go back
 * since: who acts looks. What a row has missed is the core's business. Invariant: a request is carried out or dropped, once; it is dropped when its connection ends.
 */
import type { TributaryError } from '../../base/index.ts';
import type { Tenant } from './tenant.ts';

export interface CatchUpHost {
  readonly tenant: Tenant;
  /** Acts; answers the request by an error if that throws. */
  attempt(id: number, act: () => void): void;
  refuse(id: number, error: TributaryError): void;
}

const ignore = (): void => undefined;

export class CatchUp {
  readonly #host: CatchUpHost;
  #hasEnded = false;

  constructor(host: CatchUpHost) {
    this.#host = host;
  }

  /** Acts when rows of a piece, all without indices, have the updates that they missed. `dropped`: called if it never does. */
  before(
    id: number,
    { piece, indices }: { readonly piece: string; readonly indices?: Int32Array },
    act: () => void,
    dropped = ignore,
  ): void {
    const parts = this.#host.tenant.core.catchUp(piece, indices);
    if (parts === undefined) act();
    // What waited for others, where nobody waits any more.
    else if (this.#hasEnded) dropped();
    else this.#after(parts, id, act, dropped);
  }

  /** Acts when that of all tables can be applied which is held. */
  beforeApply(id: number, act: () => void): void {
    this.#after(this.#host.tenant.core.catchUpAll(true), id, act, ignore);
  }

  /** The connection has ended. */
  end(): void {
    this.#hasEnded = true;
    this.#host.tenant.work.drop(this);
  }

  #after(parts: Iterator<void, void>, id: number, act: () => void, dropped: () => void): void {
    const { tenant } = this.#host;
    const steps: Iterator<void, void> = {
      next: () => parts.next(),
      return: () => {
        dropped();
        return { done: true, value: undefined };
      },
    };
    const then = () => this.#host.attempt(id, act);
    const failed = (error: TributaryError) => {
      dropped();
      this.#host.refuse(id, error);
    };
    tenant.work.run(steps, then, failed, this);
  }
}
