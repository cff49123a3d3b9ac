/**
 * How much one core may write to its push logs, so that a tenant cannot fill the disk of all: so many bytes since the
 * last checkpoint, and twice as many in all logs that are kept, which go back to the checkpoint before it. Counts
 * only; the logs and their files are others' business. Invariant: nothing makes room but a checkpoint that is on the
 * disk.
 */
import { UsageError } from '../../base/index.ts';

/** What a file takes of a disk at least, whatever is in it: else empty logs would count as nothing. */
const FILE_BYTES = 4096;
/** Of the room: from there on the log of the server warns. */
const WARNING_SHARE = 1 / 2;

export interface LogRoomOptions {
  readonly namespace: string;
  readonly core: number;
  readonly maxBytes: number;
  readonly log: (line: string) => void;
}

export class LogRoom {
  readonly #options: LogRoomOptions;
  /** By number of the log: all that are kept. */
  readonly #bytes = new Map<number, number>();
  /** The first log after the last checkpoint. */
  #first = 0;
  #recentBytes = 0;
  #keptBytes = 0;
  #hasWarned = false;

  constructor(options: LogRoomOptions) {
    this.#options = options;
  }

  get isFull(): boolean {
    const { maxBytes } = this.#options;
    return this.#recentBytes >= maxBytes || this.#keptBytes >= 2 * maxBytes;
  }

  /** Throws if there is no room for so many bytes more. */
  check(bytes: number): void {
    const { namespace, maxBytes } = this.#options;
    const isRecent = this.#recentBytes + bytes > maxBytes;
    if (!isRecent && this.#keptBytes + bytes <= 2 * maxBytes) return;
    const [which, has, most, next] = isRecent
      ? ['since the last checkpoint', this.#recentBytes, maxBytes, 'checkpoint()']
      : [
          'since the one before the last checkpoint',
          this.#keptBytes,
          2 * maxBytes,
          'checkpoint() with a later step',
        ];
    throw new UsageError(
      'FILE_NOT_WRITTEN',
      `${this.#text(which, has, most)}, and ${bytes} more would be beyond that. Nothing was changed; call ${next}, which ` +
        'makes room when it is on the disk, then push again; or ask for more (maxLogBytes of createService, --max-log-bytes).',
      { namespace, expected: most, actual: has + bytes },
    );
  }

  /** A log is there, of so many bytes, or was just begun. */
  note(log: number, bytes = 0): void {
    this.#add(log, bytes + FILE_BYTES - (this.#bytes.get(log) ?? 0));
  }

  /** So many bytes were written to the log. */
  add(log: number, bytes: number): void {
    this.#add(log, bytes);
    const { maxBytes, log: tell } = this.#options;
    if (this.#hasWarned || this.#recentBytes < WARNING_SHARE * maxBytes) return;
    this.#hasWarned = true;
    const text = this.#text('since the last checkpoint', this.#recentBytes, maxBytes);
    tell(`${text}; call checkpoint() before pushes are refused`);
  }

  /** A checkpoint is on the disk with everything before this log. */
  restart(log: number): void {
    this.#first = log;
    this.#recentBytes = 0;
    for (const [number, bytes] of this.#bytes) if (number >= log) this.#recentBytes += bytes;
    this.#hasWarned &&= this.#recentBytes >= WARNING_SHARE * this.#options.maxBytes;
  }

  /** Logs before this one are not kept any more. */
  forgetBefore(log: number): void {
    for (const [number, bytes] of this.#bytes) {
      if (number >= log) continue;
      this.#bytes.delete(number);
      this.#keptBytes -= bytes;
    }
  }

  #add(log: number, bytes: number): void {
    this.#bytes.set(log, (this.#bytes.get(log) ?? 0) + bytes);
    this.#keptBytes += bytes;
    if (log >= this.#first) this.#recentBytes += bytes;
  }

  #text(which: string, has: number, most: number): string {
    const { namespace, core } = this.#options;
    return `the push logs of '${namespace}' on core ${core} have ${has} bytes ${which}, of ${most}`;
  }
}
