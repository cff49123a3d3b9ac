/**
 * Log lines about connections that were closed for a fault: some of each network address in a minute, then one that
 * says how many were left out, so that nobody who only connects can fill a disk. It owns no socket and no clock.
 * Invariant: what one address does never leaves out the lines of another, as long as few addresses do it.
 */
import { networkOf } from './pending-connections.ts';

const LINES_A_MINUTE = 10;
/** Addresses that are told apart in a minute; all others count as one. */
const MAX_NETWORKS = 100;
const MINUTE_MS = 60_000;
const OTHERS = 'other addresses';

export class FaultLog {
  readonly #log: (line: string) => void;
  /** Lines of this minute, by network address. */
  readonly #lines = new Map<string, number>();
  #endsAtMs = -Infinity;

  constructor(log: (line: string) => void) {
    this.#log = log;
  }

  /** `host`: the numeric address that the connection comes from. */
  say(host: string, line: string, nowMs: number): void {
    this.look(nowMs);
    if (this.#lines.size === 0) this.#endsAtMs = nowMs + MINUTE_MS;
    const own = networkOf(host);
    const network = this.#lines.has(own) || this.#lines.size < MAX_NETWORKS ? own : OTHERS;
    const lines = 1 + (this.#lines.get(network) ?? 0);
    this.#lines.set(network, lines);
    if (lines <= LINES_A_MINUTE) this.#log(line);
  }

  /** To be called now and then: when the minute is over, it says what was left out. */
  look(nowMs: number): void {
    if (this.#lines.size === 0 || nowMs < this.#endsAtMs) return;
    for (const [network, lines] of this.#lines) {
      const leftOut = lines - LINES_A_MINUTE;
      if (leftOut <= 0) continue;
      this.#log(
        `left out ${leftOut} lines like these about connections from ${network} within a minute; close the port to it, or repair who connects`,
      );
    }
    this.#lines.clear();
  }
}
