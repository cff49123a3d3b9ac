/**
 * The checkpoints of one run: a folder of `step-00001234` folders. Finds the newest that verifies,
 * and removes those older than the last `keep` good ones. Each names its run, which whoever resumes
 * from it goes on with. Invariants: nothing newer than the `keep`-th good checkpoint is ever
 * removed, damaged ones included, so the last good one always stays; a good one is one that this
 * store has written or verified, once; without `overwrite` nothing is removed that this store has
 * neither written nor resumed from.
 */
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { basename, join } from 'node:path';
import {
  flushWhereAllowed,
  keepNewest,
  makeDurableFolder,
  runAtOnce,
  runAwaiting,
  systemFiles,
  UsageError,
  type AwaitedSteps,
} from '../../base/index.ts';
import {
  loadCheckpoint,
  loadCheckpointBut,
  runOfCheckpoint,
  verifyCheckpoint,
  writeCheckpoint,
} from './checkpoint.ts';
import type { CheckpointData, CheckpointToWrite, LoadedCheckpoint } from './checkpoint.ts';
import { corruptFile } from './verified-file.ts';

/** `-r2` marks a second checkpoint of a step, made after a resume that had to go back behind it. */
const FINAL_NAME = /^step-(\d{8,15})(?:-r(\d{1,6}))?$/;
const TEMPORARY_NAME = /^\.writing-step-(\d{8,15})-[0-9a-f]{16}$/;

export interface CheckpointStoreOptions {
  /** How many good checkpoints stay. Default 2. */
  readonly keep?: number;
  /**
   * Receives what is no longer kept and could not be removed, and why; the next save tries again.
   * Default: none.
   */
  readonly onNotRemoved?: ((path: string, reason: string) => void) | undefined;
}

/** What becomes of checkpoints that a folder holds when a run begins in it. */
export interface UsedFolderOptions {
  /** Go on from the newest good checkpoint of the folder, if there is one. Default false. */
  readonly resume?: boolean | undefined;
  /** Remove the checkpoints of an earlier run from the folder. Without it and `resume` a folder that has some is refused. Default false. */
  readonly overwrite?: boolean | undefined;
}

export interface SkippedCheckpoint {
  readonly path: string;
  readonly reason: string;
}

export interface LatestCheckpoint {
  /** The newest checkpoint that verifies, or undefined if there is none. */
  readonly checkpoint: LoadedCheckpoint | undefined;
  /** Its folder. */
  readonly path: string | undefined;
  /** Newer ones that could not be used, newest first. */
  readonly skipped: readonly SkippedCheckpoint[];
}

interface Stored {
  readonly path: string;
  readonly step: number;
  readonly revision: number;
}

export class CheckpointStore {
  readonly directory: string;
  readonly keep: number;
  /** Of what is written; undefined where what it goes on from has none. */
  #run: string | undefined = randomBytes(8).toString('hex');
  /** Names of entries that are of this run, so that they may be removed. */
  #own = new Set<string>();
  /** Names of those that this store has written or verified. */
  readonly #good = new Set<string>();
  readonly #onNotRemoved: (path: string, reason: string) => void;

  constructor(directory: string, options: CheckpointStoreOptions = {}) {
    const { keep = 2, onNotRemoved = () => undefined } = options;
    if (!Number.isInteger(keep) || keep < 1) {
      throw new UsageError('INVALID_ARGUMENT', `keep is ${keep}; give a whole number above 0.`, { keep });
    }
    this.directory = directory;
    this.keep = keep;
    this.#onNotRemoved = onNotRemoved;
  }

  /**
   * Begins a run in the folder: refuses one that holds checkpoints unless `resume` or `overwrite` is given. Gives the one to go
   * on from, if it is to resume. `isLeft`: see `latest`.
   */
  begin(
    { resume = false, overwrite = false }: UsedFolderOptions,
    isLeft?: (tensor: string) => boolean,
  ): LatestCheckpoint | undefined {
    if (resume && overwrite) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        'resume and overwrite are both true; give one of them: resume to go on with the run of the folder, overwrite to replace it.',
      );
    }
    if (resume) return this.#flushed(this.latest(isLeft));
    const [newest] = this.#stored();
    if (overwrite) this.#clear();
    else if (newest) {
      throw new UsageError(
        'OUTPUT_EXISTS',
        `The folder ${this.directory} holds checkpoints of an earlier run (the newest is ${basename(newest.path)}). Go on with that run by resume: true, ` +
          'replace it by overwrite: true, or give another checkpointDirectory.',
        { path: this.directory, step: newest.step },
      );
    }
    return undefined;
  }

  /**
   * Writes a checkpoint, then removes what is no longer kept. Gives its folder. `accept` runs when it is written and has
   * no final name yet: if it throws a `TributaryError`, the checkpoint is discarded and earlier ones stay.
   */
  save(checkpoint: CheckpointData, accept?: () => void): string {
    return runAtOnce(this.#save(checkpoint, accept));
  }

  /** The same with tensors that are brought while they are written. */
  saveAwaiting(checkpoint: CheckpointToWrite): Promise<string> {
    return runAwaiting(this.#save(checkpoint));
  }

  *#save(checkpoint: CheckpointToWrite, accept?: () => void): AwaitedSteps<string> {
    const { step } = checkpoint;
    try {
      makeDurableFolder(systemFiles, this.directory, 0o777);
    } catch (cause) {
      throw new UsageError(
        'CHECKPOINT_NOT_WRITTEN',
        `The checkpoint folder ${this.directory} cannot be made: ${String(cause)}. Give another folder.`,
        { path: this.directory, step },
        cause,
      );
    }
    const name = `step-${String(step).padStart(8, '0')}`;
    const revision =
      Math.max(
        0,
        ...this.#stored()
          .filter((one) => one.step === step)
          .map((one) => one.revision),
      ) + 1;
    const path = join(this.directory, revision === 1 ? name : `${name}-r${revision}`);
    const temporary = join(this.directory, `.writing-${name}-${randomBytes(8).toString('hex')}`);
    try {
      yield* writeCheckpoint(checkpoint, path, temporary, this.#run, accept);
    } finally {
      // It may be there although flushing its entry failed.
      if (existsSync(path)) this.#own.add(basename(path));
    }
    this.#good.add(basename(path));
    this.#prune(path);
    return path;
  }

  /**
   * Reads the newest checkpoint that verifies; says which newer ones it skipped and why. What is
   * written from now on is of the same run. A folder with checkpoints of several runs is refused,
   * as nobody could tell which one was meant. `isLeft`: tensors that stay in their files, checked,
   * and are read from there later. Default: none.
   */
  latest(isLeft?: (tensor: string) => boolean): LatestCheckpoint {
    this.#adopt();
    this.#good.clear();
    const skipped: SkippedCheckpoint[] = [];
    for (const { path, step } of this.#stored()) {
      try {
        const checkpoint: LoadedCheckpoint = isLeft ? loadCheckpointBut(path, isLeft) : loadCheckpoint(path);
        if (checkpoint.step !== step) throw misnamed(path, step, checkpoint.step);
        this.#good.add(basename(path));
        return { checkpoint, path, skipped };
      } catch (error) {
        skipped.push({ path, reason: error instanceof Error ? error.message : String(error) });
      }
    }
    return { checkpoint: undefined, path: undefined, skipped };
  }

  /** Reads one checkpoint folder. */
  load(path: string): CheckpointData {
    return loadCheckpoint(path);
  }

  /** Whoever wrote it may have failed to flush its entry, and those before it are to be removed. */
  #flushed(latest: LatestCheckpoint): LatestCheckpoint {
    const { path, checkpoint } = latest;
    if (checkpoint === undefined) return latest;
    try {
      flushWhereAllowed(systemFiles, this.directory);
    } catch (cause) {
      throw new UsageError(
        'CHECKPOINT_NOT_WRITTEN',
        `The checkpoint folder ${this.directory} cannot be flushed: ${String(cause)}. A power cut could take ${path}; check the disk, or go on from a copy of the folder.`,
        { path: this.directory, step: checkpoint.step },
        cause,
      );
    }
    return latest;
  }

  /** Takes the run of the folder for its own. */
  #adopt(): void {
    const newestOf = new Map<string | undefined, string>();
    for (const { path } of this.#stored()) {
      try {
        const run = runOfCheckpoint(path);
        if (!newestOf.has(run)) newestOf.set(run, basename(path));
      } catch {
        // Damaged: it says nothing of its run, and is skipped when it is read.
      }
    }
    if (newestOf.size > 1) {
      throw new UsageError(
        'CHECKPOINT_MISMATCH',
        `The folder ${this.directory} holds checkpoints of ${newestOf.size} runs (the newest of each: ${[...newestOf.values()].join(', ')}). ` +
          'Move those of the other runs elsewhere; the field run in their state.json tells them apart.',
        { path: this.directory, newest: [...newestOf.values()] },
      );
    }
    if (newestOf.size === 1) [this.#run] = newestOf.keys();
    this.#own = new Set(this.#names().filter((name) => FINAL_NAME.test(name) || TEMPORARY_NAME.test(name)));
  }

  #clear(): void {
    for (const name of this.#names()) {
      if (!FINAL_NAME.test(name) && !TEMPORARY_NAME.test(name)) continue;
      const path = join(this.directory, name);
      try {
        systemFiles.remove(path);
      } catch (cause) {
        throw new UsageError(
          'CHECKPOINT_NOT_WRITTEN',
          `The checkpoint ${path} of an earlier run cannot be removed: ${String(cause)}. Check the permissions of the folder, or give another.`,
          { path },
          cause,
        );
      }
    }
  }

  /** All entries that bear the name of a checkpoint, newest first. */
  #stored(): Stored[] {
    return this.#storedAmong(this.#names());
  }

  #storedAmong(names: readonly string[]): Stored[] {
    return names
      .map((name) => ({ name, match: FINAL_NAME.exec(name) }))
      .flatMap(({ name, match }) =>
        match === null
          ? []
          : [{ path: join(this.directory, name), step: Number(match[1]), revision: Number(match[2] ?? 1) }],
      )
      .sort((a, b) => b.step - a.step || b.revision - a.revision);
  }

  /** The checkpoint itself is written, so nothing fails; it stays whatever its step is. */
  #prune(justSaved: string): void {
    let names: string[];
    try {
      names = this.#names();
    } catch (error) {
      return this.#onNotRemoved(this.directory, messageOf(error));
    }
    const own = names.filter((name) => this.#own.has(name));
    const kept = keepNewest({
      newestFirst: this.#storedAmong(own),
      keep: this.keep,
      isGood: (one) => this.#isGood(one),
      remove: ({ path }) => {
        if (path === justSaved) return;
        this.#good.delete(basename(path));
        systemFiles.remove(path);
      },
      onNotRemoved: ({ path }, reason) => this.#onNotRemoved(path, reason),
    });
    if (kept.length < this.keep) return;
    const oldestKept = kept.at(-1)!.step;
    for (const name of own) {
      const match = TEMPORARY_NAME.exec(name);
      if (match === null || Number(match[1]) >= oldestKept) continue;
      const path = join(this.directory, name);
      try {
        systemFiles.remove(path);
      } catch (error) {
        this.#onNotRemoved(path, messageOf(error));
      }
    }
  }

  #isGood({ path, step }: Stored): boolean {
    const name = basename(path);
    if (this.#good.has(name)) return true;
    try {
      if (verifyCheckpoint(path) !== step) return false;
    } catch {
      return false;
    }
    this.#good.add(name);
    return true;
  }

  #names(): string[] {
    try {
      return systemFiles.list(this.directory);
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw new UsageError(
        'FILE_NOT_FOUND',
        `The checkpoint folder ${this.directory} cannot be read: ${String(cause)}. Check the path and its permissions.`,
        { path: this.directory },
        cause,
      );
    }
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function misnamed(path: string, expected: number, actual: number): UsageError {
  return corruptFile(path, `step ${expected} as in its name`, `step ${actual} inside`);
}
