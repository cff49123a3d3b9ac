/**
 * Who of a tenant's workers is counted, who is here, and who is awaited. It knows no keys. Invariants: the workers
 * that a tenant begins with are counted from the start; one that is lost stays counted until it says goodbye or its
 * time is up, and for ever where training waits for it to be started again.
 */
import type { Service } from './office.ts';

interface Presence {
  readonly incarnation: string;
  /** When its connection broke, by the clock; undefined while it is here. */
  lostAtMs: number | undefined;
}

/** Processes whose place another one has taken; then the first of them is forgotten. */
const REMEMBERED = 4096;

/** 'late': it comes back after it was counted out. */
export type Arrival = 'first' | 'back' | 'late' | 'replaced';

export class Attendance {
  readonly #service: Service;
  readonly #present = new Map<number, Presence>();
  /** The latest process of each worker that ever connected. */
  readonly #known = new Map<number, string>();
  readonly #counted = new Set<number>();
  /** Workers whose time was up. */
  readonly #countedOut = new Set<number>();
  /** The last ones. */
  readonly #outdated = new Set<string>();

  constructor(service: Service, workers: number) {
    this.#service = service;
    for (let worker = 0; worker < workers; worker++) this.#counted.add(worker);
  }

  get counted(): readonly number[] {
    return [...this.#counted];
  }

  get countedSize(): number {
    return this.#counted.size;
  }

  /** How many workers have ever connected. */
  get known(): number {
    return this.#known.size;
  }

  /** Workers that are connected. */
  get here(): number {
    return [...this.#present.values()].filter(({ lostAtMs }) => lostAtMs === undefined).length;
  }

  isKnown(worker: number): boolean {
    return this.#known.has(worker);
  }

  /** The last process that came as the worker. */
  incarnationOf(worker: number): string | undefined {
    return this.#known.get(worker);
  }

  isCounted(worker: number): boolean {
    return this.#counted.has(worker);
  }

  /** Whether another process has taken the place of this one. */
  isOutdated(worker: number, incarnation: string): boolean {
    return this.#outdated.has(`${worker} ${incarnation}`);
  }

  /** Whether the process was counted out, because its time was up. */
  isLate(worker: number, incarnation: string): boolean {
    return this.#countedOut.has(worker) && this.#known.get(worker) === incarnation;
  }

  /** How the process comes: for the first time, again, or in the place of another one. */
  enter(worker: number, incarnation: string): Arrival {
    const isLate = this.isLate(worker, incarnation);
    this.#countedOut.delete(worker);
    const known = this.#known.get(worker);
    this.#known.set(worker, incarnation);
    if (known !== undefined && known !== incarnation) this.#outdated.add(`${worker} ${known}`);
    if (this.#outdated.size > REMEMBERED) this.#outdated.delete(this.#outdated.values().next().value!);
    this.#present.set(worker, { incarnation, lostAtMs: undefined });
    if (known === undefined) return 'first';
    if (known !== incarnation) return 'replaced';
    return isLate ? 'late' : 'back';
  }

  count(worker: number): void {
    this.#counted.add(worker);
  }

  /** True if it was here until now. */
  lose(worker: number, nowMs: number): boolean {
    const presence = this.#present.get(worker);
    if (presence === undefined || presence.lostAtMs !== undefined) return false;
    presence.lostAtMs = nowMs;
    return true;
  }

  isLost(worker: number): boolean {
    return this.#present.get(worker)?.lostAtMs !== undefined;
  }

  /** Workers that are counted and have no connection: at most so many. */
  absent(most: number): readonly number[] {
    const workers: number[] = [];
    for (const worker of this.#counted) {
      if (workers.length === most) break;
      const presence = this.#present.get(worker);
      if (presence === undefined || presence.lostAtMs !== undefined) workers.push(worker);
    }
    return workers.sort((a, b) => a - b);
  }

  /**
   * Whoever is counted and has not come yet was here before, and has as long to come back as one whose connection
   * broke.
   */
  loseUnseen(nowMs: number): void {
    for (const worker of this.#counted) {
      if (!this.#present.has(worker)) this.#present.set(worker, { incarnation: '', lostAtMs: nowMs });
    }
  }

  /** True if it was counted until now. */
  release(worker: number): boolean {
    this.#present.delete(worker);
    return this.#counted.delete(worker);
  }

  /** Its time is up. */
  countOut(worker: number): void {
    if (this.#counted.has(worker)) this.#countedOut.add(worker);
  }

  /** Workers whose time to come back is up, and the milliseconds until the next one's is. */
  overdue(nowMs: number): { readonly workers: readonly number[]; readonly nextMs: number } {
    const { graceMs, lostWorkers } = this.#service;
    const workers: number[] = [];
    let nextMs = Infinity;
    if (lostWorkers === 'wait') return { workers, nextMs };
    for (const [worker, { lostAtMs }] of this.#present) {
      if (lostAtMs === undefined) continue;
      const leftMs = lostAtMs + graceMs - nowMs;
      if (leftMs <= 0) workers.push(worker);
      else nextMs = Math.min(nextMs, leftMs);
    }
    return { workers, nextMs };
  }
}
