/**
 * The services that administrators have created, as a server with a folder remembers them: one
 * small file, replaced as a whole. It creates and ends nothing. Invariants: when `write` has
 * returned, what it was given is found after a kill or a power cut; neither a nonce nor the
 * administrator's secret is in the file; one process has it at a time.
 */
import { constants } from 'node:fs';
import { join } from 'node:path';
import {
  flushWhereAllowed,
  makeDurableFolder,
  OWNER_FILE,
  OWNER_FOLDER,
  putInPlace,
  readFully,
  UsageError,
  writeNewFile,
} from '../../base/index.ts';
import { FolderLock } from '../../memory/index.ts';
import type { LockableFiles } from '../../memory/index.ts';
import { MAX_SERVICES, readService } from '../wire/administration.ts';
import type { RequestedService } from '../wire/administration.ts';

/** No service has such a name, whose folders lie beside it. */
const OWN_FOLDER = '.services';
const FILE = 'services.json';
const LOCK_FILE = 'lock';
const VERSION = 1;
const MAX_FILE_BYTES = 4 * 2 ** 20;

/** The file of a server with this folder. */
export function keptServicesFile(folder: string): string {
  return join(folder, OWN_FOLDER, FILE);
}

export class KeptServices {
  readonly path: string;
  /** As they were when the file was opened. */
  readonly services: readonly RequestedService[];
  readonly #files: LockableFiles;
  readonly #mark: string;
  readonly #lock: FolderLock;

  private constructor(
    files: LockableFiles,
    path: string,
    mark: string,
    lock: FolderLock,
    services: readonly RequestedService[],
  ) {
    this.#files = files;
    this.path = path;
    this.#mark = mark;
    this.#lock = lock;
    this.services = services;
  }

  /** `mark`: derived from the administrator's secret, so that another secret is noticed. */
  static open(files: LockableFiles, folder: string, mark: string): KeptServices {
    const own = join(folder, OWN_FOLDER);
    const path = keptServicesFile(folder);
    try {
      makeDurableFolder(files, own, OWNER_FOLDER);
    } catch (cause) {
      throw notWritten(own, cause);
    }
    const lock = takeLock(files, own);
    try {
      flushWhereAllowed(files, own);
      const text = read(files, path);
      const services = text === undefined ? [] : servicesIn(text, path, mark);
      return new KeptServices(files, path, mark, lock, services);
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  /** In the place of those that were there. */
  write(services: readonly RequestedService[]): void {
    const temporary = `${this.path}.new`;
    const text = `${JSON.stringify({ version: VERSION, secret: this.#mark, services }, null, 1)}\n`;
    try {
      // A process that was killed may have left it.
      this.#files.remove(temporary);
      putInPlace(this.#files, { temporary, path: this.path }, (beside) =>
        writeNewFile(this.#files, beside, Buffer.from(text), OWNER_FILE),
      );
    } catch (cause) {
      throw notWritten(this.path, cause);
    }
  }

  close(): void {
    this.#lock.release();
  }
}

function takeLock(files: LockableFiles, own: string): FolderLock {
  return FolderLock.take({
    ...{ files, path: join(own, LOCK_FILE), mode: OWNER_FILE },
    refusal: (pid) =>
      new UsageError(
        'FOLDER_IN_USE',
        `The folder ${own} is used by a server in ${pid === undefined ? 'another process' : `process ${pid}`}. ` +
          'Stop that one, or give each server a folder of its own.',
        { path: own, pid },
      ),
  });
}

/** Undefined if there is no file. */
function read(files: LockableFiles, path: string): string | undefined {
  let file: number;
  try {
    file = files.open(path, constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0));
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw damaged(path, `cannot be read: ${(cause as Error).message}`, cause);
  }
  try {
    const { bytes, isFile } = files.size(file);
    if (!isFile || bytes > MAX_FILE_BYTES) throw damaged(path, 'is no file of a server');
    const content = new Uint8Array(bytes);
    return Buffer.from(content.subarray(0, readFully(files, file, content, 0))).toString('utf8');
  } finally {
    files.close(file);
  }
}

function servicesIn(text: string, path: string, mark: string): readonly RequestedService[] {
  let kept: { readonly version?: unknown; readonly secret?: unknown; readonly services?: unknown } | null;
  try {
    kept = JSON.parse(text) as typeof kept;
  } catch (cause) {
    throw damaged(path, 'is not JSON', cause);
  }
  if (kept?.version !== VERSION || !Array.isArray(kept.services) || kept.services.length > MAX_SERVICES) {
    throw damaged(path, `is not of version ${VERSION}, which this release writes`);
  }
  if (kept.secret !== mark) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `The services in ${path} were created with another administrator's secret, and so were their nonces. ` +
        'Give that secret, or remove the file and create the services again.',
      { path },
    );
  }
  let services: readonly RequestedService[];
  try {
    services = kept.services.map(readService);
  } catch (cause) {
    throw damaged(path, `has a service that cannot be: ${(cause as Error).message}`, cause);
  }
  const names = services.map(({ namespace }) => namespace);
  if (new Set(names).size < names.length) throw damaged(path, 'has a service twice');
  return services;
}

function damaged(path: string, fault: string, cause?: unknown): UsageError {
  return new UsageError(
    'INVALID_DATA',
    `${path} ${fault}. Restore it from a copy, or remove it and create the services again.`,
    { path },
    cause,
  );
}

function notWritten(path: string, cause: unknown): UsageError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new UsageError(
    'FILE_NOT_WRITTEN',
    `${path} could not be written on the server: ${reason}. Check the free space and the permissions there, then repeat the command.`,
    { path },
    cause,
  );
}
