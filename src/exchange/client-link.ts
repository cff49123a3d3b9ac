/**
 * The workers of a client among themselves: the first one does something for all of them, and the
 * others learn what came of it. Knows no servers. Invariants: what fails on the first worker fails
 * on all with the same error; nobody waits for values that will not come; waiting for the first
 * worker has no deadline, since it may wait for other clients.
 */
import { pack, unpack, type PackedError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import type { Region } from '../memory/index.ts';
import type { SomeWorkers } from './agreement.ts';

export class ClientLink {
  readonly workers: SomeWorkers & { readonly index: number };
  readonly #thread: CommunicationThread;
  /** Bytes of the error; 0: there is none. */
  readonly #words: Region<'int32'>;

  constructor(thread: CommunicationThread, workers: SomeWorkers & { readonly index: number }) {
    this.#thread = thread;
    this.workers = workers;
    this.#words = thread.allocate('int32', 1);
  }

  get isFirst(): boolean {
    return this.workers.index === 0;
  }

  /** All workers of the client call it; only the first acts. */
  async lead(act: () => Promise<unknown>): Promise<void> {
    if (this.workers.size === 1) return void (await act());
    if (!this.isFirst) return this.#follow();
    let failure: unknown;
    try {
      await act();
    } catch (error) {
      failure = error;
    }
    const text = Buffer.from(failure === undefined ? '' : JSON.stringify(pack(failure)));
    this.#words.view[0] = text.length;
    try {
      await this.#broadcast(this.#words, true);
      if (text.length > 0) await this.#tell(text);
    } catch (error) {
      // If the others cannot be told any more, they have an error already; this one is the cause.
      throw failure ?? error;
    }
    if (failure !== undefined) throw failure as Error;
  }

  /** The first worker's values are those of all. */
  async share(regions: readonly Region[]): Promise<void> {
    if (this.workers.size === 1) return;
    const { group } = this.workers;
    const handles = regions
      .filter(({ length }) => length > 0)
      .map((region) => this.#thread.broadcast(region, { group }));
    for (const handle of handles) await handle;
  }

  async close(): Promise<void> {
    await this.#thread.free(this.#words);
  }

  async #follow(): Promise<void> {
    await this.#broadcast(this.#words, true);
    const bytes = this.#words.view[0]!;
    if (bytes === 0) return;
    const text = await this.#tell(Buffer.alloc(bytes));
    throw unpack(JSON.parse(text) as PackedError);
  }

  async #tell(text: Buffer): Promise<string> {
    const region = this.#thread.allocate('uint8', text.length);
    region.view.set(text);
    await this.#broadcast(region, false);
    const told = Buffer.from(region.view).toString();
    await this.#thread.free(region);
    return told;
  }

  async #broadcast(region: Region, isPatient: boolean): Promise<void> {
    await this.#thread.broadcast(region, {
      ...{ group: this.workers.group, isPatient, name: 'what came of the exchange with the servers' },
    });
  }
}
