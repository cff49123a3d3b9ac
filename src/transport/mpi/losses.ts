/**
 * The errors that say why nothing more comes from a rank. Each names the rank, what happened and the next step.
 */
import { PeerError } from '../../base/index.ts';

/** It said that it leaves. */
export function leftError(peer: number, reason: string): PeerError {
  return new PeerError(
    'PEER_LOST',
    `rank ${peer} left: ${reason}; form a group without it, or start the job again`,
    { peer, reason },
  );
}

/** It was lost before somebody asked for it. */
export function goneError(peer: number): PeerError {
  return new PeerError(
    'PEER_LOST',
    `rank ${peer} is lost and does not come back; form a group without it, or start the job again`,
    { peer },
  );
}

/** MPI gave up on a message. */
export function brokenError(self: number, peer: number, mpiCode: number, mpiText: string): PeerError {
  return new PeerError(
    'PEER_LOST',
    `a message between this rank ${self} and rank ${peer} failed: MPI says '${mpiText}'; look at the output of mpirun, and start the job again`,
    { peer, mpiCode },
  );
}

/** It began a message and went silent. */
export function stalledError(peer: number, payloadBytes: number, timeoutMs: number): PeerError {
  return new PeerError(
    'PEER_LOST',
    `rank ${peer} began a message of ${payloadBytes} bytes and did not go on within ${timeoutMs} ms; it counts as lost: form a group without it`,
    { peer, payloadBytes, timeoutMs },
  );
}

/** Its message is none of ours. */
export function foreignError(peer: number): PeerError {
  return new PeerError(
    'PROTOCOL_VIOLATION',
    `rank ${peer} sent a message that is not of this version of Tributary; start all ranks from the same installation`,
    { peer },
  );
}
