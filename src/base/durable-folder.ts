/**
 * Folders whose entries survive a power cut, and files or folders that appear in them whole or not at all: written beside,
 * flushed, renamed, the folder flushed. It knows nothing of what is written. Invariants: when a function here has returned,
 * what it made is found after a power cut; whatever happens, what is found under a final name is whole.
 */
import { dirname, resolve } from 'node:path';
import { runAtOnce, type AwaitedSteps } from './awaited-steps.ts';
import { flushFolder } from './files.ts';
import type { Files } from './files.ts';

/** Modes for what holds parameters: nobody but the owner may read it. */
export const OWNER_FILE = 0o600;
export const OWNER_FOLDER = 0o700;

/**
 * Makes a folder, with those above it that are missing; the entry of each is flushed where it
 * stands. Also of those that were there: an earlier attempt may have made any of them, and failed
 * or ended before it flushed them. Returns the first one that was made, or undefined.
 */
export function makeDurableFolder(files: Files, path: string, mode: number): string | undefined {
  const whole = resolve(path);
  const first = files.makeFolder(path, mode);
  const top = first === undefined ? whole : dirname(resolve(first));
  for (let made = whole; made !== dirname(made); made = dirname(made)) {
    if (made.length > top.length) flushFolder(files, dirname(made));
    else flushWhereAllowed(files, dirname(made));
  }
  return first;
}

/**
 * Before what is found in a folder is built on: whoever put it there may have failed or ended
 * before it flushed the folder. Of one that cannot be opened or flushed at all, the entries are
 * taken to be durable.
 */
export function flushWhereAllowed(files: Files, folder: string): void {
  try {
    flushFolder(files, folder);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EACCES' && code !== 'EPERM' && code !== 'EROFS' && code !== 'EINVAL') throw error;
  }
}

/**
 * Lets `write` make a file or a folder under the name `temporary`, flushed, and gives it its final
 * name. If it throws, nothing is left under `temporary`; under the final name the new one may be,
 * whole, when only flushing its entry failed: a power cut may still take it.
 */
export function putInPlace(files: Files, names: Names, write: (temporary: string) => void): void {
  runAtOnce(
    // eslint-disable-next-line require-yield
    putInPlaceInSteps(files, names, function* (temporary) {
      write(temporary);
    }),
  );
}

interface Names {
  readonly temporary: string;
  readonly path: string;
}

/** The same for what comes piece by piece. */
export function* putInPlaceInSteps(
  files: Files,
  { temporary, path }: Names,
  write: (temporary: string) => AwaitedSteps<void>,
): AwaitedSteps<void> {
  try {
    yield* write(temporary);
    files.rename(temporary, path);
  } catch (cause) {
    try {
      files.remove(temporary);
    } catch {
      // What cannot be removed costs room, not safety; the cause tells more.
    }
    throw cause;
  }
  flushFolder(files, dirname(path));
}
