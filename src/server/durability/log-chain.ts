/**
 * The logs of one core that belong together: which of them follow a checkpoint, in which order, and whether any
 * record is missing. Each log names the one that it continues and how many records that one has, so that a gap is
 * found. Terms: a chain is a log and, again and again, the one that continues it. Invariant: what `records` has given
 * without an error is all that was acknowledged since the checkpoint, in order; whatever is missing or damaged is
 * named with its file. Whoever reads may stop between any two records and pieces, and let others go on.
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
/** Of a copy: a flush is not cut, and nobody else is served meanwhile. */
const FLUSH_BYTES = 4 * PIECE_BYTES;

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
   * server. Gives `rest` wherever others may go on.
   */
  static *find<Rest>(options: ChainOptions, rest: Rest): Generator<Rest, LogChain> {
    const { files, folder, name, first } = options;
    checkCores(options);
    const links: Link[] = [];
    for (const log of listLogs(files, folder, name)) {
      if (log.number < (first ?? 0)) continue;
      links.push(linkOf(log, options));
      yield rest;
    }
    return new LogChain(options, links);
  }

  private constructor(options: ChainOptions, links: readonly Link[]) {
    const { first } = options;
    this.#options = options;
    this.#links = links;
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
   * bytes. The logs before it were flushed when they were continued. Gives `rest` wherever others may go on.
   */
  *flush<Rest>(rest: Rest): Generator<Rest, void> {
    const last = this.#links.find(({ number }) => number === this.end?.number);
    if (last === undefined) return;
    const { files } = this.#options;
    const { path } = last;
    const temporary = `${path}.copy`;
    let isInPlace = false;
    try {
      yield* copyOf(files, { path, temporary, bytes: this.#endBytes }, rest);
      putInPlace(files, { temporary, path }, () => undefined);
      isInPlace = true;
    } catch (cause) {
      throw notWritten(path, cause);
    } finally {
      if (!isInPlace) discard(files, temporary);
    }
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

function linkOf(log: StoredLog, { files, settings }: ChainOptions): Link {
  const origin = readLogOrigin(files, log.path);
  if (origin === 'damaged') throw damaged(log.path, 0, 'its beginning is no log');
  if (origin === 'torn') return { ...log, origin: undefined, isEmpty: true };
  checkSettings(log.path, origin, settings);
  const replay = new LogReplay(files, log.path);
  const records = replay[Symbol.iterator]();
  const isEmpty = records.next().done === true && replay.stop!.why !== 'damaged';
  records.return();
  return { ...log, origin, isEmpty };
}

/** The first bytes of a file, flushed, under another name. */
function* copyOf<Rest>(
  files: Files,
  { path, temporary, bytes }: { readonly path: string; readonly temporary: string; readonly bytes: number },
  rest: Rest,
): Generator<Rest, void> {
  const source = files.open(path, constants.O_RDONLY);
  let copy: number | undefined;
  try {
    files.remove(temporary);
    const { O_CREAT, O_EXCL, O_WRONLY } = constants;
    copy = files.open(temporary, O_WRONLY | O_CREAT | O_EXCL, OWNER_FILE);
    const piece = new Uint8Array(Math.min(bytes, PIECE_BYTES));
    let flushed = 0;
    for (let at = 0; at < bytes;) {
      const part = piece.subarray(0, bytes - at);
      const read = readFully(files, source, part, at);
      if (read === 0) throw new Error(`it ends at byte ${at} of ${bytes}`);
      writeFully(files, copy, part.subarray(0, read), at);
      at += read;
      if (at - flushed >= FLUSH_BYTES) {
        files.flush(copy);
        flushed = at;
      }
      yield rest;
    }
    files.flush(copy);
  } finally {
    files.close(source);
    if (copy !== undefined) files.close(copy);
  }
}

/** What cannot be removed costs room, not safety. */
function discard(files: Files, path: string): void {
  try {
    files.remove(path);
  } catch {
    // Whoever reads the logs next removes it.
  }
}

function checkCores({ files, folder, cores }: ChainOptions): void {
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

function checkSettings(path: string, origin: LogOrigin, settings: string): void {
  if (origin.settings === settings) return;
  throw new UsageError(
    'CHECKPOINT_MISMATCH',
    `The push log ${path} is of a training by ${origin.settings}, this one is by ${settings}. ` +
      'Connect workers with the same settings, or give another folder.',
    { path, expected: origin.settings, actual: settings },
  );
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
