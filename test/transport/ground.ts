/**
 * One scenario's view of an endpoint: its own group number, its peers, and shorthands for sending content that the
 * receiver can compute as well. Not a scenario. Invariant: two scenarios never share a group, so that what one left
 * behind cannot complete a receive of another.
 */
import { expect } from 'vitest';
import type { DType, Region } from '../../src/memory/index.ts';
import type { Envelope, Receiving, Transfer, Transport } from '../../src/transport/index.ts';
import type { Endpoint } from './endpoint.ts';

export const DTYPES: readonly DType[] = ['float32', 'float64', 'int32', 'uint32', 'uint8', 'uint16', 'int64'];
const SIGNATURE = 0x9abcdef0;

export type Place = Partial<Omit<Envelope, 'group'>>;

/** One scenario's view of an endpoint: its group, its peers and a few shorthands. */
export class Ground {
  readonly endpoint: Endpoint;
  readonly transport: Transport;
  readonly group: number;
  readonly peers: readonly number[];
  #meetings = 0;

  constructor(endpoint: Endpoint, group: number) {
    this.endpoint = endpoint;
    this.transport = endpoint.transport;
    this.group = group;
    this.peers = Array.from({ length: endpoint.size }, (_, rank) => rank).filter((r) => r !== endpoint.rank);
  }

  get rank(): number {
    return this.endpoint.rank;
  }

  envelope(place: Place = {}): Envelope {
    return {
      group: this.group,
      tag: 0,
      sequence: 0,
      step: 0,
      signature: SIGNATURE,
      weight: 1,
      ...place,
    };
  }

  until(condition: () => boolean): Promise<void> {
    return this.endpoint.until(condition);
  }

  allDone(transfers: readonly Transfer[]): Promise<void> {
    return this.until(() => transfers.every((transfer) => transfer.done));
  }

  /** A region whose content only `from`, `to` and `salt` decide, so that the receiver can compute it as well. */
  filled(from: number, to: number, salt: number, dtype: DType, length: number): Region {
    const region = this.endpoint.allocate(dtype, length);
    fill(region, contentSeed(from, to, salt));
    return region;
  }

  send(to: number, place: Place, salt: number, dtype: DType, length: number): Transfer {
    return this.transport.send(to, this.envelope(place), this.filled(this.rank, to, salt, dtype, length));
  }

  receive(from: number, place: Place, dtype: DType, length: number): Receiving {
    return this.transport.receive(from, this.envelope(place), this.endpoint.allocate(dtype, length));
  }

  /** The receive is done and holds what `from` sent with this salt; releases it. */
  check(receiving: Receiving, salt: number, weight = 1): void {
    expect(receiving.done).toBe(true);
    expect(receiving.weight).toBe(weight);
    const at = differenceAt(receiving.region, contentSeed(receiving.peer, this.rank, salt));
    expect(at, `byte of message ${salt} from rank ${receiving.peer} that differs`).toBe(-1);
    receiving.release();
  }

  /** Returns when all ranks are here and everything this rank started has ended. */
  async meet(): Promise<void> {
    const place = { tag: 0xffffffff, sequence: this.#meetings++ };
    const receives = this.peers.map((peer) => this.receive(peer, place, 'uint8', 0));
    const sends = this.peers.map((peer) => this.send(peer, place, 0, 'uint8', 0));
    await this.allDone([...receives, ...sends]);
    for (const receiving of receives) receiving.release();
  }
}

export function contentSeed(from: number, to: number, salt: number): number {
  return (from * 7 + to * 13 + salt * 31 + 1) | 0;
}

function bytesOf(region: Region): Uint8Array {
  return new Uint8Array(region.space.buffer, region.byteOffset, region.byteLength);
}

export function fill(region: Region, seed: number): void {
  const bytes = bytesOf(region);
  for (let i = 0, value = seed; i < bytes.length; i++) bytes[i] = value = Math.imul(value, 75) + 74;
}

/** First byte that is not what `fill` writes, or -1. */
function differenceAt(region: Region, seed: number): number {
  const bytes = bytesOf(region);
  for (let i = 0, value = seed; i < bytes.length; i++) {
    value = (Math.imul(value, 75) + 74) & 0xff;
    if (bytes[i] !== value) return i;
  }
  return -1;
}
