/**
 * The blocking file calls on which durability rests, as one contract, so that a simulation can give a disk that fills up,
 * tears writes and loses what was not flushed. Errors are those of `node:fs`, with a `code`. Not for reading datasets or
 * configuration. Invariant: a call has taken effect when it returns, and survives a power cut only after `flush`.
 */
import {
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs';

export interface Files {
  /** `flags` as in `node:fs` constants, or 'r' for a folder that is to be flushed. */
  open(path: string, flags: number | 'r', mode?: number): number;
  close(file: number): void;
  size(file: number): { readonly bytes: number; readonly isFile: boolean };
  /** Bytes read; 0 at the end. */
  read(file: number, into: Uint8Array, position: number): number;
  /** Bytes written, which may be fewer than given. */
  write(file: number, bytes: Uint8Array, position: number): number;
  truncate(file: number, bytes: number): void;
  /** Of a file its bytes, of a folder its entries, to the device. */
  flush(file: number): void;
  /** With all folders above it; returns the first one that was made, or undefined. */
  makeFolder(path: string, mode: number): string | undefined;
  list(folder: string): string[];
  rename(from: string, to: string): void;
  /** A file, or a folder with all in it. No error if it is not there. */
  remove(path: string): void;
}

export const systemFiles: Files = {
  open: (path, flags, mode) => openSync(path, flags, mode),
  close: (file) => closeSync(file),
  size(file) {
    const stat = fstatSync(file);
    return { bytes: stat.size, isFile: stat.isFile() };
  },
  read: (file, into, position) => readSync(file, into, 0, into.length, position),
  write: (file, bytes, position) => writeSync(file, bytes, 0, bytes.length, position),
  truncate: (file, bytes) => ftruncateSync(file, bytes),
  flush: (file) => fsyncSync(file),
  makeFolder: (path, mode) => mkdirSync(path, { recursive: true, mode }),
  list: (folder) => readdirSync(folder),
  rename: (from, to) => renameSync(from, to),
  remove: (path) => rmSync(path, { recursive: true, force: true }),
};

export function writeFully(files: Files, file: number, bytes: Uint8Array, position: number): void {
  for (let done = 0; done < bytes.length;) {
    const count = files.write(file, bytes.subarray(done), position + done);
    if (count === 0) {
      throw new Error(`the file takes no more: ${done} of ${bytes.length} bytes were written at ${position}`);
    }
    done += count;
  }
}

/** A new file with these bytes, flushed; its entry in the folder is not. */
export function writeNewFile(files: Files, path: string, bytes: Uint8Array, mode: number): void {
  const { O_CREAT, O_EXCL, O_WRONLY } = constants;
  const file = files.open(path, O_WRONLY | O_CREAT | O_EXCL, mode);
  try {
    writeFully(files, file, bytes, 0);
    files.flush(file);
  } finally {
    files.close(file);
  }
}

/** Bytes read: fewer than asked for only where the file ends. */
export function readFully(files: Files, file: number, into: Uint8Array, position: number): number {
  let done = 0;
  while (done < into.length) {
    const count = files.read(file, into.subarray(done), position + done);
    if (count === 0) break;
    done += count;
  }
  return done;
}

/** Makes the entries of a folder durable: what was created, renamed or removed in it. */
export function flushFolder(files: Files, path: string): void {
  // Windows opens no folders; its file system journals the rename by itself.
  if (process.platform === 'win32') return;
  const folder = files.open(path, 'r');
  try {
    files.flush(folder);
  } finally {
    files.close(folder);
  }
}
