/**
 * What the main thread and the thread of the line to the scheduler tell each other. Types only. Invariant: reports of an earlier
 * connection can be told apart from those of the current one.
 */

/** What a process needs to trust a scheduler with TLS; plain data, because it goes to a thread. */
export interface LineTls {
  /** Certificates of the authorities to trust, in PEM. Default those of Node. */
  readonly ca?: string;
  /** The name that the scheduler's certificate must have. Default the host that is dialled. */
  readonly servername?: string;
}

export interface LineTarget {
  readonly host: string;
  readonly port: number;
  readonly tls: LineTls | undefined;
}

/** From the main thread. */
export type LineCommand =
  | { readonly dial: LineTarget }
  | { readonly send: object }
  /** The scheduler has proved itself: its news count from now on, and it gets heartbeats. */
  | { readonly beat: { readonly heartbeatMs: number; readonly lostAfterMs: number } }
  /** Drops the connection at once. */
  | { readonly drop: true }
  /** Sends what was given before, ends the connection and the thread. */
  | { readonly end: true };

export interface Dialed {
  readonly localAddress: string;
  /** What only the two ends of this TLS connection know; undefined without TLS. */
  readonly channel: string | undefined;
}

/** To the main thread; `dial` counts the dials, so that news of an earlier connection can be told apart. */
export type LineReport =
  | { readonly dial: number; readonly connected: Dialed }
  | { readonly dial: number; readonly frame: unknown }
  | { readonly dial: number; readonly closed: string };

export interface LineThreadData {
  readonly liveness: SharedArrayBuffer;
}
