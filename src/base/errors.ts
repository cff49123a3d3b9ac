/**
 * The error tree, by who must act: the caller (`UsageError`), another process (`PeerError`, may be retried)
 * or us (`InternalError`). Every error carries a stable `code` listed in `docs/errors.md` (a test holds both
 * directions), facts for machines, and a message that ends with the next step.
 */

export const ErrorCodes = {
  // The caller must act.
  SHAPE_MISMATCH: 'The shapes of an operation, or of data and model, do not fit.',
  INVALID_ARGUMENT: 'An argument is outside what the function accepts.',
  INVALID_GRAPH: 'The graph is inconsistent.',
  UNSUPPORTED_OPERATOR: 'An ONNX model uses an operator, attribute or type outside the catalogue.',
  NOT_DIFFERENTIABLE: 'A gradient was asked through an operation that has none.',
  INVALID_MODEL_FILE: 'A model file is not a readable ONNX model.',
  INVALID_DATA: 'A dataset is empty, ragged or malformed, or lacks a column of the model.',
  UNKNOWN_LABEL: 'A label was never seen in training.',
  INVALID_CONFIG: 'A configuration field is missing, unknown or of the wrong type.',
  INVALID_COMMAND: 'The command line has an unknown command or option.',
  CODE_NOT_TRUSTED: 'A run folder or JSON file names code that the user has not agreed to run.',
  FILE_NOT_FOUND: 'A file or folder does not exist or cannot be read.',
  FILE_NOT_WRITTEN: 'A file could not be written.',
  OUTPUT_EXISTS: 'The output folder holds something already.',
  CHECKPOINT_CORRUPT: 'A checkpoint is truncated or its checksum does not match.',
  CHECKPOINT_MISMATCH: 'A checkpoint belongs to another model or optimizer.',
  CHECKPOINT_NOT_WRITTEN: 'A checkpoint could not be written; earlier ones are untouched.',
  FOLDER_IN_USE: 'Another server keeps its checkpoints and logs in the folder.',
  FOLDER_NOT_PRIVATE: 'A folder that must belong to this user alone is open to others.',
  NO_CHECKPOINTS: 'The service keeps no checkpoints.',
  SERVICE_EXISTS: 'A service of that name is there, with other options or given when the server was started.',
  SEGMENT_EXISTS: 'A shared-memory segment of that name exists and its owner is alive.',
  SEGMENT_NOT_FOUND: 'There is no shared-memory segment of that name.',
  SEGMENT_CORRUPT: 'A shared-memory segment has no valid header or is of another version.',
  OUT_OF_SHARED_MEMORY: 'The shared-memory file system or the address space is full.',
  MODEL_TOO_LARGE: 'A model or segment does not fit into the 4 GiB that WebAssembly can address.',
  OUT_OF_BOUNDS: 'A region or kernel argument reaches outside its memory.',
  NOT_A_NUMBER: 'The loss became NaN or infinite.',
  RULE_FAILED: 'An update rule of users failed.',
  MISSING_COMPONENT: 'An optional component is not installed.',
  // Another process is involved.
  TIMEOUT: 'A wait reached its deadline.',
  PEER_EXITED: 'A peer process ended, or answered with something else than was asked.',
  PEER_LOST: 'A member of the cluster died, or its connection broke.',
  UNREACHABLE: 'A member or the scheduler cannot be reached at its address.',
  COLLECTIVE_MISMATCH: 'Ranks called a collective with different shapes, types, operations or names.',
  CANCELLED: 'A rank cancelled an operation that others take part in.',
  REFUSED: 'The other side refused the connection: wrong secret, other version, or a rank that is taken.',
  REWOUND: 'A server or a worker was started again: training goes back to the last checkpoint.',
  PROTOCOL_VIOLATION: 'A peer sent bytes that are not of the protocol.',
  // We must act.
  RUNTIME_FAILURE: 'ONNX Runtime reported an error.',
  BROKEN_INVARIANT: 'An internal invariant does not hold; please report it.',
} as const;

export type ErrorCode = keyof typeof ErrorCodes;
export type Facts = Readonly<Record<string, unknown>>;

export abstract class TributaryError extends Error {
  readonly code: ErrorCode;
  readonly facts: Facts;

  constructor(code: ErrorCode, message: string, facts: Facts = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.facts = facts;
  }
}

/** The caller must act: wrong arguments, files or configuration. */
export class UsageError extends TributaryError {}

/** Another process failed or is late; the operation may be retried. */
export class PeerError extends TributaryError {}

/** A fault of Tributary or of the engine below it. */
export class InternalError extends TributaryError {}

/** What was thrown, as one of ours: what is none of them is a fault of Tributary. */
export function asTributaryError(error: unknown): TributaryError {
  if (error instanceof TributaryError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new InternalError('BROKEN_INVARIANT', `${message}; please report it`, {}, error);
}

/** A message as it stands before a further sentence. */
export function asSentence(message: string): string {
  return /[.!?]$/.test(message) ? message : `${message}.`;
}
