/**
 * What a run did, as a Chrome trace (opens in Perfetto and chrome://tracing): for each worker a lane of computing and one of
 * communication, with real times; messages that were under way at the same time get further lanes. Collects in memory, as numbers
 * only, so that a step is hardly longer for it, and writes once, at the end; what does not fit is left out and counted.
 * Invariants: all workers' lanes are in one file, on one clock; bars of a lane do not overlap.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { UsageError } from '../base/index.ts';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts, wallMs, type OnMessage } from '../exchange/index.ts';
import type { OnPart, StepOperation, StepProgram } from '../plan/index.ts';

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
  readonly #names: { readonly name: string; readonly operation: StepOperation }[] = [];
  readonly #numberOf = new Map<string, number>();
  #step = 0;
  /** When that began, and which one was before. */
  #beganMs = 0;
  #stepBefore = 0;
  /** When the last bar of computing ended. */
  #computedMs = 0;

  /** What follows belongs to this step, and the next bar of computing begins now. */
  begin(step: number): void {
    this.skip();
    if (step === this.#step) return;
    this.#stepBefore = this.#step;
    this.#step = step;
    this.#beganMs = this.#computedMs;
  }

  /** What was done since the last bar of computing is in none. */
  skip(): void {
    this.#computedMs = wallMs();
  }

  /** A bar of computing, from the end of the last one until now. */
  readonly lap: OnPart = (operation, name = operation) => {
    const nowMs = wallMs();
    this.add('computing', operation, name, this.#computedMs, nowMs, this.#step);
    this.#computedMs = nowMs;
  };

  /** It belongs to the step in which it began. */
  readonly message: OnMessage = (operation, name, startedMs, endedMs, bytes) => {
    const step = startedMs < this.#beganMs ? this.#stepBefore : this.#step;
    this.add('communication', operation, name, startedMs, endedMs, step, bytes);
  };

  /** Times are milliseconds since 1970; bytes are those of a message. A name is of one operation only. */
  add(
    lane: Lane,
    operation: StepOperation,
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
    numbers[at++] = this.#numberOf.get(name) ?? this.#take(name, operation);
    numbers[at++] = startedMs;
    numbers[at++] = endedMs;
    numbers[at++] = step;
    numbers[at] = bytes;
  }

  /**
   * All workers call it together, if there are several; the first writes the file, with the program
   * of a step beside the bars, where there was a step. What went wrong with that is given back, not
   * thrown: the run itself went well, and its result must not be lost with the trace.
   */
  write(
    thread: CommunicationThread | undefined,
    path: string,
    program: StepProgram | undefined,
  ): UsageError | undefined {
    const rank = thread?.world.rank ?? 0;
    const own = this.events(rank);
    const texts = thread && tellAllTexts(thread, JSON.stringify(own), 'traces');
    if (rank !== 0) return undefined;
    const traceEvents = texts?.flatMap((text) => JSON.parse(text) as object[]) ?? own;
    try {
      mkdirSync(dirname(path), { recursive: true });
      const otherData = { program: program?.operations };
      writeFileSync(path, JSON.stringify({ traceEvents, displayTimeUnit: 'ms', otherData }));
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
    const tids = this.#threads();
    const lanes = tids.reduce((most, tid) => Math.max(most, tid + 1), LANES.length);
    const further = Array.from({ length: lanes - LANES.length }, (_, i) => `${LANES[1]} ${i + 2}`);
    return [
      named('process_name', 0, `worker ${rank}${this.#leftOut > 0 ? ` (${this.#leftOut} left out)` : ''}`),
      ...[...LANES, ...further].map((lane, tid) => named('thread_name', tid, lane)),
      ...Array.from(tids, (tid, interval) => this.#event(rank, tid, interval)),
    ];
  }

  /** The thread of each interval: its lane, or the first further one in which no message is under way. */
  #threads(): Uint32Array {
    const [columns, tids] = [this.#numbers, new Uint32Array(this.#intervals)];
    const messages = tids.map((_, interval) => interval).filter((one) => columns[one * COLUMNS] === 1);
    const endsMs: number[] = [];
    messages.sort((a, b) => columns[a * COLUMNS + 2]! - columns[b * COLUMNS + 2]!);
    for (const interval of messages) {
      const [startedMs, endedMs] = [columns[interval * COLUMNS + 2]!, columns[interval * COLUMNS + 3]!];
      const free = endsMs.findIndex((endMs) => endMs <= startedMs);
      const lane = free < 0 ? endsMs.length : free;
      endsMs[lane] = endedMs;
      tids[interval] = 1 + lane;
    }
    return tids;
  }

  #event(rank: number, tid: number, interval: number): object {
    const number = (column: number) => this.#numbers[interval * COLUMNS + column]!;
    const [startedMs, endedMs, step, bytes] = [number(2), number(3), number(4), number(5)];
    const { name, operation } = this.#names[number(1)]!;
    const ts = startedMs * 1000;
    return {
      ph: 'X',
      pid: rank,
      tid,
      name,
      cat: operation,
      args: bytes === NO_BYTES ? { step } : { step, bytes },
      ts,
      // Ends where the next one begins, to the last bit.
      dur: endedMs * 1000 - ts,
    };
  }

  #take(name: string, operation: StepOperation): number {
    const number = this.#names.push({ name, operation }) - 1;
    this.#numberOf.set(name, number);
    return number;
  }

  #grow(): void {
    const larger = new Float64Array(2 * this.#numbers.length);
    larger.set(this.#numbers);
    this.#numbers = larger;
  }
}
