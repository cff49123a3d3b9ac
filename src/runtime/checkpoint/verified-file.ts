/**
 * Files that are written durably and read back only if length and SHA-256 agree. Streams through a small private
 * buffer: the bytes that are hashed are those that are written, even while other processes change the source, and
 * files above 2 GiB work. Knows nothing of what the files hold.
 */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { systemFiles, UsageError, writeFully } from '../../base/index.ts';

const STEP_BYTES = 2 ** 20;

export interface FileSeal {
  readonly bytes: number;
  /** Hexadecimal. */
  readonly sha256: string;
}

/** Writes a new file and flushes it to the device. */
export function writeSealed(path: string, pieces: readonly Uint8Array[]): FileSeal {
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(STEP_BYTES);
  let bytes = 0;
  const { O_CREAT, O_EXCL, O_WRONLY } = constants;
  const file = systemFiles.open(path, O_WRONLY | O_CREAT | O_EXCL, 0o666);
  try {
    for (const piece of pieces) {
      for (let start = 0; start < piece.length; start += STEP_BYTES) {
        const step = piece.subarray(start, start + STEP_BYTES);
        buffer.set(step);
        hash.update(buffer.subarray(0, step.length));
        writeFully(systemFiles, file, buffer.subarray(0, step.length), bytes);
        bytes += step.length;
      }
    }
    systemFiles.flush(file);
  } finally {
    systemFiles.close(file);
  }
  return { bytes, sha256: hash.digest('hex') };
}

/** The bytes of a file that has the given seal, else CHECKPOINT_CORRUPT. */
export function readSealed(path: string, seal: FileSeal): Uint8Array {
  return readChecked(path, seal, true);
}

/** Checks the seal without keeping the bytes. */
export function verifySealed(path: string, seal: FileSeal): void {
  readChecked(path, seal, false);
}

function readChecked(path: string, seal: FileSeal, keep: boolean): Uint8Array {
  const file = openCheckpointFile(path);
  try {
    const length = systemFiles.size(file).bytes;
    if (length !== seal.bytes) throw corruptFile(path, `${seal.bytes} bytes`, `${length} bytes`);
    const hash = createHash('sha256');
    const bytes = new Uint8Array(keep ? length : Math.min(length, STEP_BYTES));
    for (let at = 0; at < length;) {
      const start = keep ? at : 0;
      const piece = bytes.subarray(start, start + Math.min(STEP_BYTES, length - at));
      const read = systemFiles.read(file, piece, at);
      if (read === 0) throw corruptFile(path, `${seal.bytes} bytes`, `${at} bytes`);
      hash.update(bytes.subarray(start, start + read));
      at += read;
    }
    const sha256 = hash.digest('hex');
    if (sha256 !== seal.sha256) throw corruptFile(path, `SHA-256 ${seal.sha256}`, `SHA-256 ${sha256}`);
    return bytes;
  } finally {
    systemFiles.close(file);
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
