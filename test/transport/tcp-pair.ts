/**
 * TCP transports of one process for tests: made, connected and closed together, with what they were told. Not for
 * speed. Invariant: `close` leaves no descriptor behind.
 */
import { SharedSpace } from '../../src/memory/index.ts';
import type { Region } from '../../src/memory/index.ts';
import type { Host } from '../../src/sockets/index.ts';
import type { Envelope, MemberAddress, Receiving } from '../../src/transport/index.ts';
import type { TcpOptions } from '../../src/transport/tcp/options.ts';
import { createTcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import type { TcpTransport } from '../../src/transport/tcp/tcp-transport.ts';
import { recordEvents } from './conformance.ts';
import type { Told } from './conformance.ts';
import { SECRET } from '../support/secrets.ts';

export { SECRET };
const DEADLINE_MS = 20_000;

export interface End {
  readonly transport: TcpTransport;
  readonly space: SharedSpace;
  readonly told: Told;
  readonly lines: string[];
}

export async function openEnd(options: Partial<TcpOptions> = {}, machine?: Host): Promise<End> {
  const space = SharedSpace.create({ maxBytes: 128 * 2 ** 20 });
  const lines: string[] = [];
  const log = (line: string): void => void lines.push(line);
  const transport = await createTcpTransport({ space, secret: SECRET, log, ...options }, machine);
  const { told, events } = recordEvents();
  transport.listen(events);
  return { transport, space, told, lines };
}

/** Members 0, 1, ... all connected to one another. */
export async function openEnds(count: number, options: Partial<TcpOptions> = {}): Promise<End[]> {
  const ends: End[] = [];
  for (let i = 0; i < count; i++) ends.push(await openEnd(options));
  const members = ends.map(({ transport }, member) => memberAddress(member, transport));
  await Promise.all(
    ends.map(({ transport }, self) =>
      transport.connect(
        self,
        members.filter(({ member }) => member !== self),
      ),
    ),
  );
  return ends;
}

export function memberAddress(
  member: number,
  { address }: { readonly address: MemberAddress['address'] },
): MemberAddress {
  return { member, title: `member ${member} of the test`, host: 'here', address };
}

/** Polls all until the condition holds. */
export async function until(ends: readonly End[], condition: () => boolean): Promise<void> {
  const deadline = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`waited ${DEADLINE_MS} ms in vain`);
    for (const { transport } of ends) transport.poll();
    await new Promise(setImmediate);
  }
}

export async function closeEnds(ends: readonly End[]): Promise<void> {
  await Promise.all(ends.map(({ transport }) => transport.close()));
}

export function envelope(place: Partial<Envelope> = {}): Envelope {
  return { group: 1, tag: 1, sequence: 0, step: 0, signature: 7, weight: 1, ...place };
}

/** A pair that exchanges data until it is stopped, and tells how often it did. */
export class RunningPair {
  readonly ends: readonly End[];
  readonly #regions: Region<'int32'>[][];
  #exchange: { round: number; receives: Receiving[]; sends: { done: boolean }[] } | undefined;
  rounds = 0;

  constructor(ends: readonly End[]) {
    this.ends = ends;
    this.#regions = ends.map(({ space }) => {
      const segment = space.allocate(2 * 2 ** 20);
      return [segment.allocate('int32', 50_000), segment.allocate('int32', 50_000)];
    });
  }

  /** Moves on by a poll of each side; throws if anything came that was not sent. */
  step(): void {
    this.#exchange ??= this.#start();
    for (const { transport, told } of this.ends) {
      transport.poll();
      const lost = told.lost.find(({ peer }) => peer < this.ends.length);
      if (lost) throw lost.error;
    }
    const { round, receives, sends } = this.#exchange;
    if (![...receives, ...sends].every(({ done }) => done)) return;
    for (const { region } of receives) {
      if (region.view[0] !== round || region.view[49_999] !== round) throw new Error('wrong data came');
    }
    this.rounds++;
    this.#exchange = undefined;
  }

  /** Goes on until `rounds` more exchanges are complete. */
  async run(rounds: number): Promise<void> {
    const goal = this.rounds + rounds;
    await until([], () => {
      this.step();
      return this.rounds >= goal;
    });
  }

  #start(): { round: number; receives: Receiving[]; sends: { done: boolean }[] } {
    const round = this.rounds;
    const place = envelope({ group: 99, sequence: round });
    for (const [from] of this.#regions) from!.view.fill(round);
    return {
      round,
      receives: this.ends.map(({ transport }, i) => transport.receive(1 - i, place, this.#regions[i]![1]!)),
      sends: this.ends.map(({ transport }, i) => transport.send(1 - i, place, this.#regions[i]![0]!)),
    };
  }
}
