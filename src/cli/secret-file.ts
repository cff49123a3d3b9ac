/**
 * Secrets and keys that commands take from files, so that they are on no command line and in no
 * log: what a file holds is returned and never part of a message. Invariants: a secret that is made
 * here can be read by this user only, and survives a power cut once it is returned; two commands
 * that make the same file at the same time end up with the same secret.
 */
import { randomBytes } from 'node:crypto';
import { existsSync, linkSync, readFileSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import {
  flushFolder,
  flushWhereAllowed,
  makeDurableFolder,
  OWNER_FILE,
  OWNER_FOLDER,
  systemFiles,
  UsageError,
  writeNewFile,
} from '../base/index.ts';

const SECRET_BYTES = 32;
const OTHERS_MAY_READ = 0o044;

export interface SecretFile {
  readonly path: string;
  readonly secret: string;
  readonly isNew: boolean;
  /** Other users of this machine can read it. */
  readonly isExposed: boolean;
}

/** What the file holds, without white space around it; 64 random hexadecimal digits in a new file if it is not there. */
export function openSecretFile(path: string): SecretFile {
  const isNew = createSecret(path);
  const secret = readSecret(path, 'delete it, and a new secret is made, or write one into it');
  return { path, secret, isNew, isExposed: isExposed(path) };
}

/** The same where another process has made it: nothing is written. */
export function givenSecretFile(path: string): SecretFile {
  const secret = readSecret(path, 'copy it again from where it was made');
  return { path, secret, isNew: false, isExposed: isExposed(path) };
}

function readSecret(path: string, nextStep: string): string {
  const secret = readGivenFile(path, 'secret').trim();
  if (secret !== '') return secret;
  throw new UsageError('INVALID_DATA', `${path} is empty; ${nextStep}.`, { path });
}

function isExposed(path: string): boolean {
  return (statSync(path).mode & OTHERS_MAY_READ) !== 0;
}

/** A file that an option names; `what` says what it should hold. */
export function readGivenFile(path: string, what: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw new UsageError(
      'FILE_NOT_FOUND',
      `The ${what} ${path} cannot be read: ${reasonOf(cause)}. Check the path and its permissions.`,
      { path },
      cause,
    );
  }
}

/** False if the file was there. It appears with all it holds at once, since others may be about to read it. */
function createSecret(path: string): boolean {
  const folder = dirname(path);
  try {
    const isNew = !existsSync(path) && linkSecret(path, folder);
    if (isNew) flushFolder(systemFiles, folder);
    else flushWhereAllowed(systemFiles, folder);
    return isNew;
  } catch (cause) {
    throw new UsageError(
      'FILE_NOT_WRITTEN',
      `The secret ${path} could not be written: ${reasonOf(cause)}. Give a folder in which this user may write.`,
      { path },
      cause,
    );
  }
}

/** False if somebody else was quicker. */
function linkSecret(path: string, folder: string): boolean {
  const beside = `${path}.${randomBytes(6).toString('hex')}`;
  try {
    makeDurableFolder(systemFiles, folder, OWNER_FOLDER);
    const text = `${randomBytes(SECRET_BYTES).toString('hex')}\n`;
    writeNewFile(systemFiles, beside, Buffer.from(text), OWNER_FILE);
    linkSync(beside, path);
    return true;
  } catch (error) {
    if (existsSync(path)) return false;
    throw error;
  } finally {
    if (existsSync(beside)) systemFiles.remove(beside);
  }
}

function reasonOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
