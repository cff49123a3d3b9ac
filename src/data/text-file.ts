/**
 * Reading files whose bytes are not trusted: whole files as bytes or as UTF-8 text (a byte-order mark is
 * dropped), with errors that name the file and, for text, the line. Parses nothing.
 */
import { readFileSync, statSync } from 'node:fs';
import { TextDecoder } from 'node:util';
import { UsageError } from '../base/index.ts';

/** A JavaScript string cannot be longer than about 2^29 characters. */
const MAX_TEXT_BYTES = 2 ** 29 - 1024;

export function readBytes(path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw unreadable(path, cause);
  }
}

export function readText(path: string): string {
  let size: number;
  try {
    size = statSync(path).size;
  } catch (cause) {
    throw unreadable(path, cause);
  }
  if (size > MAX_TEXT_BYTES) {
    throw new UsageError(
      'INVALID_DATA',
      `${path} has ${size} bytes; a text file may have at most ${MAX_TEXT_BYTES}. Split it into parts.`,
      { path, expected: MAX_TEXT_BYTES, actual: size },
    );
  }
  const bytes = readBytes(path);
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    const line = firstBadLine(bytes);
    throw new UsageError(
      'INVALID_DATA',
      `${path}, line ${line}: not valid UTF-8. Save the file as UTF-8 and try again.`,
      { path, line },
      cause,
    );
  }
}

function firstBadLine(bytes: Buffer): number {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let line = 1;
  let start = 0;
  while (start < bytes.length) {
    const newline = bytes.indexOf(10, start);
    const end = newline === -1 ? bytes.length : newline + 1;
    try {
      decoder.decode(bytes.subarray(start, end));
    } catch {
      return line;
    }
    start = end;
    line++;
  }
  return line;
}

function unreadable(path: string, cause: unknown): UsageError {
  const reason = cause instanceof Error ? cause.message : String(cause);
  return new UsageError(
    'FILE_NOT_FOUND',
    `Cannot read ${path}: ${reason}. Check the path and its permissions.`,
    { path },
    cause,
  );
}
