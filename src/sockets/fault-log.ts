/**
 * Log lines that others can cause, as about connections that were closed for a fault: some of each network address, or
 * service, in a minute, then one that says how many were left out, so that nobody can fill a disk by them. It owns no
 * socket and no clock. Invariant: what one does never leaves out the lines of another, as long as few do it.
 */
import { networkOf } from './pending-connections.ts';

const LINES_A_MINUTE = 10;
/** Addresses that are told apart in a minute; all others count as one. */
const MAX_NETWORKS = 100;
const MINUTE_MS = 60_000;
const OTHERS = 'others';

/** How many lines there are in a minute, and what is said of those that were left out. */
export interface FaultLogOptions {
  readonly linesAMinute: number;
  readonly leftOut: (lines: number, whose: string) => string;
}

const OF_CONNECTIONS: FaultLogOptions = {
  linesAMinute: LINES_A_MINUTE,
  leftOut: (lines, network) =>
    `left out ${lines} lines like these about connections from ${network} within a minute; close the port to it, or repair who connects`,
};

export class FaultLog {
  readonly #log: (line: string) => void;
  readonly #options: FaultLogOptions;
  /** Lines of this minute, by network address. */
  readonly #lines = new Map<string, number>();
  #endsAtMs = -Infinity;

  constructor(log: (line: string) => void, options = OF_CONNECTIONS) {
    this.#log = log;
    this.#options = options;
  }

  /**
   * `host`: the numeric address that the connection comes from, or the name of a service. False: the line is left out.
   */
  say(host: string, line: string, nowMs: number): boolean {
    this.look(nowMs);
    if (this.#lines.size === 0) this.#endsAtMs = nowMs + MINUTE_MS;
    const own = networkOf(host);
    const network = this.#lines.has(own) || this.#lines.size < MAX_NETWORKS ? own : OTHERS;
    const lines = 1 + (this.#lines.get(network) ?? 0);
    this.#lines.set(network, lines);
    if (lines > this.#options.linesAMinute) return false;
    this.#log(line);
    return true;
  }

  /** To be called now and then: when the minute is over, it says what was left out. */
  look(nowMs: number): void {
    if (this.#lines.size === 0 || nowMs < this.#endsAtMs) return;
    for (const [network, lines] of this.#lines) {
      const leftOut = lines - this.#options.linesAMinute;
      if (leftOut <= 0) continue;
      this.#log(this.#options.leftOut(leftOut, network));
    }
    this.#lines.clear();
  }
}
