/**
 * The quick lane of a group on one host: an allreduce without messages. Ranks count themselves in at a shared word; if all
 * come within some microseconds, each has said in its slot what it called and where its vector is, and the sum follows at
 * once. Otherwise the operation is closed for the lane and takes the ordinary way, where calls that differ, ranks that are
 * late and ranks that die are dealt with. Invariants: all ranks agree which way an operation goes; a slot is
 * written again only after all ranks have finished with the last operation that met in it.
 */
import { PeerError } from '../../base/index.ts';
import type { Group } from '../../cluster/index.ts';
import { yieldProcessor } from '../../memory/index.ts';
import type { Region, Segment } from '../../memory/index.ts';
import { alignedPart, cut } from '../parts.ts';
import type { Reduction } from '../reduction.ts';
import { arrive, close, countOf } from './arrivals.ts';
import {
  arrivedWord,
  doneWord,
  PARITIES,
  PAYLOAD_BYTES,
  payloadOffset,
  SlotWord,
  slotWord,
} from './layout.ts';
import { LaneWatch } from './lane-watch.ts';
import type { LaneLimits } from './lane-watch.ts';
import { LentSegments } from './lent-segments.ts';

/** How long a rank waits for the others before it closes the lane for an operation, in milliseconds. */
const PATIENCE_MS = 0.1;
/** The same where ranks share processors: somebody may have to be given the processor first. */
const YIELDING_PATIENCE_MS = 2;
/** How much longer where looking on costs nobody a processor, and nothing else waits to be driven. */
const FREE_PATIENCE_MS = 20;
const ROUNDS_A_YIELD = 4;
const ROUNDS_A_LOOK = 128;
const FAILED = -1;

export class Lane {
  readonly #group: Group;
  readonly #segment: Segment;
  readonly #words: Int32Array;
  readonly #doubles: Float64Array;
  readonly #lent: LentSegments;
  /** The last operation that met in the slots of each parity. */
  readonly #lastMet: number[] = Array.from({ length: PARITIES }, () => -1);
  /** This rank could not map a peer's memory; from then on it stays out of the lane. */
  #failed = false;
  /** Payload regions by parity and rank for the type and length of the last operation. */
  #payloads: Region[][] = [];

  constructor(group: Group, segment: Segment) {
    this.#group = group;
    this.#segment = segment;
    this.#words = segment.region('int32', 0, segment.byteLength >> 2).view;
    this.#doubles = segment.region('float64', 0, segment.byteLength >> 3).view;
    this.#lent = new LentSegments(segment.space, this.#words, group.rank);
  }

  /**
   * This operation goes the ordinary way: whoever waits in the lane need not. While somebody may still look for an older
   * operation in the same word, the word is left alone; those who come then run out of patience by themselves.
   */
  decline(sequence: number): void {
    const parity = sequence % PARITIES;
    if (!this.#slotIsFree(parity)) return;
    close(this.#words, arrivedWord(parity), sequence, this.#group.size);
  }

  /** Sums the vectors of all ranks; false if the operation has to go the ordinary way, with nothing changed. */
  allReduce(
    sequence: number,
    signature: number,
    vector: Region,
    weight: number,
    reduction: Reduction,
    limits: LaneLimits = {},
  ): boolean {
    const short = vector.byteLength <= PAYLOAD_BYTES;
    const segment = short ? undefined : vector.space.segmentAt(vector);
    const parity = sequence % PARITIES;
    if (this.#failed || (!short && segment === undefined) || !this.#slotIsFree(parity)) {
      this.decline(sequence);
      return false;
    }
    this.#publish(parity, signature, weight, vector, segment, reduction);
    if (!this.#meet(parity, sequence)) return false;
    this.#lastMet[parity] = sequence;
    if (!this.#agree(parity, signature)) {
      this.#finish(sequence);
      return false;
    }
    if (short) this.#sumPayloads(parity, vector, reduction, sequence);
    else this.#sumInPlace(parity, vector, reduction, sequence, limits);
    return true;
  }

  close(): void {
    this.#lent.close();
    this.#segment.close();
  }

  /** Whether all ranks have finished with the last operation that met in these slots. */
  #slotIsFree(parity: number): boolean {
    const last = this.#lastMet[parity]!;
    for (let rank = 0; rank < this.#group.size; rank++) {
      if (Atomics.load(this.#words, doneWord(rank)) <= last) return false;
    }
    return true;
  }

  /** This rank reads the slots of the operation no more. The word counts from 1: 0 is no operation. */
  #finish(sequence: number): void {
    Atomics.store(this.#words, doneWord(this.#group.rank), sequence + 1);
  }

  #publish(
    parity: number,
    signature: number,
    weight: number,
    vector: Region,
    segment: Segment | undefined,
    reduction: Reduction,
  ): void {
    const { rank } = this.#group;
    const at = slotWord(rank, parity);
    this.#words[at + SlotWord.SIGNATURE] = signature;
    this.#doubles[(at + SlotWord.WEIGHT) >> 1] = weight;
    if (segment === undefined) {
      reduction.kernels.copy(this.#payloadsFor(vector)[parity]![rank]!, vector);
      return;
    }
    const index = this.#lent.indexOf(segment);
    this.#words[at + SlotWord.SEGMENT] = index;
    this.#words[at + SlotWord.VERSION] = this.#lent.versionOf(index);
    this.#words[at + SlotWord.OFFSET] = segment.offsetOf(vector);
  }

  /** Waits a little for all ranks; false if the lane was closed for the operation. */
  #meet(parity: number, sequence: number): boolean {
    const words = this.#words;
    const at = arrivedWord(parity);
    const { size, progress } = this.#group;
    if (!arrive(words, at, sequence)) return false;
    const complete = countOf(sequence, size);
    const patienceMs = progress.yieldsWhileSpinning ? YIELDING_PATIENCE_MS : PATIENCE_MS;
    let deadlineMs = 0;
    for (let round = 1; Atomics.load(words, at) !== complete; round++) {
      if (progress.yieldsWhileSpinning && round % ROUNDS_A_YIELD === 0 && !progress.mayKeepLooking())
        yieldProcessor();
      if (round % ROUNDS_A_LOOK !== 0) continue;
      const nowMs = performance.now();
      if (deadlineMs === 0) deadlineMs = nowMs + patienceMs;
      if (nowMs < deadlineMs) continue;
      const isFree = progress.inFlight.length === 0 && progress.mayKeepLooking();
      if (isFree && nowMs < deadlineMs + FREE_PATIENCE_MS) continue;
      if (close(words, at, sequence, size)) return false;
    }
    return true;
  }

  /** All ranks read the same slots, so all come to the same answer. */
  #agree(parity: number, signature: number): boolean {
    for (let rank = 0; rank < this.#group.size; rank++) {
      if (this.#words[slotWord(rank, parity) + SlotWord.SIGNATURE] !== (signature | 0)) return false;
    }
    return true;
  }

  #totalWeight(parity: number): number {
    let total = 0;
    for (let rank = 0; rank < this.#group.size; rank++) {
      total += this.#doubles[(slotWord(rank, parity) + SlotWord.WEIGHT) >> 1]!;
    }
    return total;
  }

  #sumPayloads(parity: number, vector: Region, reduction: Reduction, sequence: number): void {
    reduction.combine(vector, this.#payloadsFor(vector)[parity]!);
    const total = this.#totalWeight(parity);
    this.#finish(sequence);
    reduction.finish(vector, total);
  }

  #payloadsFor({ dtype, length }: Region): Region[][] {
    const known = this.#payloads[0]?.[0];
    if (known?.dtype !== dtype || known.length !== length) {
      this.#payloads = Array.from({ length: PARITIES }, (_, parity) =>
        Array.from({ length: this.#group.size }, (_, rank) =>
          this.#segment.region(dtype, payloadOffset(rank, parity), length),
        ),
      );
    }
    return this.#payloads;
  }

  #sumInPlace(
    parity: number,
    vector: Region,
    reduction: Reduction,
    sequence: number,
    limits: LaneLimits,
  ): void {
    const { size, rank } = this.#group;
    const part = alignedPart(vector.length, size, rank);
    try {
      const pieces: Region[] = [];
      for (let other = 0; other < size; other++) {
        pieces.push(cut(other === rank ? vector : this.#borrow(other, parity, vector), part));
      }
      if (part.length > 0) {
        reduction.combineToAll(pieces, this.#totalWeight(parity), size * vector.byteLength);
      }
    } catch (error) {
      this.#failed = true;
      Atomics.store(this.#words, doneWord(rank), FAILED);
      throw error;
    }
    this.#finish(sequence);
    for (let other = 0; other < size; other++) this.#waitUntilDone(other, sequence, limits);
  }

  #borrow(rank: number, parity: number, { dtype, length }: Region): Region {
    const at = slotWord(rank, parity);
    const index = this.#words[at + SlotWord.SEGMENT]!;
    const version = this.#words[at + SlotWord.VERSION]!;
    const offset = this.#words[at + SlotWord.OFFSET]!;
    return this.#lent.regionOf(rank, index, version, dtype, offset, length);
  }

  /** All ranks are in the operation: only one that died or was stopped can keep the others waiting. */
  #waitUntilDone(rank: number, sequence: number, limits: LaneLimits): void {
    const { progress } = this.#group;
    let watch: LaneWatch | undefined;
    for (let round = 1; ; round++) {
      const done = Atomics.load(this.#words, doneWord(rank));
      if (done > sequence) return;
      if (done === FAILED) throw this.#unmapped(rank);
      if (progress.yieldsWhileSpinning && round % ROUNDS_A_YIELD === 0) yieldProcessor();
      if (round % (64 * ROUNDS_A_LOOK) !== 0) continue;
      watch ??= new LaneWatch(this.#group, rank, limits);
      const error = watch.look();
      if (!error) continue;
      // It may have finished, and left, while we looked.
      if (Atomics.load(this.#words, doneWord(rank)) > sequence) return;
      this.#failed = true;
      Atomics.store(this.#words, doneWord(this.#group.rank), FAILED);
      throw error;
    }
  }

  #unmapped(rank: number): PeerError {
    return new PeerError(
      'PROTOCOL_VIOLATION',
      `${this.#group.title(rank)} could not map the memory of group ${this.#group.id}; look at its own error, and form the group anew with cluster.regroup()`,
      { group: this.#group.id, rank },
    );
  }
}
