/**
 * The checkpoints of one server in one folder, a file for each step: which there are, which are
 * good, which may go. All calls block; they run in the checkpoint thread. Whoever asks holds the
 * lock of the folder. Invariants: under its final name a file is complete (written beside, flushed,
 * renamed, folder flushed); older ones are removed only after that, and never one of the newest
 * good ones that are to stay; what `list` and `read` give survives a power cut.
 */
import { endianness } from 'node:os';
import { join } from 'node:path';
import {
  flushFolder,
  InternalError,
  keepNewest,
  makeDurableFolder,
  OWNER_FOLDER,
  putInPlace,
  UsageError,
} from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import type { Host } from '../../sockets/index.ts';
import { readCheckpointFile, writeCheckpointFile } from './checkpoint-file.ts';
import type { CheckpointContent } from './checkpoint-file.ts';
import type { Manifest } from './server-state.ts';

const FINAL_NAME = /^step-(\d{12,16})\.checkpoint$/;
const TEMPORARY_NAME = /^\.writing-step-\d{12,16}-[0-9a-f]{16}$/;
/** One to go back to, and one in case the newest is damaged. */
const KEPT = 2;
/**
 * Of a server that shares the training with others: what it has said that it keeps stays until
 * workers name the newest that all have, though two copies may be written before.
 */
const KEPT_AMONG_SERVERS = 4;
/** The newest of those that it says it keeps. */
const KEPT_SURELY = 2;

/** A good checkpoint, and for each core the push log that follows it. */
export interface Kept {
  readonly step: number;
  readonly logs: readonly (number | null)[];
}

/**
 * What several servers of a training in lock step need: the newest checkpoint that all of them are
 * known to have; null: none is known. Undefined: this server needs only its own.
 */
export type Common = number | null | undefined;

/** Whoever knows of one knows more than those who know of none, or only that there are others. */
export function newerCommon(a: Common, b: Common): Common {
  if (typeof a === 'number' && typeof b === 'number') return Math.max(a, b);
  if (typeof a === 'number') return a;
  return b === undefined ? a : b;
}

/** Of the steps that a server keeps, ascending: those that are there until the next are named. */
export function keptSurely(steps: readonly number[], common: Common): number[] {
  return steps.filter((step, i) => i >= steps.length - KEPT_SURELY || step === common);
}

export interface Listing {
  /** Steps of the good ones, ascending. */
  readonly steps: number[];
  /** What is wrong with each of the others. */
  readonly problems: string[];
}

export interface Written {
  /** Those that stay, oldest first. */
  readonly kept: Kept[];
  /** Why each of the others is still there. */
  readonly problems: string[];
}

export class CheckpointFolder {
  readonly #files: Files;
  readonly #randomHex: Host['randomHex'];
  readonly #folder: string;
  /**
   * The files that this process has written or verified, by step, so that they are not read again
   * before each removal.
   */
  readonly #good = new Map<number, Kept>();

  /** Makes the folder. */
  constructor({ files, randomHex }: Pick<Host, 'files' | 'randomHex'>, folder: string) {
    if (endianness() !== 'LE') {
      throw new InternalError('BROKEN_INVARIANT', 'Checkpoints of a server need a little-endian machine.');
    }
    this.#files = files;
    this.#randomHex = randomHex;
    this.#folder = folder;
    try {
      makeDurableFolder(files, folder, OWNER_FOLDER);
      // What is found here is built on: whoever put it in place may have been killed before he
      // flushed it.
      flushFolder(files, folder);
    } catch (cause) {
      throw unusable(folder, cause);
    }
  }

  /** Removes what killed writes have left. */
  clear(): void {
    try {
      for (const name of this.#files.list(this.#folder)) {
        if (TEMPORARY_NAME.test(name)) this.#files.remove(join(this.#folder, name));
      }
    } catch (cause) {
      throw unusable(this.#folder, cause);
    }
  }

  write(manifest: Manifest, data: readonly Float32Array[], common?: Common): Written {
    const { step } = manifest;
    const path = this.#pathOf(step);
    const written = keptOf(manifest);
    try {
      const newer = this.#stored().find((other) => other > step && this.#isGood(other));
      if (newer !== undefined) throw wouldGoBack(this.#folder, step, newer);
      const temporary = join(this.#folder, `.writing-${nameOf(step)}-${this.#randomHex(8)}`);
      putInPlace(this.#files, { temporary, path }, () =>
        writeCheckpointFile(this.#files, temporary, manifest, data),
      );
      this.#good.set(step, written);
    } catch (cause) {
      if (cause instanceof UsageError) throw cause;
      throw new UsageError(
        'CHECKPOINT_NOT_WRITTEN',
        `The checkpoint ${path} could not be written: ${messageOf(cause)}. ` +
          'Earlier checkpoints are untouched; check the free space and the permissions of the folder.',
        { path, step },
        cause,
      );
    }
    return this.#prune(written, common);
  }

  /**
   * Training goes on from that checkpoint, which must be good: newer ones are removed, and stay
   * removed after a power cut. The newest go first, so that those that are left are always the
   * first of a sequence.
   */
  goBackTo(step: number): null {
    for (const newer of this.#stored().filter((other) => other > step)) {
      this.#good.delete(newer);
      try {
        this.#files.remove(this.#pathOf(newer));
      } catch (cause) {
        throw notRemoved(this.#pathOf(newer), step, cause);
      }
    }
    this.#flush();
    return null;
  }

  read(step: number): CheckpointContent {
    const content = readCheckpointFile(this.#files, this.#pathOf(step), step, true);
    this.#flush();
    return content;
  }

  list(): Listing {
    const steps: number[] = [];
    const problems: string[] = [];
    this.#good.clear();
    for (const step of this.#stored().reverse()) {
      try {
        const { manifest } = readCheckpointFile(this.#files, this.#pathOf(step), step, false);
        this.#good.set(step, keptOf(manifest));
        steps.push(step);
      } catch (cause) {
        problems.push(messageOf(cause));
      }
    }
    this.#flush();
    return { steps, problems };
  }

  /**
   * What is found is built on, but whoever put it in place may have failed to flush its entry: an
   * earlier write, or the thread before this one.
   */
  #flush(): void {
    try {
      flushFolder(this.#files, this.#folder);
    } catch (cause) {
      throw unusable(this.#folder, cause);
    }
  }

  /** The checkpoint itself is written, so nothing fails. */
  #prune(written: Kept, common: Common): Written {
    const problems: string[] = [];
    let newestFirst: number[];
    try {
      newestFirst = this.#stored();
    } catch (cause) {
      // With fewer than are to stay, no log is removed either.
      return { kept: [written], problems: [messageOf(cause)] };
    }
    const kept = keepNewest({
      newestFirst,
      keep: common === undefined ? KEPT : KEPT_AMONG_SERVERS,
      isGood: (step) => this.#isGood(step),
      isNeeded: (step) => step === common,
      remove: (step) => {
        this.#good.delete(step);
        this.#files.remove(this.#pathOf(step));
      },
      onNotRemoved: (step, reason) =>
        problems.push(
          `the checkpoint ${this.#pathOf(step)} is not needed any more and could not be removed: ${reason}`,
        ),
    });
    return { kept: kept.reverse().map((step) => this.#good.get(step)!), problems };
  }

  /** Steps that have a file, newest first. */
  #stored(): number[] {
    let names: string[];
    try {
      names = this.#files.list(this.#folder);
    } catch (cause) {
      throw unusable(this.#folder, cause);
    }
    return names
      .map((name) => FINAL_NAME.exec(name))
      .flatMap((match) =>
        match && `${nameOf(Number(match[1]))}.checkpoint` === match[0] ? [Number(match[1])] : [],
      )
      .sort((a, b) => b - a);
  }

  #isGood(step: number): boolean {
    if (this.#good.has(step)) return true;
    try {
      const { manifest } = readCheckpointFile(this.#files, this.#pathOf(step), step, false);
      this.#good.set(step, keptOf(manifest));
      return true;
    } catch {
      return false;
    }
  }

  #pathOf(step: number): string {
    return join(this.#folder, `${nameOf(step)}.checkpoint`);
  }
}

function keptOf({ step, cores }: Manifest): Kept {
  return { step, logs: cores.map(({ log }) => log) };
}

function nameOf(step: number): string {
  return `step-${String(step).padStart(12, '0')}`;
}

function unusable(folder: string, cause: unknown): UsageError {
  return new UsageError(
    'CHECKPOINT_NOT_WRITTEN',
    `The checkpoint folder ${folder} cannot be used: ${messageOf(cause)}. Give another folder.`,
    { path: folder },
    cause,
  );
}

function notRemoved(path: string, step: number, cause: unknown): UsageError {
  return new UsageError(
    'CHECKPOINT_NOT_WRITTEN',
    `Training cannot go back to step ${step} while the later checkpoint ${path} is there, ` +
      `which could not be removed: ${messageOf(cause)}. Check the permissions of the folder and the disk, and start again.`,
    { path, step },
    cause,
  );
}

function wouldGoBack(folder: string, step: number, newer: number): UsageError {
  return new UsageError(
    'INVALID_ARGUMENT',
    `The folder ${folder} holds a good checkpoint of step ${newer}, so step ${step} cannot be written after it: ` +
      'a restart would take the older state for the newer one. Continue from that one, or give another folder.',
    { path: folder, step, newer },
  );
}

function messageOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
