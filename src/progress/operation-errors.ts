/** The errors by which operations end: built from facts, each naming the ranks concerned and the next step. */
import { asSentence, InternalError, PeerError, TributaryError } from '../base/index.ts';
import type { ErrorCode } from '../base/index.ts';
import type { AbandonNotice } from './notices.ts';
import type { Members, Operation } from './operation.ts';
import type { Stall } from './stall.ts';

const REGROUP = 'Form a group of those that are left with cluster.regroup().';

/** A rank left the operation of its own will. */
export function cancelled(operation: Operation, rank: number, why: string): PeerError {
  const { group, call, tag, sequence } = operation;
  return new PeerError(
    'CANCELLED',
    `${group.title(rank)} left ${call.describe()} of group ${group.id}: ${why}. Repeat it on all ranks if it is still wanted.`,
    { group: group.id, rank, tag, sequence },
  );
}

/** Reasons of others that are passed on under their own code. */
const PASSED_ON: readonly ErrorCode[] = ['CANCELLED', 'TIMEOUT', 'PEER_LOST', 'COLLECTIVE_MISMATCH'];

/** Another rank left the operation; its reason, which may name a third, is what the caller needs. */
export function abandoned(operation: Operation, member: number, notice: AbandonNotice): PeerError {
  const { group, call, tag, sequence } = operation;
  const rank = group.members.indexOf(member);
  return new PeerError(
    PASSED_ON.find((known) => known === notice.code) ?? 'CANCELLED',
    `${group.title(rank)} left ${call.describe()} of group ${group.id}: ${notice.reason}`,
    { group: group.id, rank, member, tag, sequence },
  );
}

export function lostDuring(operation: Operation, member: number, cause: PeerError): PeerError {
  const { group, call } = operation;
  const rank = group.members.indexOf(member);
  return new PeerError(
    'PEER_LOST',
    `${group.title(rank)} was lost during ${call.describe()} on rank ${group.rank}: ${asSentence(cause.message)} ${REGROUP}`,
    { group: group.id, rank, member },
    cause,
  );
}

export function lostFrom(group: Members, member: number, cause: PeerError): PeerError {
  const rank = group.members.indexOf(member);
  return new PeerError(
    'PEER_LOST',
    `${group.title(rank)} of group ${group.id} is lost: ${asSentence(cause.message)} ${REGROUP}`,
    { group: group.id, rank, member },
    cause,
  );
}

export function late(operation: Operation, stall: Stall | undefined, nowMs: number): PeerError {
  const { group, call } = operation;
  const report = stall?.report(nowMs);
  const missing = report?.missing ?? operation.waitsFor();
  const waitedMs = nowMs - operation.startedMs;
  const who = report?.text ?? `it waits for ${missing.map((rank) => group.title(rank)).join(', ')}.`;
  return new PeerError(
    'TIMEOUT',
    `${call.describe()} of group ${group.id} reached its deadline on rank ${group.rank} after ${(waitedMs / 1000).toFixed(1)} s: ${who} Find out why they do not come, or raise deadlineMs.`,
    { group: group.id, rank: group.rank, missing, waitedMs },
  );
}

/** Anything else that an algorithm throws is a fault of ours, and ends its operation like any other failure. */
export function asError(error: unknown): TributaryError {
  if (error instanceof TributaryError) return error;
  const what = error instanceof Error ? error.message : String(error);
  return new InternalError(
    'BROKEN_INVARIANT',
    `an operation broke off: ${what}; please report it`,
    {},
    error,
  );
}
