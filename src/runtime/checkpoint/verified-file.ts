/**
 * Files that are written durably and read back only if length and SHA-256 agree. Streams through a small private
 * buffer: the bytes that are hashed are those that are written, even while other processes change the source, and
 * files above 2 GiB work. Knows nothing of what the files hold.
 */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { InternalError, systemFiles, UsageError, writeFully, type AwaitedSteps } from '../../base/index.ts';
import type { FilePart } from './safetensors.ts';

const STEP_BYTES = 2 ** 20;

export interface FileSeal {
  readonly bytes: number;
  /** Hexadecimal. */
  readonly sha256: string;
}

/** Writes a new file and flushes it to the device; waits for what comes in pieces. */
export function* writeSealed(path: string, parts: readonly FilePart[]): AwaitedSteps<FileSeal> {
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(STEP_BYTES);
  let bytes = 0;
  const { O_CREAT, O_EXCL, O_WRONLY } = constants;
  const file = systemFiles.open(path, O_WRONLY | O_CREAT | O_EXCL, 0o666);
  const write = (piece: Uint8Array): void => {
    for (let start = 0; start < piece.length; start += STEP_BYTES) {
      const step = piece.subarray(start, start + STEP_BYTES);
      buffer.set(step);
      hash.update(buffer.subarray(0, step.length));
      writeFully(systemFiles, file, buffer.subarray(0, step.length), bytes);
      bytes += step.length;
    }
  };
  try {
    for (const part of parts) {
      if (part instanceof Uint8Array) {
        write(part);
        continue;
      }
      const end = bytes + part.bytes;
      for (const coming of part.pieces()) yield coming.then(write);
      if (bytes !== end) {
        throw new InternalError(
          'BROKEN_INVARIANT',
          `a tensor of ${part.bytes} bytes came in pieces of ${bytes + part.bytes - end} in all`,
        );
      }
    }
    systemFiles.flush(file);
  } finally {
    systemFiles.close(file);
  }
  return { bytes, sha256: hash.digest('hex') };
}

/** Bytes of a file, from `offset` on. */
export interface FileRange {
  readonly offset: number;
  readonly bytes: Uint8Array;
}

/**
 * Fills parts of a file that has the given seal, else CHECKPOINT_CORRUPT. `choose`: which, by the
 * beginning of the file and what can read more of it before it is checked.
 */
export function readSealed(
  path: string,
  seal: FileSeal,
  choose: (read: (offset: number, bytes: number) => Uint8Array) => readonly FileRange[],
): void {
  const file = openCheckpointFile(path);
  try {
    const length = systemFiles.size(file).bytes;
    if (length !== seal.bytes) throw corruptFile(path, `${seal.bytes} bytes`, `${length} bytes`);
    const ranges = choose((offset, bytes) => {
      const chosen = new Uint8Array(Math.max(0, Math.min(bytes, length - offset)));
      readFrom(file, path, chosen, offset, seal);
      return chosen;
    });
    const hash = createHash('sha256');
    const step = new Uint8Array(Math.min(length, STEP_BYTES));
    for (let at = 0; at < length; at += step.length) {
      const piece = step.subarray(0, Math.min(step.length, length - at));
      readFrom(file, path, piece, at, seal);
      hash.update(piece);
      for (const { offset, bytes } of ranges) {
        const [from, to] = [Math.max(at, offset), Math.min(at + piece.length, offset + bytes.length)];
        if (from < to) bytes.set(piece.subarray(from - at, to - at), from - offset);
      }
    }
    const sha256 = hash.digest('hex');
    if (sha256 !== seal.sha256) throw corruptFile(path, `SHA-256 ${seal.sha256}`, `SHA-256 ${sha256}`);
  } finally {
    systemFiles.close(file);
  }
}

/** Checks the seal without keeping the bytes. */
export function verifySealed(path: string, seal: FileSeal): void {
  readSealed(path, seal, () => []);
}

/** Part of a file whose seal was checked before. */
export function readRange(path: string, offset: number, bytes: Uint8Array, seal: FileSeal): void {
  const file = openCheckpointFile(path);
  try {
    readFrom(file, path, bytes, offset, seal);
  } finally {
    systemFiles.close(file);
  }
}

function readFrom(file: number, path: string, target: Uint8Array, offset: number, seal: FileSeal): void {
  for (let at = 0; at < target.length;) {
    const read = systemFiles.read(file, target.subarray(at), offset + at);
    if (read === 0) throw corruptFile(path, `${seal.bytes} bytes`, `${offset + at} bytes`);
    at += read;
  }
}

export function openCheckpointFile(path: string): number {
  try {
    return systemFiles.open(path, constants.O_RDONLY);
  } catch (cause) {
    throw corruptFile(path, 'a readable file', cause instanceof Error ? cause.message : String(cause), cause);
  }
}

export function corruptFile(path: string, expected: string, actual: string, cause?: unknown): UsageError {
  return new UsageError(
    'CHECKPOINT_CORRUPT',
    `The checkpoint file ${path} is damaged: expected ${expected}, found ${actual}. ` +
      'Resume from an earlier checkpoint, or restore the file from a copy.',
    { path, expected, actual },
    cause,
  );
}
