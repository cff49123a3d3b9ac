/**
 * What a scenario of the conformance suite is given and what it is: the endpoint of one rank, what its transport has
 * told, and the scenario itself. Types, and the recorder that fills one of them; nothing here knows a transport.
 */
import type { PeerError } from '../../src/base/index.ts';
import type { DType, Region, SharedSpace } from '../../src/memory/index.ts';
import type { Envelope, Transport } from '../../src/transport/index.ts';

export interface Endpoint {
  readonly transport: Transport;
  /** Also the member number; ranks are 0 to size - 1 and all connected. */
  readonly rank: number;
  readonly size: number;
  readonly space: SharedSpace;
  /** The same on all ranks; chooses the random plans. */
  readonly seed: number;
  /** Everything the transport has told so far, in order. */
  readonly told: Told;
  /** Polls the transport until the condition holds; fails after a deadline. Lets the other ranks of the process run. */
  until(condition: () => boolean): Promise<void>;
  /** Memory in a segment that peers can map, where the transport has such. Freed by the harness, at the end at latest. */
  allocate<T extends DType>(dtype: T, length: number): Region<T>;
}

export interface Told {
  readonly notices: { readonly peer: number; readonly text: string }[];
  readonly lost: { readonly peer: number; readonly error: PeerError }[];
  readonly mismatches: {
    readonly peer: number;
    readonly envelope: Envelope;
    readonly payloadBytes: number;
  }[];
}

export interface Scenario {
  readonly name: string;
  readonly sizes: readonly number[];
  /** The endpoints cannot be used afterwards. */
  readonly endsConnections?: boolean;
  run(endpoint: Endpoint): Promise<void>;
}

/** An object for `Endpoint.told` and the events that fill it. */
export function recordEvents(): {
  readonly told: Told;
  readonly events: Parameters<Transport['listen']>[0];
} {
  const told: Told = { notices: [], lost: [], mismatches: [] };
  return {
    told,
    events: {
      notice: (peer, text) => void told.notices.push({ peer, text }),
      lost: (peer, error) => void told.lost.push({ peer, error }),
      mismatch: (peer, envelope, payloadBytes) =>
        void told.mismatches.push({ peer, envelope: { ...envelope }, payloadBytes }),
    },
  };
}
