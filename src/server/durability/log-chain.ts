/**
 * The logs of one core that belong together: which of them follow a checkpoint, in which order, and whether any
 * record is missing. Each log names the one that it continues and how many records that one has, so that a gap is
 * found. Terms: a chain is a log and, again and again, the one that continues it. Invariant: what `records` has given
 * without an error is all that was acknowledged since the checkpoint, in order; whatever is missing or damaged is
 * named with its file.
 */
import { constants } from 'node:fs';
import { OWNER_FILE, putInPlace, readFully, UsageError, writeFully } from '../../base/index.ts';
import type { Files } from '../../base/index.ts';
import { LogReplay, readLogOrigin } from './log-replay.ts';
import type { LogOrigin, ReplayStop } from './log-replay.ts';
import { allLogs, listLogs, notWritten } from './push-log.ts';
import type { StoredLog } from './push-log.ts';
import type { LogRecord } from './push-record.ts';

const PIECE_BYTES = 2 ** 20;

interface Link extends StoredLog {
  /** Undefined: the log was not yet begun when its process ended. */
  readonly origin: LogOrigin | undefined;
  readonly isEmpty: boolean;
}

export interface ChainOptions {
  readonly files: Files;
  readonly folder: string;
  /** Of the core. */
  readonly name: string;
  /** The log that begins with the checkpoint; undefined: there is no checkpoint, and the chain begins with nothing. */
  readonly first: number | undefined;
  /** Of the server now. */
  readonly cores: number;
  /** How the service is trained now, as JSON. */
  readonly settings: string;
}

export class LogChain {
  readonly #options: ChainOptions;
  readonly #links: readonly Link[];
  /** Numbers of the logs that have records, and of those that they continue. */
  readonly #needed: ReadonlySet<number>;
  /** The log that the next one continues, once all records have been given; null: there are no logs. */
  end: LogOrigin['previous'] = null;
  /** Of its whole records. */
  #endBytes = 0;
  /** The last log if it was torn, and where. */
  torn: (ReplayStop & Pick<LogOrigin, 'isFlushed'> & { readonly path: string }) | undefined;

  /**
   * Finds the logs; CHECKPOINT_CORRUPT names the one that is missing or damaged, CHECKPOINT_MISMATCH one of another
   * server.
   */
  constructor(options: ChainOptions) {
    const { files, folder, name, first } = options;
    this.#options = options;
    this.#checkCores();
    const stored = listLogs(files, folder, name);
    this.#links = stored.filter(({ number }) => number >= (first ?? 0)).map((log) => this.#linkOf(log));
    this.#needed = neededOf(this.#links);
    const lowest = this.#links.find(({ number }) => number === first || this.#needed.has(number));
    if (first !== undefined && lowest?.number !== first) throw this.#missing(first, 'the checkpoint');
    if (first === undefined && lowest && !lowest.origin?.isFirst) throw this.#noCheckpoint(lowest);
    this.#checkLinks(lowest);
  }

  get hasRecords(): boolean {
    return this.#needed.size > 0;
  }

  *records(): Generator<LogRecord, void> {
    const { first } = this.#options;
    let link = this.#links.find(({ number }) => number === first || this.#needed.has(number));
    while (link) {
      const replay = new LogReplay(this.#options.files, link.path);
      yield* replay;
      const stop = replay.stop!;
      const { number } = link;
      const next = this.#links.find(
        (one) => this.#needed.has(one.number) && one.origin?.previous?.number === number,
      );
      this.#checkEnd(link, stop, next);
      this.end = { number, records: stop.records };
      this.#endBytes = stop.atByte;
      if (next === undefined && stop.why === 'torn') {
        this.torn = { ...stop, path: link.path, isFlushed: link.origin?.isFlushed ?? true };
      }
      link = next;
    }
  }

  /**
   * Makes what was read survive a power cut, before anything is built on it. The last log is written anew: its
   * process may have ended because a flush failed, and another flush of the same file would succeed without those
   * bytes. The logs before it were flushed when they were continued.
   */
  flush(): void {
    const last = this.#links.find(({ number }) => number === this.end?.number);
    if (last === undefined) return;
    const { files } = this.#options;
    const { path } = last;
    let source: number | undefined;
    try {
      source = files.open(path, constants.O_RDONLY);
      const from = source;
      putInPlace(files, { temporary: `${path}.copy`, path }, (temporary) => {
        files.remove(temporary);
        const { O_CREAT, O_EXCL, O_WRONLY } = constants;
        const copy = files.open(temporary, O_WRONLY | O_CREAT | O_EXCL, OWNER_FILE);
        try {
          copyBytes(files, from, copy, this.#endBytes);
          files.flush(copy);
        } finally {
          files.close(copy);
        }
      });
    } catch (cause) {
      throw notWritten(path, cause);
    } finally {
      if (source !== undefined) files.close(source);
    }
  }

  #linkOf(log: StoredLog): Link {
    const { files } = this.#options;
    const origin = readLogOrigin(files, log.path);
    if (origin === 'damaged') throw damaged(log.path, 0, 'its beginning is no log');
    if (origin === 'torn') return { ...log, origin: undefined, isEmpty: true };
    this.#checkSettings(log.path, origin);
    const replay = new LogReplay(files, log.path);
    const records = replay[Symbol.iterator]();
    const isEmpty = records.next().done === true && replay.stop!.why !== 'damaged';
    records.return();
    return { ...log, origin, isEmpty };
  }

  /** Every log that has records, or says that another has, must be reached from the first. */
  #checkLinks(start: Link | undefined): void {
    const lowest = this.#options.first ?? 0;
    const continued = new Map<number, string>();
    for (const { number, path, origin } of this.#links) {
      const previous = origin?.previous;
      if (previous && previous.number >= lowest && !this.#links.some((one) => one.number === previous.number))
        throw this.#missing(previous.number, path);
      if (!this.#needed.has(number) || number === start?.number) continue;
      if (!previous) throw damaged(path, 0, 'it follows a checkpoint that is not there any more');
      const other = continued.get(previous.number);
      if (other !== undefined) throw damaged(path, 0, `it continues the same log as ${other}`);
      continued.set(previous.number, path);
    }
  }

  #checkEnd(link: Link, stop: ReplayStop, next: Link | undefined): void {
    const { records, atByte, fileBytes, why } = stop;
    const promised = this.#links.flatMap(({ origin }) =>
      origin?.previous?.number === link.number ? [origin.previous.records] : [],
    );
    const least = Math.max(0, ...promised);
    const expected = next?.origin?.previous?.records ?? records;
    if (records < least || records !== expected)
      throw damaged(link.path, atByte, `${records} of ${Math.max(least, expected)} records are left of it`);
    if (next === undefined && why === 'damaged')
      throw damaged(link.path, atByte, `the ${fileBytes - atByte} bytes from there on are no whole records`);
  }

  #checkCores(): void {
    const { files, folder, cores } = this.#options;
    const any = allLogs(files, folder).at(-1);
    const origin = any && readLogOrigin(files, any.path);
    if (typeof origin !== 'object' || origin.cores === cores) return;
    throw new UsageError(
      'CHECKPOINT_MISMATCH',
      `The push logs in ${folder} are of a server with ${origin.cores} cores, this one has ${cores}. ` +
        'Start it with as many, or give another folder.',
      { path: folder, expected: origin.cores, actual: cores },
    );
  }

  #checkSettings(path: string, origin: LogOrigin): void {
    const { settings } = this.#options;
    if (origin.settings === settings) return;
    throw new UsageError(
      'CHECKPOINT_MISMATCH',
      `The push log ${path} is of a training by ${origin.settings}, this one is by ${settings}. ` +
        'Connect workers with the same settings, or give another folder.',
      { path, expected: origin.settings, actual: settings },
    );
  }

  #missing(number: number, after: string): UsageError {
    const { folder, name } = this.#options;
    return new UsageError(
      'CHECKPOINT_CORRUPT',
      `Push log ${number} of ${name} is missing in ${folder}, but ${after} needs it. Restore the file from a copy, or give another folder.`,
      { path: folder, log: number, name },
    );
  }

  #noCheckpoint({ path }: Link): UsageError {
    const { folder } = this.#options;
    return new UsageError(
      'CHECKPOINT_CORRUPT',
      `The push log ${path} follows a checkpoint, and there is no good one in ${folder}. Restore a checkpoint from a copy, or give another folder.`,
      { path },
    );
  }
}

function copyBytes(files: Files, from: number, to: number, bytes: number): void {
  const piece = new Uint8Array(Math.min(bytes, PIECE_BYTES));
  for (let at = 0; at < bytes;) {
    const part = piece.subarray(0, bytes - at);
    const read = readFully(files, from, part, at);
    if (read === 0) throw new Error(`it ends at byte ${at} of ${bytes}`);
    writeFully(files, to, part.subarray(0, read), at);
    at += read;
  }
}

function neededOf(links: readonly Link[]): ReadonlySet<number> {
  const needed = new Set<number>();
  // A log has a higher number than the one that it continues.
  for (const { number, origin, isEmpty } of links.toReversed()) {
    const previous = origin?.previous;
    if (!isEmpty) needed.add(number);
    if (previous && (needed.has(number) || previous.records > 0)) needed.add(previous.number);
  }
  return needed;
}

function damaged(path: string, atByte: number, what: string): UsageError {
  return new UsageError(
    'CHECKPOINT_CORRUPT',
    `The push log ${path} is damaged at byte ${atByte}: ${what}. Restore the file from a copy, or give another folder and begin anew.`,
    { path, atByte },
  );
}
