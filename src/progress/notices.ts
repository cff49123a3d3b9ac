/**
 * The texts that engines send each other outside operations, and the check of those that come in: a peer's text is
 * hostile until `parseNotice` has accepted it. Not the handling (progress.ts). Invariant: what is parsed has
 * every field of its kind, of the right type and within its limits.
 */
import type { OperationKey } from '../transport/index.ts';

/** The sender left an operation; whoever takes part fails with the reason. */
export interface AbandonNotice extends OperationKey {
  readonly kind: 'abandon';
  readonly code: string;
  readonly reason: string;
}

/** The sender has waited long; whoever knows the operation tells how far it is. */
export interface InquiryNotice extends OperationKey {
  readonly kind: 'inquiry';
}

export interface AnswerNotice extends OperationKey {
  readonly kind: 'answer';
  readonly state: 'not started' | 'waiting' | 'ended';
  /** The signature of the sender's call; 0 if it has not called. */
  readonly signature: number;
  /** Member numbers that the sender waits for. */
  readonly waitsFor: readonly number[];
  /** What the sender is doing instead, or how it describes the operation. */
  readonly doing: string;
}

/** Ranks disagree about an operation; the sender says what it called. */
export interface DisputeNotice extends OperationKey {
  readonly kind: 'dispute';
  readonly called: string;
}

/** The sender has no more data: from these sequences on, by tag, it contributes nothing. The key is its join's. */
export interface JoinNotice extends OperationKey {
  readonly kind: 'join';
  readonly from: readonly (readonly [tag: number, sequence: number])[];
}

/** To a rank that has joined: an operation was started in which it must take part with nothing. */
export interface CallNotice extends OperationKey {
  readonly kind: 'call';
  readonly spec: Readonly<Record<string, unknown>>;
}

export type Notice = AbandonNotice | InquiryNotice | AnswerNotice | DisputeNotice | JoinNotice | CallNotice;

const MAX_TEXT = 4096;
const MAX_LIST = 4096;

type Fields = Readonly<Record<string, unknown>>;

const kinds: Readonly<Record<Notice['kind'], (fields: Fields) => boolean>> = {
  abandon: (fields) => isKey(fields) && isText(fields['code']) && isText(fields['reason']),
  inquiry: isKey,
  answer: (fields) =>
    isKey(fields) &&
    ['not started', 'waiting', 'ended'].includes(fields['state'] as string) &&
    isWord(fields['signature']) &&
    isList(fields['waitsFor'], isWord) &&
    isText(fields['doing']),
  dispute: (fields) => isKey(fields) && isText(fields['called']),
  join: (fields) =>
    isKey(fields) && isList(fields['from'], (entry) => isList(entry, isWord) && entry.length === 2),
  call: (fields) => isKey(fields) && isRecord(fields['spec']),
};

/** The notice, or undefined if the text is none. */
export function parseNotice(text: string): Notice | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isRecord(value)) return undefined;
  const kind = value['kind'];
  if (typeof kind !== 'string' || !Object.hasOwn(kinds, kind)) return undefined;
  return kinds[kind as Notice['kind']](value) ? (value as unknown as Notice) : undefined;
}

/** Texts are cut to what the other side accepts. */
export function clip(text: string): string {
  return text.length <= MAX_TEXT ? text : `${text.slice(0, MAX_TEXT - 1)}…`;
}

function isKey(fields: Fields): boolean {
  return isWord(fields['group']) && isWord(fields['tag']) && isWord(fields['sequence']);
}

function isWord(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 32;
}

function isText(value: unknown): boolean {
  return typeof value === 'string' && value.length <= MAX_TEXT;
}

function isList(value: unknown, isEntry: (entry: unknown) => boolean): value is unknown[] {
  return Array.isArray(value) && value.length <= MAX_LIST && value.every(isEntry);
}

function isRecord(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
