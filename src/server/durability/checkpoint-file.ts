/**
 * One checkpoint of a server as one file: 16 bytes (a mark and the manifest's length), the manifest's SHA-256, the manifest
 * (JSON), then the tensors' elements, little-endian, in its order. All calls block; they run in the checkpoint thread.
 * Invariants: the bytes that are hashed are those that are written, even while others change the source; a file that
 * is read is checked to the last byte, and nothing is allocated that is longer than the file.
 */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { OWNER_FILE, readFully, UsageError, writeFully } from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import { elementCount, FORMAT, isCount, manifestFault, totalElements } from './server-state.ts';
import type { Manifest } from './server-state.ts';

const MARK = Buffer.from('tributary-ps');
const LENGTH_AT = MARK.length;
const HASH_AT = 16;
const MANIFEST_AT = 48;
const MAX_MANIFEST_BYTES = 64 * 2 ** 20;
const PIECE_BYTES = 2 ** 20;

/** A file's content; the data is left out when it was only verified. */
export interface CheckpointContent {
  readonly manifest: Manifest;
  readonly data: Float32Array<ArrayBuffer>[];
}

/** Writes a new file and flushes it to the device. The hashes of the manifest are filled in. */
export function writeCheckpointFile(
  files: Files,
  path: string,
  manifest: Manifest,
  data: readonly Float32Array[],
): void {
  const { O_CREAT, O_EXCL, O_WRONLY } = constants;
  const file = files.open(path, O_WRONLY | O_CREAT | O_EXCL, OWNER_FILE);
  try {
    // The hashes are known last but stand first: the manifest has the same length with and without them.
    let at = MANIFEST_AT + manifestBytes(manifest).length;
    const hashes: string[] = [];
    const piece = Buffer.allocUnsafe(PIECE_BYTES);
    for (const tensor of data) {
      const bytes = new Uint8Array(tensor.buffer, tensor.byteOffset, tensor.byteLength);
      const hash = createHash('sha256');
      for (let start = 0; start < bytes.length; start += PIECE_BYTES) {
        const source = bytes.subarray(start, start + PIECE_BYTES);
        piece.set(source);
        const own = piece.subarray(0, source.length);
        hash.update(own);
        writeFully(files, file, own, at);
        at += own.length;
      }
      hashes.push(hash.digest('hex'));
    }
    const sealed = manifestBytes(withHashes(manifest, hashes));
    const head = Buffer.alloc(MANIFEST_AT);
    MARK.copy(head);
    head.writeUInt32LE(sealed.length, LENGTH_AT);
    createHash('sha256').update(sealed).digest().copy(head, HASH_AT);
    writeFully(files, file, Buffer.concat([head, sealed]), 0);
    files.flush(file);
  } finally {
    files.close(file);
  }
}

/** Reads a file, or only verifies it; CHECKPOINT_CORRUPT says what was expected and found. */
export function readCheckpointFile(
  files: Files,
  path: string,
  step: number,
  keep: boolean,
): CheckpointContent {
  const file = openRegular(files, path);
  try {
    const fileBytes = files.size(file).bytes;
    const manifest = readManifest(files, file, fileBytes, path);
    if (manifest.step !== step) throw corrupt(path, `step ${step} as in its name`, `step ${manifest.step}`);
    const tensors = manifest.keys.flatMap((key) => key.tensors.map((tensor) => ({ key, tensor })));
    let at = fileBytes - 4 * totalElements(manifest);
    const data: Float32Array<ArrayBuffer>[] = [];
    const scratch = new Uint8Array(PIECE_BYTES);
    for (const { key, tensor } of tensors) {
      const bytes = 4 * elementCount(tensor.ranges);
      const elements = new Float32Array(keep ? bytes / 4 : 0);
      const own = new Uint8Array(elements.buffer);
      const hash = createHash('sha256');
      for (let done = 0; done < bytes; done += PIECE_BYTES) {
        const length = Math.min(PIECE_BYTES, bytes - done);
        const piece = keep ? own.subarray(done, done + length) : scratch.subarray(0, length);
        readExactly(files, file, piece, at + done, path);
        hash.update(piece);
      }
      const sha256 = hash.digest('hex');
      if (sha256 !== tensor.sha256) {
        const what = `of tensor '${tensor.name}' of key '${key.name}'`;
        throw corrupt(path, `SHA-256 ${tensor.sha256} ${what}`, sha256);
      }
      if (keep) data.push(elements);
      at += bytes;
    }
    return { manifest, data };
  } catch (cause) {
    if (cause instanceof UsageError) throw cause;
    throw corrupt(path, 'a readable file', cause instanceof Error ? cause.message : String(cause), cause);
  } finally {
    files.close(file);
  }
}

function readManifest(files: Files, file: number, fileBytes: number, path: string): Manifest {
  if (fileBytes < MANIFEST_AT) throw corrupt(path, `at least ${MANIFEST_AT} bytes`, `${fileBytes} bytes`);
  const head = Buffer.alloc(MANIFEST_AT);
  readExactly(files, file, head, 0, path);
  if (!head.subarray(0, LENGTH_AT).equals(MARK))
    throw corrupt(path, 'the mark of a checkpoint', 'other bytes');
  const length = head.readUInt32LE(LENGTH_AT);
  const limit = Math.min(MAX_MANIFEST_BYTES, fileBytes - MANIFEST_AT);
  if (length > limit) throw corrupt(path, `a manifest of at most ${limit} bytes`, `one of ${length}`);
  const bytes = Buffer.alloc(length);
  readExactly(files, file, bytes, MANIFEST_AT, path);
  if (!createHash('sha256').update(bytes).digest().equals(head.subarray(HASH_AT))) {
    throw corrupt(path, 'a manifest as it was written', 'another SHA-256 of it');
  }
  // From here on nothing is damaged, but it may be of another release or made by somebody else.
  const value: unknown = JSON.parse(bytes.toString());
  const format = (value as Partial<Manifest> | null)?.format;
  if (isCount(format) && format !== FORMAT) throw otherFormat(path, format);
  const fault = manifestFault(value);
  if (fault !== undefined) throw corrupt(path, 'the manifest of a server', `one in which ${fault}`);
  const manifest = value as Manifest;
  const expected = MANIFEST_AT + length + 4 * totalElements(manifest);
  if (expected !== fileBytes) throw corrupt(path, `${expected} bytes`, `${fileBytes} bytes`);
  return manifest;
}

function manifestBytes(manifest: Manifest): Buffer {
  const bytes = Buffer.from(JSON.stringify(manifest));
  if (bytes.length <= MAX_MANIFEST_BYTES) return bytes;
  throw new Error(
    `its manifest has ${bytes.length} bytes, more than ${MAX_MANIFEST_BYTES}; use fewer ranges`,
  );
}

function withHashes(manifest: Manifest, hashes: readonly string[]): Manifest {
  let next = 0;
  const keys = manifest.keys.map((key) => ({
    ...key,
    tensors: key.tensors.map((tensor) => ({ ...tensor, sha256: hashes[next++]! })),
  }));
  return { ...manifest, keys };
}

/** Neither a link nor a pipe, on which an open would hang. */
function openRegular(files: Files, path: string): number {
  let file: number;
  try {
    file = files.open(path, constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0));
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') {
      throw new UsageError(
        'FILE_NOT_FOUND',
        `There is no checkpoint ${path}. List the steps that there are.`,
        {
          path,
        },
      );
    }
    throw corrupt(path, 'a readable file', (cause as Error).message, cause);
  }
  if (files.size(file).isFile) return file;
  files.close(file);
  throw corrupt(path, 'a regular file', 'something else');
}

function readExactly(files: Files, file: number, bytes: Uint8Array, position: number, path: string): void {
  const read = readFully(files, file, bytes, position);
  if (read < bytes.length) throw corrupt(path, `${bytes.length} bytes at ${position}`, `${read} bytes`);
}

function corrupt(path: string, expected: string, actual: string, cause?: unknown): UsageError {
  return new UsageError(
    'CHECKPOINT_CORRUPT',
    `The checkpoint file ${path} is damaged: expected ${expected}, found ${actual}. ` +
      'Continue from an earlier checkpoint, or restore the file from a copy.',
    { path, expected, actual },
    cause,
  );
}

function otherFormat(path: string, format: number): UsageError {
  return new UsageError(
    'CHECKPOINT_MISMATCH',
    `The checkpoint file ${path} has format ${format}; this release reads format ${FORMAT}. ` +
      'Continue with the release that wrote it.',
    { path, expected: FORMAT, actual: format },
  );
}
