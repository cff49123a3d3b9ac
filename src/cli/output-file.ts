/**
 * A file that a command writes at its end where the user wants it, checked at its beginning: nobody should train for hours for a
 * file that cannot be written. Not the files of a run folder.
 * Invariant: what the check refuses could not have been written; what it passes may still fail, as by a full disk.
 */
import { accessSync, constants, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { UsageError } from '../base/index.ts';

/** Makes the folder of the file if there is none. */
export function writeOutputFile(path: string, content: string | Uint8Array, option: string): void {
  try {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, content);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(
      'FILE_NOT_WRITTEN',
      `${path} could not be written: ${reason}. Give another place by ${option}.`,
      { path, option },
      cause,
    );
  }
}

/** `path` is absolute. Touches nothing: folders that are not there are made when the file is written. */
export function checkOutputFile(path: string, option: string): void {
  const fault = faultOf(path);
  if (fault === undefined) return;
  throw new UsageError(
    'FILE_NOT_WRITTEN',
    `${path} cannot be written: ${fault}. Give another file by ${option}.`,
    { path, option },
  );
}

function faultOf(path: string): string | undefined {
  const found = statAt(path);
  if (found?.isDirectory()) return 'it is a folder';
  let at = found ? path : dirname(path);
  // The root is always there.
  while (!statAt(at)) at = dirname(at);
  if (!found && !statAt(at)!.isDirectory()) return `${at} is a file, not a folder`;
  try {
    accessSync(at, constants.W_OK);
    return undefined;
  } catch (cause) {
    return cause instanceof Error ? cause.message : String(cause);
  }
}

/** Undefined where there is nothing, also below a file. */
function statAt(path: string) {
  try {
    return statSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined;
  }
}
