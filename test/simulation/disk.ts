/**
 * A disk that a simulated machine has, as real ones are: what was written is seen by every process at once, but survives a power
 * cut only if it was flushed, of a folder its entries, of a file its bytes. A flush that failed loses the bytes for good:
 * the next one succeeds without them, as on Linux. Terms: dirty bytes are written and not flushed. Invariant: calls
 * behave like those of `node:fs` towards a caller that checks only codes.
 */
import { constants } from 'node:fs';
import { basename, dirname } from 'node:path';
import type { Random } from '../../src/base/index.ts';
import type { LockableFiles } from '../../src/memory/index.ts';

interface Range {
  readonly start: number;
  readonly end: number;
}

/** What a device writes whole or not at all. */
const SECTOR_BYTES = 512;

class File {
  bytes = new Uint8Array(0);
  /** As after a power cut, if nothing of the dirty bytes came through. */
  durable = new Uint8Array(0);
  dirty: Range[] = [];
  /** Where a write ended that took a part of what it was given: what follows there is the rest of the same. */
  partEnd: number | undefined;
  /** Of failed flushes. */
  lost: Range[] = [];
  /** Who has locked it, by which descriptor. */
  lock: { readonly owner: DiskUser; readonly descriptor: number } | undefined;
}

/** A process, whose locks go with it. */
interface DiskUser {
  readonly isDead: boolean;
}

class Folder {
  entries = new Map<string, File | Folder>();
  durable = new Map<string, File | Folder>();
}

/** Where in the way of bytes to the disk a fault can hit. */
export const DISK_POINTS = ['open', 'write', 'flush', 'rename', 'truncate', 'remove'] as const;
export type DiskPoint = (typeof DISK_POINTS)[number];

/**
 * Is asked before each call that changes something; may end the process, or throw what the call is
 * to throw, and have the kernel do later what it does (`act`).
 */
export interface DiskFaults {
  before(point: DiskPoint, path: string, act?: () => void): void;
  after(point: DiskPoint, path: string): void;
  /** How many bytes of a write come through before the process ends; undefined: all, and it lives. */
  torn(path: string, bytes: number): number | undefined;
  /** Whether a flush is to fail. */
  failsFlush(path: string): boolean;
  /** How many bytes of a read or write one call takes, at least one: calls may do less than they are asked for. */
  taken(bytes: number): number;
}

export class Disk {
  readonly #root = new Folder();
  /** Bytes by which files can still grow. */
  #roomBytes = Infinity;

  /** Files can grow by so many bytes only; with 0 there is no room for new ones either. */
  fillUp(roomBytes: number): void {
    this.#roomBytes = roomBytes;
  }

  /** Somebody has made room. */
  clearUp(): void {
    this.#roomBytes = Infinity;
  }

  /** The disk as one process sees it, with descriptors of its own. */
  filesFor(faults: DiskFaults, owner: DiskUser): LockableFiles {
    const open = new Map<number, { readonly node: File | Folder; readonly path: string }>();
    let next = 3;
    const fileOf = (descriptor: number): { readonly node: File; readonly path: string } => {
      const found = open.get(descriptor);
      if (found === undefined || !(found.node instanceof File)) throw fault('EBADF', String(descriptor));
      return found as { node: File; path: string };
    };
    return {
      open: (path, flags) => {
        const isCreating = typeof flags === 'number' && (flags & constants.O_CREAT) !== 0;
        if (isCreating) faults.before('open', path);
        let node = this.#find(path);
        if (node !== undefined && typeof flags === 'number' && (flags & constants.O_EXCL) !== 0) {
          throw fault('EEXIST', path);
        }
        if (node === undefined) {
          const folder = this.#find(dirname(path));
          if (!isCreating || !(folder instanceof Folder)) throw fault('ENOENT', path);
          if (this.#roomBytes === 0) throw fault('ENOSPC', path);
          node = new File();
          folder.entries.set(basename(path), node);
        }
        open.set(next, { node, path });
        return next++;
      },
      close: (descriptor) => {
        const node = open.get(descriptor)?.node;
        if (!open.delete(descriptor)) throw fault('EBADF', String(descriptor));
        const lock = node instanceof File ? node.lock : undefined;
        if (lock?.owner === owner && lock.descriptor === descriptor) (node as File).lock = undefined;
      },
      lock: (descriptor) => {
        const { node } = fileOf(descriptor);
        if (node.lock && !node.lock.owner.isDead) return false;
        node.lock = { owner, descriptor };
        return true;
      },
      names: () => 1,
      isAt: (path, descriptor) => this.#find(path) === fileOf(descriptor).node,
      size: (descriptor) => {
        const node = open.get(descriptor)?.node;
        return node instanceof File
          ? { bytes: node.bytes.length, isFile: true }
          : { bytes: 0, isFile: false };
      },
      read: (descriptor, into, position) => {
        const { node } = fileOf(descriptor);
        const asked = into.length === 0 ? 0 : faults.taken(into.length);
        const part = node.bytes.subarray(position, position + asked);
        into.set(part);
        return part.length;
      },
      write: (descriptor, bytes, position) => {
        const { node, path } = fileOf(descriptor);
        faults.before('write', path);
        // What still has room is written, and the call says how much; only the next one fails.
        const roomBytes = Math.max(0, node.bytes.length - position) + this.#roomBytes;
        if (roomBytes === 0 && bytes.length > 0) throw fault('ENOSPC', path);
        const torn = faults.torn(path, bytes.length);
        const taken = torn ?? faults.taken(bytes.length);
        const count = Math.min(roomBytes, taken);
        this.#roomBytes -= Math.max(0, position + count - node.bytes.length);
        write(node, bytes.subarray(0, count), position);
        node.partEnd = count < bytes.length ? position + count : undefined;
        if (torn !== undefined) throw fault('EIO', path);
        faults.after('write', path);
        return count;
      },
      truncate: (descriptor, length) => {
        const { node, path } = fileOf(descriptor);
        faults.before('truncate', path);
        if (length === node.bytes.length) return;
        this.#roomBytes += node.bytes.length - length;
        const bytes = new Uint8Array(length);
        bytes.set(node.bytes.subarray(0, length));
        node.bytes = bytes;
        node.dirty.push({ start: length, end: length });
      },
      flush: (descriptor) => {
        const found = open.get(descriptor);
        if (found === undefined) throw fault('EBADF', String(descriptor));
        faults.before('flush', found.path);
        if (found.node instanceof Folder) {
          if (faults.failsFlush(found.path)) throw fault('EIO', found.path);
          found.node.durable = new Map(found.node.entries);
        } else if (faults.failsFlush(found.path)) {
          found.node.lost.push(...found.node.dirty.splice(0));
          throw fault('EIO', found.path);
        } else flush(found.node);
        faults.after('flush', found.path);
      },
      makeFolder: (path) => this.#makeFolder(path),
      list: (path) => {
        const folder = this.#find(path);
        if (!(folder instanceof Folder)) throw fault('ENOENT', path);
        return [...folder.entries.keys()].sort();
      },
      rename: (from, to) => {
        const act = (): void => this.#rename(from, to);
        faults.before('rename', to, act);
        act();
        faults.after('rename', to);
      },
      remove: (path) => {
        faults.before('remove', path);
        const folder = this.#find(dirname(path));
        if (folder instanceof Folder) folder.entries.delete(basename(path));
      },
    };
  }

  /** Names in a folder; none if it is not there. */
  list(path: string): readonly string[] {
    const folder = this.#find(path);
    return folder instanceof Folder ? [...folder.entries.keys()].sort() : [];
  }

  /** Changes one byte of a file, wherever it is kept. */
  damage(path: string, random: Random): void {
    const file = this.#find(path);
    if (!(file instanceof File) || file.bytes.length === 0) return;
    const at = random.below(file.bytes.length);
    const change = 1 + random.below(255);
    for (const bytes of [file.bytes, file.durable]) if (at < bytes.length) bytes[at]! ^= change;
  }

  /** What was flushed stays; of the rest some comes through, some does not, and some only in part. */
  cutPower(random: Random): void {
    this.clearUp();
    const visit = (folder: Folder): void => {
      for (const name of new Set([...folder.entries.keys(), ...folder.durable.keys()])) {
        if (folder.entries.get(name) === folder.durable.get(name) || random.below(2) === 0) continue;
        const before = folder.durable.get(name);
        if (before === undefined) folder.entries.delete(name);
        else folder.entries.set(name, before);
      }
      folder.durable = new Map(folder.entries);
      for (const node of folder.entries.values()) {
        if (node instanceof Folder) visit(node);
        else loseDirty(node, random);
      }
    };
    visit(this.#root);
  }

  #rename(from: string, to: string): void {
    const node = this.#find(from);
    const source = this.#find(dirname(from));
    const target = this.#find(dirname(to));
    if (node === undefined || !(source instanceof Folder) || !(target instanceof Folder)) {
      throw fault('ENOENT', from);
    }
    source.entries.delete(basename(from));
    target.entries.set(basename(to), node);
  }

  #makeFolder(path: string): string | undefined {
    let folder = this.#root;
    let first: string | undefined;
    let sofar = '';
    for (const name of path.split('/').filter((part) => part !== '')) {
      sofar += `/${name}`;
      let next = folder.entries.get(name);
      if (next === undefined) {
        if (this.#roomBytes === 0) throw fault('ENOSPC', sofar);
        folder.entries.set(name, (next = new Folder()));
        first ??= sofar;
      }
      if (!(next instanceof Folder)) throw fault('ENOTDIR', sofar);
      folder = next;
    }
    return first;
  }

  #find(path: string): File | Folder | undefined {
    let node: File | Folder | undefined = this.#root;
    for (const name of path.split('/')) {
      if (name === '') continue;
      if (!(node instanceof Folder)) return undefined;
      node = node.entries.get(name);
    }
    return node;
  }
}

function write(file: File, bytes: Uint8Array, position: number): void {
  const end = position + bytes.length;
  if (end > file.bytes.length) {
    const grown = new Uint8Array(end);
    grown.set(file.bytes);
    file.bytes = grown;
  }
  file.bytes.set(bytes, position);
  // A device does not lose the beginning of a sector whose end it has.
  const part = file.partEnd === position ? file.dirty.pop() : undefined;
  file.dirty.push({ start: part?.start ?? position, end });
  file.lost = file.lost.filter(({ start, end: to }) => start < position || to > end);
}

function flush(file: File): void {
  const before = file.durable;
  file.durable = file.bytes.slice();
  for (const { start, end } of file.lost) {
    file.durable.fill(0, start, end);
    file.durable.set(before.subarray(start, end), start);
  }
  file.dirty = [];
}

function loseDirty(file: File, random: Random): void {
  flushLost(file);
  if (file.dirty.length > 0) {
    // The length may have come through where the bytes have not: zeros stand there then.
    const isLong = random.below(2) === 0;
    const length = isLong ? file.bytes.length : file.durable.length;
    const bytes = new Uint8Array(length);
    bytes.set(file.durable.subarray(0, length));
    for (const { start, end } of file.dirty) {
      const torn = SECTOR_BYTES * Math.floor((start + random.below(end - start + 1)) / SECTOR_BYTES);
      const keptTo = [start, end, Math.max(start, torn)][random.below(3)]!;
      if (start < length) bytes.set(file.bytes.subarray(start, Math.min(keptTo, length)), start);
    }
    file.bytes = bytes;
  } else {
    file.bytes = file.durable.slice();
  }
  file.durable = file.bytes.slice();
  file.dirty = [];
}

/** What failed flushes lost was in memory only. */
function flushLost(file: File): void {
  for (const { start, end } of file.lost) {
    if (start >= file.bytes.length) continue;
    file.bytes.fill(0, start, end);
    file.bytes.set(file.durable.subarray(start, Math.min(end, file.bytes.length)), start);
  }
  file.lost = [];
}

function fault(code: string, path: string): NodeJS.ErrnoException {
  return Object.assign(new Error(`${code}: simulated, '${path}'`), { code });
}
