/**
 * What a run did, as a Chrome trace (opens in Perfetto and chrome://tracing): for each worker a lane of computing and one of
 * communication, with real times. Collects in memory, as numbers only, so that a step is hardly longer for it, and writes once, at
 * the end; what does not fit is left out and counted.
 * Invariant: all workers' lanes are in one file, on one clock.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts } from '../exchange/index.ts';

export type Lane = 'computing' | 'communication';

/** About 30 MB of text. */
const MOST_INTERVALS = 200_000;
const FIRST_INTERVALS = 1024;
const LANES: readonly Lane[] = ['computing', 'communication'];
/** Of an interval: lane, name, start, end, step, bytes. */
const COLUMNS = 6;
const NO_BYTES = -1;

export class Trace {
  /** Row by row. */
  #numbers = new Float64Array(FIRST_INTERVALS * COLUMNS);
  #intervals = 0;
  #leftOut = 0;
  /** By the number that stands for each. */
  readonly #names: string[] = [];
  readonly #numberOf = new Map<string, number>();

  /** Times are milliseconds since 1970; bytes are those of a message. */
  add(
    lane: Lane,
    name: string,
    startedMs: number,
    endedMs: number,
    step: number,
    bytes: number = NO_BYTES,
  ): void {
    if (this.#intervals === MOST_INTERVALS) {
      this.#leftOut++;
      return;
    }
    let at = this.#intervals++ * COLUMNS;
    if (at === this.#numbers.length) this.#grow();
    const numbers = this.#numbers;
    numbers[at++] = LANES.indexOf(lane);
    numbers[at++] = this.#numberOf.get(name) ?? this.#take(name);
    numbers[at++] = startedMs;
    numbers[at++] = endedMs;
    numbers[at++] = step;
    numbers[at] = bytes;
  }

  /**
   * All workers call it together; the first writes the file. What went wrong with that is given back, not thrown: the run itself
   * went well, and its result must not be lost with the trace.
   */
  write(thread: CommunicationThread, path: string): UsageError | undefined {
    const { rank } = thread.world;
    const texts = tellAllTexts(thread, JSON.stringify(this.events(rank)), 'traces');
    if (rank !== 0) return undefined;
    const traceEvents = texts.flatMap((text) => JSON.parse(text) as object[]);
    try {
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, JSON.stringify({ traceEvents, displayTimeUnit: 'ms' }));
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      return new UsageError(
        'FILE_NOT_WRITTEN',
        `The trace ${path} could not be written: ${reason}. The run itself is complete; give another place for the trace next time.`,
        { path },
        cause,
      );
    }
    return undefined;
  }

  /** As the format has them: times in microseconds, a process for each worker, a thread for each lane. */
  events(rank: number): object[] {
    const named = (what: string, tid: number, name: string) => ({
      ...{ ph: 'M', pid: rank, tid, name: what, args: { name } },
    });
    return [
      named('process_name', 0, `worker ${rank}${this.#leftOut > 0 ? ` (${this.#leftOut} left out)` : ''}`),
      ...LANES.map((lane, tid) => named('thread_name', tid, lane)),
      ...Array.from({ length: this.#intervals }, (_, interval) => this.#event(rank, interval)),
    ];
  }

  #event(rank: number, interval: number): object {
    const number = (column: number) => this.#numbers[interval * COLUMNS + column]!;
    const [startedMs, endedMs, step, bytes] = [number(2), number(3), number(4), number(5)];
    return {
      ph: 'X',
      pid: rank,
      tid: number(0),
      name: this.#names[number(1)],
      args: bytes === NO_BYTES ? { step } : { step, bytes },
      ts: startedMs * 1000,
      dur: (endedMs - startedMs) * 1000,
    };
  }

  #take(name: string): number {
    const number = this.#names.push(name) - 1;
    this.#numberOf.set(name, number);
    return number;
  }

  #grow(): void {
    const larger = new Float64Array(2 * this.#numbers.length);
    larger.set(this.#numbers);
    this.#numbers = larger;
  }
}
