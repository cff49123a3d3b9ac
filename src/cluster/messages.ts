/**
 * The messages between the scheduler and a process, and the checks that turn hostile JSON into them. A connection goes
 * hello, challenge, answer, accepted, join; then it is a member's, or waits to become one. Invariant: what the
 * readers return has exactly the stated types and bounds, whatever was sent; what they do not know they refuse.
 */
import type { ErrorCode } from '../base/index.ts';
import type { MemberAddress } from '../transport/index.ts';
import { isNonce } from '../sockets/index.ts';
import { ProtocolFault } from './frames.ts';

export const PROTOCOL_VERSION = 2;
/** What the proofs of this protocol are for. */
export const PURPOSE = 'scheduler';
/** Numbers that a scheduler gives out in its life; the shared view has a word for each. */
export const MAX_MEMBERS = 4096;
const MAX_TITLE = 256;
const MAX_HOST = 1024;
const MAX_NAME = 256;

/** Why a member is gone: it said so, its connection broke, or it was not heard for too long. */
export type LeaveReason = 'closed' | 'lost' | 'silent';

/** Why someone may not join. */
export type RefusalReason = 'secret' | 'version' | 'protocol' | 'silent' | 'busy' | 'rank' | 'full' | 'ended';

export interface Join {
  /** For messages: 'process 4711 on host-a'. */
  readonly title: string;
  /** Members with the same host share memory. */
  readonly host: string;
  readonly address: Readonly<Record<string, unknown>>;
  /** The number that the process wants in the first group. */
  readonly wantedRank?: number | undefined;
}

/** Who belongs together since the rendezvous or the last regroup. */
export interface World {
  /** The id of the group of all members. */
  readonly group: number;
  readonly members: readonly MemberAddress[];
  /** Members that were not in the world before. */
  readonly added: readonly number[];
  /** Members of the world before that are gone. */
  readonly lost: readonly number[];
}

export type MemberMessage =
  | { readonly kind: 'hello'; readonly version: number; readonly nonce: string }
  | { readonly kind: 'answer'; readonly proof: string }
  /** The proof covers what the process says of itself, after the scheduler has proved itself. */
  | ({ readonly kind: 'join'; readonly proof: string } & Join)
  | { readonly kind: 'beat' }
  | { readonly kind: 'form'; readonly request: number; readonly members: readonly number[] }
  | {
      readonly kind: 'barrier';
      readonly request: number;
      readonly name: string;
      readonly members: readonly number[];
    }
  | { readonly kind: 'regroup'; readonly request: number }
  /** The one who asked does not wait any more. */
  | { readonly kind: 'withdraw'; readonly request: number }
  | { readonly kind: 'leave' };

export type SchedulerMessage =
  | { readonly kind: 'challenge'; readonly version: number; readonly nonce: string }
  | {
      readonly kind: 'accepted';
      readonly proof: string;
      readonly heartbeatMs: number;
      readonly lostAfterMs: number;
    }
  | { readonly kind: 'refused'; readonly reason: RefusalReason; readonly text: string }
  | { readonly kind: 'waiting'; readonly waiting: Waiting }
  | { readonly kind: 'beat' }
  | { readonly kind: 'world'; readonly world: World }
  /** Follows the world in which the process has this number. */
  | { readonly kind: 'welcome'; readonly member: number }
  | { readonly kind: 'left'; readonly member: number; readonly reason: LeaveReason }
  /** How many wait for a regroup; the title is that of one that has just come. */
  | { readonly kind: 'newcomers'; readonly waiting: number; readonly title?: string | undefined }
  /** The request was granted; a barrier has no group of its own and says 0. */
  | { readonly kind: 'formed'; readonly request: number; readonly group: number }
  | {
      readonly kind: 'failed';
      readonly request: number;
      readonly code: ErrorCode;
      readonly text: string;
      readonly member?: number | undefined;
    }
  | { readonly kind: 'withdrawn'; readonly request: number; readonly missing: readonly number[] };

/** What someone who has not become a member yet waits for. */
export interface Waiting {
  /** Processes that have come. */
  readonly present: number;
  /** Processes that make the first group. */
  readonly size: number;
  /** Ranks that nobody has asked for, at most 32; empty once the first group was formed. */
  readonly missingRanks: readonly number[];
  /** The first group is there: the wait is for its members to regroup. */
  readonly newcomer: boolean;
}

/** Checks what a process sent. The version of a hello is not judged here, so that the other side can be told. */
export function readMemberMessage(value: unknown): MemberMessage {
  const fields = new Fields(value);
  switch (fields.kind) {
    case 'hello':
      // Another version may have other fields: only its number is certain.
      return fields.whole('version') === PROTOCOL_VERSION
        ? { kind: 'hello', version: PROTOCOL_VERSION, nonce: fields.nonce('nonce') }
        : { kind: 'hello', version: fields.whole('version'), nonce: '' };
    case 'answer':
      return { kind: 'answer', proof: fields.text('proof', MAX_NAME) };
    case 'join': {
      const join = {
        proof: fields.text('proof', MAX_NAME),
        title: fields.text('title', MAX_TITLE),
        host: fields.text('host', MAX_HOST),
        address: fields.record('address'),
      };
      if (!fields.has('wantedRank')) return { kind: 'join', ...join };
      return { kind: 'join', ...join, wantedRank: fields.whole('wantedRank') };
    }
    case 'beat':
    case 'leave':
      return { kind: fields.kind };
    case 'form':
      return { kind: 'form', request: fields.whole('request'), members: fields.members('members') };
    case 'barrier': {
      const [request, name] = [fields.whole('request'), fields.text('name', MAX_NAME)];
      return { kind: 'barrier', request, name, members: fields.members('members') };
    }
    case 'regroup':
    case 'withdraw':
      return { kind: fields.kind, request: fields.whole('request') };
    default:
      throw new ProtocolFault('sent a message of a kind that does not exist');
  }
}

const KINDS = new Set<string>([
  'challenge',
  'accepted',
  'refused',
  'waiting',
  'beat',
  'world',
  'welcome',
  'left',
  'newcomers',
  'formed',
  'failed',
  'withdrawn',
] satisfies SchedulerMessage['kind'][]);

/**
 * Checks what came from the scheduler. Before it has proved itself only the handshake can come, and that is checked in
 * full; afterwards it is trusted like the process's own code and only the kind is looked at.
 */
export function readSchedulerMessage(value: unknown, trusted: boolean): SchedulerMessage {
  const fields = new Fields(value);
  if (trusted && KINDS.has(fields.kind)) return value as SchedulerMessage;
  switch (fields.kind) {
    case 'challenge':
      return { kind: 'challenge', version: fields.whole('version'), nonce: fields.nonce('nonce') };
    case 'accepted': {
      const [heartbeatMs, lostAfterMs] = [fields.whole('heartbeatMs'), fields.whole('lostAfterMs')];
      return { kind: 'accepted', proof: fields.text('proof', MAX_NAME), heartbeatMs, lostAfterMs };
    }
    case 'refused':
      return {
        kind: 'refused',
        reason: fields.text('reason', 32) as RefusalReason,
        text: fields.text('text', 1024),
      };
    default:
      throw new ProtocolFault('sent a message of a kind that does not belong here');
  }
}

/** Typed access to the fields of an untrusted object. */
class Fields {
  readonly #fields: Readonly<Record<string, unknown>>;

  constructor(value: unknown) {
    if (!isRecord(value)) throw new ProtocolFault('sent a message that is not an object');
    this.#fields = value;
  }

  get kind(): string {
    const kind = this.#fields.kind;
    return typeof kind === 'string' ? kind : '';
  }

  has(name: string): boolean {
    return this.#fields[name] !== undefined;
  }

  whole(name: string): number {
    const value = this.#fields[name];
    if (typeof value === 'number' && Number.isInteger(value) && value >= 0 && value < 2 ** 32) return value;
    throw this.#fault(name, 'is not a whole number of 32 bits');
  }

  /** Text for messages and logs, so without control characters. */
  text(name: string, maxLength: number): string {
    const value = this.#fields[name];
    if (typeof value === 'string' && value.length <= maxLength && !/\p{Cc}/u.test(value)) return value;
    throw this.#fault(name, `is not plain text of at most ${maxLength} characters`);
  }

  nonce(name: string): string {
    const value = this.#fields[name];
    if (isNonce(value)) return value;
    throw this.#fault(name, 'is not a nonce');
  }

  record(name: string): Readonly<Record<string, unknown>> {
    const value = this.#fields[name];
    if (isRecord(value)) return value;
    throw this.#fault(name, 'is not an object');
  }

  /** A list of different member numbers. */
  members(name: string): readonly number[] {
    const value = this.#fields[name];
    const isNumber = (item: unknown) =>
      typeof item === 'number' && Number.isInteger(item) && item >= 0 && item < MAX_MEMBERS;
    if (Array.isArray(value) && value.length > 0 && value.length <= MAX_MEMBERS && value.every(isNumber)) {
      if (new Set(value).size === value.length) return value as number[];
    }
    throw this.#fault(name, 'is not a list of different member numbers');
  }

  #fault(name: string, what: string): ProtocolFault {
    return new ProtocolFault(`sent a message whose ${name} ${what}`);
  }
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
