/**
 * Errors as plain data, so that they cross from one thread or process to another and arrive as the same class with code, message,
 * facts and causes. Invariant: what `pack` returns can be sent to any thread, whatever the error carried.
 */
import { InternalError, PeerError, TributaryError, UsageError } from './errors.ts';
import type { ErrorCode, Facts } from './errors.ts';

const CLASSES = { UsageError, PeerError, InternalError } as const;

export interface PackedError {
  /** Undefined for an error that is none of ours. */
  readonly kind: keyof typeof CLASSES | undefined;
  readonly code: ErrorCode;
  readonly message: string;
  readonly facts: Facts;
  readonly stack: string | undefined;
  readonly cause: PackedError | undefined;
}

export function pack(error: unknown): PackedError {
  const { message, stack, cause } = error instanceof Error ? error : new Error(String(error));
  const ours = error instanceof TributaryError ? error : undefined;
  return {
    kind: ours && kindOf(ours),
    code: ours?.code ?? 'BROKEN_INVARIANT',
    message,
    facts: ours ? sendable(ours.facts) : {},
    stack,
    cause: cause === undefined ? undefined : pack(cause),
  };
}

/**
 * What is none of our errors becomes an InternalError, with the thread as its place; as a cause it
 * stays what it was.
 */
export function unpack(packed: PackedError): TributaryError {
  const { kind, code, facts, stack } = packed;
  const message = String(packed.message);
  const cause = packed.cause && unpackCause(packed.cause);
  const error =
    kind !== undefined && Object.hasOwn(CLASSES, kind)
      ? new CLASSES[kind](code, message, facts, cause)
      : new InternalError(code, `another thread failed: ${message}; please report it`, facts, cause);
  // Where it happened tells more than where it was unpacked.
  if (typeof stack === 'string') error.stack = stack;
  return error;
}

function unpackCause(packed: PackedError): Error {
  if (packed.kind !== undefined) return unpack(packed);
  const error = new Error(String(packed.message), packed.cause && { cause: unpackCause(packed.cause) });
  if (typeof packed.stack === 'string') error.stack = packed.stack;
  return error;
}

function kindOf(error: TributaryError): keyof typeof CLASSES {
  return error instanceof UsageError
    ? 'UsageError'
    : error instanceof PeerError
      ? 'PeerError'
      : 'InternalError';
}

/** Facts are plain by convention; one that is not must not cost the whole error. */
function sendable(facts: Facts): Facts {
  try {
    return structuredClone(facts);
  } catch {
    return Object.fromEntries(Object.entries(facts).map(([name, value]) => [name, String(value)]));
  }
}
