/**
 * The files of this machine with faults: calls that fail when a test asks for it, reads and writes
 * that end early as those of Linux may, a disk that fills up, and power cuts, which take back what
 * was not flushed. A flush that fails drops what it should have written, and the next one succeeds
 * without it, as on Linux.
 */
import { closeSync, ftruncateSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { Random, systemFiles } from '../../../src/base/index.ts';
import type { Files } from '../../../src/base/index.ts';
import { lockableFiles } from '../../../src/memory/index.ts';
import type { LockableFiles } from '../../../src/memory/index.ts';

export type Call = 'open' | 'write' | 'flush' | 'rename' | 'truncate' | 'makeFolder' | 'list' | 'remove';

/** Those of the machine, also while others stand in for them. */
const real: Files = { ...systemFiles };

export class FaultyFiles implements LockableFiles {
  /** Asked before each call; the code of the error that it fails with, or undefined. */
  fault: (call: Call, path: string) => string | undefined = () => undefined;
  /** Bytes that the disk still takes; a write gets what there is, and only the next one fails. */
  room = Infinity;
  readonly calls: string[] = [];
  readonly #random = new Random(1);
  readonly #paths = new Map<number, string>();
  /** What of each file would survive. */
  readonly #safe = new Map<string, Uint8Array>();
  /** Entries that are not flushed in their folder. */
  readonly #unsafeEntries = new Set<string>();

  open: Files['open'] = (path, flags, mode) => {
    this.#may('open', path);
    const isNew = flags !== 'r' && !isThere(path);
    const file = real.open(path, flags, mode);
    this.#paths.set(file, path);
    if (isNew) {
      this.#unsafeEntries.add(path);
      this.#safe.set(path, new Uint8Array());
    }
    return file;
  };

  close: Files['close'] = (file) => real.close(file);
  size: Files['size'] = (file) => real.size(file);
  read: Files['read'] = (file, into, position) => real.read(file, this.#start(into), position);

  write: Files['write'] = (file, bytes, position) => {
    const path = this.#paths.get(file)!;
    this.#may('write', path);
    if (bytes.length > 0 && this.room === 0) throw injected('ENOSPC', 'write', path);
    const written = real.write(file, this.#start(bytes.subarray(0, this.room)), position);
    this.room -= written;
    return written;
  };

  truncate: Files['truncate'] = (file, bytes) => {
    this.#may('truncate', this.#paths.get(file)!);
    real.truncate(file, bytes);
  };

  flush: Files['flush'] = (file) => {
    const path = this.#paths.get(file)!;
    const isFile = real.size(file).isFile;
    try {
      this.#may('flush', path);
    } catch (error) {
      if (isFile) this.#forget(path);
      throw error;
    }
    if (isFile) this.#safe.set(path, readFileSync(path));
    else
      for (const entry of this.#unsafeEntries) if (dirname(entry) === path) this.#unsafeEntries.delete(entry);
  };

  makeFolder: Files['makeFolder'] = (path, mode) => {
    this.#may('makeFolder', path);
    const first = real.makeFolder(path, mode);
    for (let made = path; first !== undefined && made.length >= first.length; made = dirname(made)) {
      this.#unsafeEntries.add(made);
    }
    return first;
  };

  list: Files['list'] = (folder) => {
    this.#may('list', folder);
    return real.list(folder);
  };

  rename: Files['rename'] = (from, to) => {
    this.#may('rename', to);
    real.rename(from, to);
    const safe = this.#safe.get(from);
    if (safe) this.#safe.set(to, safe);
    this.#safe.delete(from);
    this.#unsafeEntries.delete(from);
    this.#unsafeEntries.add(to);
  };

  remove: Files['remove'] = (path) => {
    this.#may('remove', path);
    real.remove(path);
  };
  lock: LockableFiles['lock'] = (file) => lockableFiles.lock(file);
  names: LockableFiles['names'] = (file) => lockableFiles.names(file);
  isAt: LockableFiles['isAt'] = (path, file) => lockableFiles.isAt(path, file);

  /** Stands in for the files of this process, until the function that it returns is called. */
  standIn(): () => void {
    const { open, close, size, read, write, truncate, flush, makeFolder, list, rename, remove } = this;
    Object.assign(systemFiles, {
      ...{ open, close, size, read, write, truncate, flush, makeFolder, list, rename, remove },
    });
    return () => void Object.assign(systemFiles, real);
  }

  /** What was not flushed is gone: entries as if they had never been, bytes as zeros or cut off. */
  cutPower(leaves: 'zeros' | 'nothing'): void {
    for (const entry of this.#unsafeEntries) rmSync(entry, { recursive: true, force: true });
    for (const [path, safe] of this.#safe) {
      if (!isThere(path)) continue;
      const length = leaves === 'zeros' ? Math.max(safe.length, readFileSync(path).length) : safe.length;
      const bytes = new Uint8Array(length);
      bytes.set(safe);
      writeFileSync(path, bytes);
    }
  }

  /** The system has dropped the bytes that it could not write, and takes the file for clean. */
  #forget(path: string): void {
    const safe = this.#safe.get(path)!;
    const bytes = new Uint8Array(readFileSync(path).length);
    bytes.set(safe);
    const file = openSync(path, 'r+');
    ftruncateSync(file, 0);
    closeSync(file);
    writeFileSync(path, bytes);
  }

  #may(call: Call, path: string): void {
    this.calls.push(`${call} ${path}`);
    const code = this.fault(call, path);
    if (code !== undefined) throw injected(code, call, path);
  }

  /** All of it, or often only its first bytes. */
  #start(bytes: Uint8Array): Uint8Array {
    if (bytes.length < 2 || this.#random.below(2) === 0) return bytes;
    return bytes.subarray(0, 1 + this.#random.below(bytes.length - 1));
  }
}

function injected(code: string, call: Call, path: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${code}: injected, ${call} '${path}'`), { code });
}

function isThere(path: string): boolean {
  try {
    readFileSync(path);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EISDIR';
  }
}
