/**
 * The folder of a run: which files it has, when it may be written to, and reading them back. Holds
 * no model. Invariants: files are replaced whole (written beside, flushed, renamed, the folder
 * flushed); nothing is removed unless the caller said so, and then only what a run writes, or the
 * folders that were made for it.
 */
import { existsSync, readdirSync, readFileSync, rmdirSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { makeDurableFolder, putInPlace, systemFiles, UsageError, writeNewFile } from '../base/index.ts';
import { LabelSet, Vocabulary } from '../data/index.ts';
import { FolderLock, lockableFiles } from '../memory/index.ts';
import type { Evaluation } from '../runtime/index.ts';
import { CONFIG_FILE, loadConfigFile, readStoredConfig } from './config-file.ts';
import type { ResolvedConfig } from './config.ts';
import { toJson } from './config-check.ts';
import { isRecord } from './config-schema.ts';
import type { Trust } from './run-trust.ts';
import type { KnownWords, Task } from './task.ts';

const VOCABULARY_FILE = 'vocabulary.json';
const LABELS_FILE = 'labels.json';
const METRICS_FILE = 'metrics.json';
const MODEL_FILE = 'model.onnx';
const CHECKPOINTS = 'checkpoints';
const LOCK_FILE = 'training.lock';
/** Whoever may write to the folder may train in it, as far as the user's umask allows. */
const LOCK_MODE = 0o666;
const FILE_MODE = 0o666;
const FOLDER_MODE = 0o777;
const WRITTEN_BY_A_RUN = [CONFIG_FILE, VOCABULARY_FILE, LABELS_FILE, METRICS_FILE, MODEL_FILE, CHECKPOINTS];

export interface EpochMetrics {
  /** From 1. */
  readonly epoch: number;
  readonly step: number;
  readonly loss: number;
  readonly evaluation?: Evaluation | undefined;
}

export interface Metrics {
  readonly epochs: readonly EpochMetrics[];
  readonly final?: Readonly<Record<string, unknown>>;
}

export class RunFolder {
  readonly path: string;
  #lock: FolderLock | undefined;
  /** The outermost folder that `prepare` has made. */
  #made: string | undefined;
  /** `prepare` found nothing in it. */
  #wasEmpty = false;

  constructor(path: string) {
    this.path = path;
  }

  get checkpoints(): string {
    return join(this.path, CHECKPOINTS);
  }

  get modelFile(): string {
    return join(this.path, MODEL_FILE);
  }

  /**
   * Makes the folder ready for a run, or refuses; one of the two at most is true. True if an earlier run is continued. Until `release`, which
   * must also follow a refusal, nobody else can do so.
   */
  prepare({ resume, overwrite }: { readonly resume: boolean; readonly overwrite: boolean }): boolean {
    const found = statSync(this.path, { throwIfNoEntry: false });
    if (found && !found.isDirectory()) {
      throw new UsageError(
        'OUTPUT_EXISTS',
        `The output ${this.path} is a file, not a folder. Give another by --output.`,
        {
          path: this.path,
        },
      );
    }
    this.#make();
    this.#lock = FolderLock.take({
      ...{ files: lockableFiles, path: join(this.path, LOCK_FILE), mode: LOCK_MODE },
      refusal: (pid) => isTrained(this.path, pid),
    });
    const empty = readdirSync(this.path).every((name) => name === LOCK_FILE);
    this.#wasEmpty = empty;
    if (!empty && !resume && !overwrite) {
      throw new UsageError(
        'OUTPUT_EXISTS',
        `The output folder ${this.path} is not empty. Go on with its run by --resume, choose another folder by --output, ` +
          'or replace its run by --overwrite.',
        { path: this.path },
      );
    }
    if (overwrite) {
      for (const name of WRITTEN_BY_A_RUN) rmSync(join(this.path, name), { recursive: true, force: true });
    }
    return resume && !empty;
  }

  /** The end of the run that `prepare` was called for. */
  release(): void {
    this.#lock?.release();
    this.#lock = undefined;
  }

  /**
   * Instead of `release`, for a run that failed with nothing to go on from: a folder that was empty is so again, and
   * folders that were made for it are gone.
   */
  abandon(): void {
    if (this.#lock && this.#wasEmpty) {
      for (const name of WRITTEN_BY_A_RUN) rmSync(join(this.path, name), { recursive: true, force: true });
    }
    this.release();
    if (this.#made === undefined) return;
    try {
      // From the inside out; one with something in it stays, and so do those around it.
      for (let at = this.path; ; at = dirname(at)) {
        rmdirSync(at);
        if (at === this.#made) break;
      }
    } catch {
      // Somebody else uses it by now.
    }
  }

  #make(): void {
    try {
      this.#made = makeDurableFolder(systemFiles, this.path, FOLDER_MODE);
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new UsageError(
        'FILE_NOT_FOUND',
        `The output folder ${this.path} cannot be made: ${reason}. Give another by --output.`,
        {
          path: this.path,
        },
      );
    }
  }

  writeRun(config: ResolvedConfig, task: Task): void {
    this.#write(CONFIG_FILE, json(toJson({ ...config, data: task.data, output: this.path })));
    if (task.vocabulary) this.#write(VOCABULARY_FILE, json(task.vocabulary));
    if (task.labelSet) this.#write(LABELS_FILE, json(task.labelSet));
  }

  writeMetrics(metrics: Metrics): void {
    this.#write(METRICS_FILE, json(metrics));
  }

  writeModel(bytes: Uint8Array): string {
    this.#write(MODEL_FILE, bytes);
    return this.modelFile;
  }

  /** The configuration of the run, with its model function if it has one; its paths are absolute. */
  readConfig(trust: Trust): Promise<ResolvedConfig> {
    return loadConfigFile(this.#configFile(), this.path, trust);
  }

  /** The same without the function, which is only named. */
  readStoredConfig(): ResolvedConfig {
    return readStoredConfig(this.#configFile());
  }

  /** Whether there is a run whose configuration can be read. */
  get hasConfig(): boolean {
    return existsSync(join(this.path, CONFIG_FILE));
  }

  #configFile(): string {
    if (!this.hasConfig) {
      throw new UsageError(
        'FILE_NOT_FOUND',
        `${this.path} is not the folder of a run: it has no ${CONFIG_FILE}. Give the folder that tributary train wrote.`,
        { path: this.path },
      );
    }
    return join(this.path, CONFIG_FILE);
  }

  /** Vocabulary and labels, where there are such files. */
  readWords(): KnownWords {
    const read = <T>(name: string, parse: (value: unknown, source: string) => T): T | undefined => {
      const path = join(this.path, name);
      return existsSync(path) ? parse(readJsonFile(path), path) : undefined;
    };
    return {
      vocabulary: read(VOCABULARY_FILE, (value, source) => Vocabulary.fromJSON(value, source)),
      labelSet: read(LABELS_FILE, (value, source) => LabelSet.fromJSON(value, source)),
    };
  }

  /** The epochs up to a step, of an earlier run; metrics are a record, so a broken file counts as none. */
  readEpochs(untilStep: number): EpochMetrics[] {
    let value: unknown;
    try {
      value = JSON.parse(readFileSync(join(this.path, METRICS_FILE), 'utf8'));
    } catch {
      return [];
    }
    const epochs = isRecord(value) && Array.isArray(value['epochs']) ? (value['epochs'] as unknown[]) : [];
    return epochs.filter(isRecord).filter((entry) => {
      const { epoch, step, loss } = entry;
      return [epoch, step, loss].every(Number.isFinite) && (step as number) <= untilStep;
    }) as unknown as EpochMetrics[];
  }

  #write(name: string, content: string | Uint8Array): void {
    const path = join(this.path, name);
    const bytes = typeof content === 'string' ? Buffer.from(content) : content;
    try {
      putInPlace(systemFiles, { temporary: `${path}.writing`, path }, (beside) => {
        // What an earlier process left, or a link that somebody put there and that leads anywhere: it is replaced, never followed.
        systemFiles.remove(beside);
        writeNewFile(systemFiles, beside, bytes, FILE_MODE);
      });
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new UsageError(
        'FILE_NOT_WRITTEN',
        `${path} could not be written: ${reason}. Check the free space and the permissions of the folder.`,
        { path },
        cause,
      );
    }
  }
}

function isTrained(path: string, pid: number | undefined): UsageError {
  return new UsageError(
    'OUTPUT_EXISTS',
    `${path} is being trained by ${pid === undefined ? 'another process' : `process ${pid}`}; give another --output, or wait.`,
    { path, pid },
  );
}

function json(value: unknown): string {
  return `${JSON.stringify(value, undefined, 2)}\n`;
}

function readJsonFile(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as unknown;
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new UsageError(
      'INVALID_DATA',
      `Cannot read ${path}: ${reason}. Use the file that was written with the model, unchanged.`,
      { path },
      cause,
    );
  }
}
