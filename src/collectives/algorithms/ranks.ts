/**
 * The ranks that an algorithm runs among, which may be fewer than the group: one host, or the first rank of each.
 * Positions count within the list. Invariant: every rank of the list runs the same algorithm with the same list and the
 * same range of steps.
 */
import type { Kernels } from '../../kernels/index.ts';
import type { Region } from '../../memory/index.ts';
import type { Operation, Steps } from '../../progress/index.ts';
import type { InPlace, Receiving, Transfer } from '../../transport/index.ts';

/** The ranks 0 to n - 1 at index n: lists that never change need not be made for every call. */
const everyone: (readonly number[])[] = [];

export class Ranks {
  readonly operation: Operation;
  readonly size: number;
  /** This rank's position in the list. */
  readonly position: number;
  readonly #ranks: readonly number[];
  readonly #firstStep: number;

  constructor(operation: Operation, ranks: readonly number[], firstStep = 0) {
    this.operation = operation;
    this.#ranks = ranks;
    this.size = ranks.length;
    this.position = ranks.indexOf(operation.group.rank);
    this.#firstStep = firstStep;
  }

  static all(operation: Operation): Ranks {
    const { size } = operation.group;
    while (everyone.length <= size) everyone.push(Array.from({ length: everyone.length }, (_, rank) => rank));
    return new Ranks(operation, everyone[size]!);
  }

  get areOnOneHost(): boolean {
    const { hosts, rank: own } = this.operation.group;
    return this.#ranks.every((rank) => hosts[rank] === hosts[own]);
  }

  /** Memory of the others in place, if all ranks of the list are on one host and the transport can. */
  get inPlace(): InPlace | undefined {
    return this.areOnOneHost ? this.operation.transport.inPlace : undefined;
  }

  /** The same ranks with steps of their own, for a part of the work that runs beside others. */
  withSteps(firstStep: number): Ranks {
    return new Ranks(this.operation, this.#ranks, this.#firstStep + firstStep);
  }

  rankAt(position: number): number {
    return this.#ranks[((position % this.size) + this.size) % this.size]!;
  }

  memberAt(position: number): number {
    return this.operation.group.members[this.rankAt(position)]!;
  }

  send(position: number, step: number, region: Region, weight = 1): Transfer {
    return this.operation.send(this.rankAt(position), this.#firstStep + step, region, weight);
  }

  receive(position: number, step: number, into: Region): Receiving {
    return this.operation.receive(this.rankAt(position), this.#firstStep + step, into);
  }

  envelope(step: number, weight: number): ReturnType<Operation['envelope']> {
    return this.operation.envelope(this.#firstStep + step, weight);
  }

  /** Receives so that the bytes end in `into` itself. */
  *fetch(position: number, step: number, into: Region, kernels: Kernels): Steps {
    const incoming = this.receive(position, step, into);
    yield incoming;
    settle(incoming, into, kernels);
  }
}

/** Puts a payload where it was wanted, if the transport showed it elsewhere, and lets go of it. */
export function settle(incoming: Receiving, into: Region, kernels: Kernels): void {
  if (incoming.region.byteOffset !== into.byteOffset && into.length > 0) kernels.copy(into, incoming.region);
  incoming.release();
}
