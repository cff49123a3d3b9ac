/**
 * What a run did, as a Chrome trace (opens in Perfetto and chrome://tracing): for each worker a lane of computing and one of
 * communication, with real times. Collects in memory and writes once, at the end; what does not fit is left out and counted.
 * Invariant: all workers' lanes are in one file, on one clock.
 */
import { writeFileSync } from 'node:fs';
import type { CommunicationThread } from '../communication/index.ts';
import { tellAllTexts } from '../exchange/index.ts';

export type Lane = 'computing' | 'communication';

interface Interval {
  readonly lane: Lane;
  readonly name: string;
  readonly startedMs: number;
  readonly endedMs: number;
  readonly facts: Readonly<Record<string, number>>;
}

/** About 30 MB of text. */
const MOST_INTERVALS = 200_000;
const LANES: readonly Lane[] = ['computing', 'communication'];

export class Trace {
  readonly #intervals: Interval[] = [];
  #leftOut = 0;

  /** Times are milliseconds since 1970. */
  add(lane: Lane, name: string, startedMs: number, endedMs: number, facts: Interval['facts'] = {}): void {
    if (this.#intervals.length < MOST_INTERVALS)
      this.#intervals.push({ lane, name, startedMs, endedMs, facts });
    else this.#leftOut++;
  }

  /** All workers call it together; the first writes the file. */
  write(thread: CommunicationThread, path: string): void {
    const { rank } = thread.world;
    const texts = tellAllTexts(thread, JSON.stringify(this.#events(rank)), 'traces');
    if (rank !== 0) return;
    const traceEvents = texts.flatMap((text) => JSON.parse(text) as object[]);
    writeFileSync(path, JSON.stringify({ traceEvents, displayTimeUnit: 'ms' }));
  }

  /** As the format has them: times in microseconds, a process for each worker, a thread for each lane. */
  #events(rank: number): object[] {
    const named = (what: string, tid: number, name: string) => ({
      ...{ ph: 'M', pid: rank, tid, name: what, args: { name } },
    });
    return [
      named('process_name', 0, `worker ${rank}${this.#leftOut > 0 ? ` (${this.#leftOut} left out)` : ''}`),
      ...LANES.map((lane, tid) => named('thread_name', tid, lane)),
      ...this.#intervals.map(({ lane, name, startedMs, endedMs, facts }) => ({
        ...{ ph: 'X', pid: rank, tid: LANES.indexOf(lane), name, args: facts },
        ...{ ts: startedMs * 1000, dur: (endedMs - startedMs) * 1000 },
      })),
    ];
  }
}
