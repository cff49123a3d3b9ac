/**
 * The files of this machine with faults: calls that fail when a test says so, and power cuts, which take back what was not
 * flushed. A flush that fails drops what it should have written, and the next one succeeds without it, as on Linux.
 */
import { closeSync, ftruncateSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { systemFiles } from '../../../src/base/index.ts';
import type { Files } from '../../../src/base/index.ts';
import { lockableFiles } from '../../../src/memory/index.ts';
import type { LockableFiles } from '../../../src/memory/index.ts';

export type Call = 'open' | 'write' | 'flush' | 'rename' | 'truncate' | 'makeFolder';

export class FaultyFiles implements LockableFiles {
  /** Asked before each call; the code of the error that it fails with, or undefined. */
  fault: (call: Call, path: string) => string | undefined = () => undefined;
  readonly calls: string[] = [];
  readonly #paths = new Map<number, string>();
  /** What of each file would survive. */
  readonly #safe = new Map<string, Uint8Array>();
  /** Entries that are not flushed in their folder. */
  readonly #unsafeEntries = new Set<string>();

  open: Files['open'] = (path, flags, mode) => {
    this.#may('open', path);
    const isNew = flags !== 'r' && !isThere(path);
    const file = systemFiles.open(path, flags, mode);
    this.#paths.set(file, path);
    if (isNew) {
      this.#unsafeEntries.add(path);
      this.#safe.set(path, new Uint8Array());
    }
    return file;
  };

  close: Files['close'] = (file) => systemFiles.close(file);
  size: Files['size'] = (file) => systemFiles.size(file);
  read: Files['read'] = (...args) => systemFiles.read(...args);

  write: Files['write'] = (file, bytes, position) => {
    this.#may('write', this.#paths.get(file)!);
    return systemFiles.write(file, bytes, position);
  };

  truncate: Files['truncate'] = (file, bytes) => {
    this.#may('truncate', this.#paths.get(file)!);
    systemFiles.truncate(file, bytes);
  };

  flush: Files['flush'] = (file) => {
    const path = this.#paths.get(file)!;
    const isFile = systemFiles.size(file).isFile;
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
    return systemFiles.makeFolder(path, mode);
  };

  list: Files['list'] = (folder) => systemFiles.list(folder);

  rename: Files['rename'] = (from, to) => {
    this.#may('rename', to);
    systemFiles.rename(from, to);
    this.#safe.set(to, this.#safe.get(from)!);
    this.#safe.delete(from);
    this.#unsafeEntries.delete(from);
    this.#unsafeEntries.add(to);
  };

  remove: Files['remove'] = (path) => systemFiles.remove(path);
  lock: LockableFiles['lock'] = (file) => lockableFiles.lock(file);
  names: LockableFiles['names'] = (file) => lockableFiles.names(file);
  isAt: LockableFiles['isAt'] = (path, file) => lockableFiles.isAt(path, file);

  /** What was not flushed is gone: entries as if they had never been, bytes as zeros or cut off. */
  cutPower(leaves: 'zeros' | 'nothing'): void {
    for (const entry of this.#unsafeEntries) rmSync(entry, { force: true });
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
    if (code === undefined) return;
    throw Object.assign(new Error(`${code}: injected, ${call} '${path}'`), { code });
  }
}

function isThere(path: string): boolean {
  try {
    readFileSync(path);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EISDIR';
  }
}
