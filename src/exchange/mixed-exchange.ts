/**
 * Several ways at once: each gradient goes by its own, all of them side by side. Decides nothing: which parameter takes which way
 * is known to the ways themselves. Invariant: they are started and finished in the same order on all workers.
 */
import type { GradientsElsewhere } from '../runtime/index.ts';
import type { Exchange, OnMessage, RemoteUpdate, SentMessage } from './exchange.ts';

export class MixedExchange implements Exchange {
  readonly #ways: readonly Exchange[];

  /** The first one's groups are those of all. */
  constructor(ways: readonly Exchange[]) {
    this.#ways = ways;
  }

  get groups(): readonly (readonly string[])[] {
    return this.#ways[0]!.groups;
  }

  setGroups(groups: readonly (readonly string[])[]): void {
    for (const way of this.#ways) way.setGroups(groups);
  }

  get fetches(): Exchange['fetches'] {
    const fetched = this.#ways.map((way) => way.fetches);
    return (['pull', 'pull rows', 'wait'] as const).find((one) => fetched.includes(one));
  }

  traceTo(onMessage: OnMessage): void {
    for (const way of this.#ways) way.traceTo(onMessage);
  }

  async prepare(batch: number): Promise<void> {
    for (const way of this.#ways) await way.prepare(batch);
  }

  async prepareRows(batch: number, average?: string): Promise<void> {
    for (const way of this.#ways) await way.prepareRows(batch, average);
  }

  begin(samples: number): void {
    for (const way of this.#ways) way.begin(samples);
  }

  start(group: number): void {
    for (const way of this.#ways) way.start(group);
  }

  async finish(): Promise<GradientsElsewhere> {
    // All is on its way already: whichever is waited for, the others go on.
    const elsewhere: GradientsElsewhere[] = [];
    for (const way of this.#ways) elsewhere.push(await way.finish());
    return {
      names: new Set(elsewhere.flatMap(({ names }) => [...names])),
      sumOfSquares: elsewhere.reduce((sum, one) => sum + one.sumOfSquares, 0),
    };
  }

  get lastMessages(): readonly SentMessage[] {
    return this.#ways.flatMap((way) => way.lastMessages);
  }

  apply(update: RemoteUpdate): void {
    for (const way of this.#ways) way.apply(update);
  }

  get remoteTables(): Exchange['remoteTables'] {
    return new Map(this.#ways.flatMap((way) => [...way.remoteTables]));
  }

  async fetchAll(average?: string): Promise<void> {
    for (const way of this.#ways) await way.fetchAll(average);
  }

  async fetchState(): Promise<void> {
    for (const way of this.#ways) await way.fetchState();
  }

  async close(): Promise<void> {
    for (const way of this.#ways) await way.close();
  }

  async abort(): Promise<void> {
    await Promise.allSettled(this.#ways.map((way) => way.abort()));
  }
}
