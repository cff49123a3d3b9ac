/**
 * How one core of a tenant loses nothing that it has acknowledged where training is asynchronous: first values,
 * optimizers and pushes are logged before they take effect, answers wait for the flush of the log where a power cut
 * must be survived, and a core that was started again first does all of it once more, in its tenant's turns.
 * Synchronous training goes back to a checkpoint instead and logs nothing. Invariants: nothing is asked of the tenant
 * before it has been recovered; after a log has failed, nothing is acknowledged until a checkpoint with everything in
 * it is on the disk.
 */
import { UsageError } from '../../base/index.ts';
import type { Files, TributaryError } from '../../base/index.ts';
import { bytesOfLog, LogChain, listLogs, LogRoom, PushLog } from '../durability/index.ts';
import type { LogOrigin, LogRecord, StoredLog } from '../durability/index.ts';
import type { Contribution, RowsContribution } from '../contribution.ts';
import type { TenantOffice } from './office.ts';
import type { Task } from './task-sequence.ts';
import type { Tenant } from './tenant.ts';

type Fail = (error: TributaryError) => void;

interface Held {
  readonly go: () => void;
  readonly fail: Fail;
  /** Whether it acknowledges something that was logged. */
  readonly isLogged: boolean;
}

/** Keys that were opened together, as a checkpoint keeps them. */
export interface StoredBatch {
  readonly batch: number;
  readonly plan: string;
}

export class Journal {
  readonly #tenant: Tenant;
  readonly #office: TenantOffice;
  readonly #files: Files;
  readonly #core: number;
  #state: 'new' | 'recovering' | 'ready' = 'new';
  /** Why what was acknowledged before cannot be had again. */
  #failure: TributaryError | undefined;
  /** Everything was put back; what is left to do may fail, and is then tried again. */
  #beginLog: (() => Generator<Task, void>) | undefined;
  readonly #awaiting: { readonly go: () => void; readonly fail: Fail }[] = [];
  readonly #room: LogRoom;
  #log: PushLog | undefined;
  /** In the place of a log that failed, as soon as the checkpoint that it follows is on the disk. */
  #next: PushLog | undefined;
  /** Answers that wait for the next flush. */
  #held: Held[] = [];
  /** Between two records: there may be many, and others are served meanwhile. */
  readonly #rest: Task = (done) => this.#tenant.later(done);

  constructor(tenant: Tenant, office: TenantOffice, core: number, files: Files) {
    this.#tenant = tenant;
    this.#office = office;
    this.#core = core;
    this.#files = files;
    const { namespace, maxLogBytes, cores } = tenant.service;
    // Keys are spread over the cores by their bytes.
    const maxBytes = Math.floor(maxLogBytes / cores);
    this.#room = new LogRoom({ namespace, core, maxBytes, log: (line) => office.log(line) });
  }

  /** Whether the tenant's pushes are logged. */
  get isOn(): boolean {
    return this.#tenant.service.logFolder !== undefined && !this.#tenant.isSynchronous;
  }

  /** Goes on as soon as everything that was acknowledged before a restart is there again. */
  whenReady(go: () => void, fail: Fail): void {
    if (!this.isOn || this.#state === 'ready') return go();
    if (this.#failure) return fail(this.#failure);
    this.#awaiting.push({ go, fail });
    if (this.#state === 'recovering') return;
    this.#state = 'recovering';
    if (this.#beginLog) return this.#recover(this.#beginLog());
    const { namespace } = this.#tenant.service;
    this.#office.ask(
      { kind: 'recover', namespace, core: this.#core },
      (found) => this.#recover(this.#tenant.recovery.recover(found)),
      // Nothing was put back yet, so whoever asks next has it tried again.
      (error) => this.#settle('new', error),
    );
  }

  /** Throws if nothing can be acknowledged now. */
  check(): void {
    const failure = this.#log?.failure ?? this.#failure;
    if (failure) throw failure;
    if (this.isOn && this.#log === undefined) throw this.#notReady();
  }

  /** Whether pushes are refused until a checkpoint brings a new log. */
  get needsCheckpoint(): boolean {
    return this.#log !== undefined && (this.#log.failure !== undefined || this.#room.isFull);
  }

  /** Before something takes effect that is to be acknowledged. If it throws, nothing may. */
  log(record: LogRecord): void {
    this.#log?.append(record);
  }

  logPush(key: string, contribution: Contribution, isSkipped: boolean): void {
    if (this.#log === undefined) return;
    const { shape, key: whole } = this.#tenant.pieces.get(Number(key))!;
    const { worker, step, samples } = contribution;
    const pushed = { worker, key, step, samples };
    if (isSkipped) return this.log({ kind: 'skipped', ...pushed });
    if ('rows' in contribution) {
      const rows = rowsInOrder(contribution, whole.rowLength!);
      return this.log({ kind: 'rows', ...pushed, indices: contribution.indices.view, rows });
    }
    const { view } = contribution.gradient;
    const pieces = shape.ranges.map(([start, length]) => ({
      start,
      values: view.subarray(start, start + length),
    }));
    this.log({ kind: 'dense', ...pushed, pieces });
  }

  /** Lets an answer go when what it may depend on is safe. */
  hold(go: () => void, fail: Fail, isLogged: boolean): void {
    const failure = isLogged ? this.#log?.failure : undefined;
    if (failure) fail(failure);
    else if (this.#log?.isDirty) this.#held.push({ go, fail, isLogged });
    else go();
  }

  /** Whether something waits for a flush. */
  get isDue(): boolean {
    return this.#held.length > 0 || this.#log?.isDirty === true;
  }

  /** Once in a turn of the core's loop, so that all requests of the turn share a flush; then their answers go. */
  flush(): void {
    if (!this.isDue) return;
    const held = this.#held;
    this.#held = [];
    try {
      this.#log?.flush();
    } catch (error) {
      this.#office.log((error as Error).message);
      for (const { go, fail, isLogged } of held) {
        if (isLogged) fail(error as TributaryError);
        else go();
      }
      return;
    }
    for (const { go } of held) go();
  }

  /** A checkpoint is cut: what follows goes into a new log, whose number it is given. null: nothing is logged. */
  cut(): number | null {
    if (!this.isOn || this.#log === undefined) return null;
    this.flush();
    this.#seal(this.#log);
    const { number, records, failure } = this.#log;
    // A checkpoint that fails again and again must not make new files without an end.
    if (records === 0 && !failure && this.#room.isFull) return number;
    const log = this.#begin(failure ? null : { number, records }, false);
    if (failure) {
      // Its records follow the checkpoint only, so none may be acknowledged before that is on the disk.
      this.#next?.close();
      this.#next = log;
    } else {
      this.#log.close();
      this.#log = log;
    }
    return log.number;
  }

  /** If this flush fails the log is broken, and the checkpoint begins a new one. */
  #seal(log: PushLog): void {
    if (log.failure) return;
    try {
      log.seal();
    } catch (error) {
      this.#office.log((error as Error).message);
    }
  }

  /** The checkpoint that was cut with this log is on the disk. `firstLog`: older ones are not needed any more. */
  written(log: number | null, firstLog: number | undefined): void {
    if (this.#next && this.#next.number === log) {
      this.#log?.close();
      this.#log = this.#next;
      this.#next = undefined;
    }
    if (log !== null) this.#room.restart(log);
    if (firstLog === undefined || log === null) return;
    this.#room.forgetBefore(firstLog);
    for (const stored of this.#storedLogs()) {
      if (stored.number < firstLog) this.#remove(stored.path);
    }
  }

  /** None if they cannot be listed: those that stay cost room, not safety. */
  #storedLogs(): readonly StoredLog[] {
    try {
      return listLogs(this.#files, this.#folder, this.#name);
    } catch (error) {
      this.#office.log((error as Error).message);
      return [];
    }
  }

  /** What was logged since the checkpoint whose log is `first`, done again; then a new log begins. */
  *replay(first: number | undefined, problems: readonly string[]): Generator<Task, void> {
    const chain = yield* this.#chain(first, problems);
    for (const record of chain.records()) {
      if (record.kind === 'optimizer')
        yield (done, fail) => this.#tenant.setOptimizer(record.spec, done, fail);
      else if (record.kind === 'values') yield* this.#tenant.openAgain(record);
      else yield this.#tenant.replay.repeat(record);
      yield this.#rest;
    }
    this.#tenant.endReplay();
    if (chain.torn) this.#office.log(tornText(chain.torn));
    this.#beginLog = () => this.#beginAfter(chain, first);
    yield* this.#beginLog();
  }

  *#beginAfter(chain: LogChain, first: number | undefined): Generator<Task, void> {
    yield* chain.flush(this.#rest);
    for (const log of this.#storedLogs()) {
      this.#room.note(log.number, bytesOfLog(this.#files, log));
      yield this.#rest;
    }
    this.#room.restart(first ?? 0);
    this.#log = this.#begin(chain.end, chain.end === null && first === undefined);
  }

  close(): void {
    this.#log?.close();
    this.#next?.close();
  }

  #recover(tasks: Iterator<Task, void>): void {
    this.#tenant.recovery.run(
      tasks,
      () => this.#settle('ready'),
      (error) => this.#failed(error),
    );
  }

  /** What was put back in part cannot be put back again; a disk that was full may have room later. */
  #failed(error: TributaryError): void {
    if (this.#beginLog === undefined) this.#failure = error;
    this.#settle('new', error);
  }

  #settle(state: 'new' | 'ready', error?: TributaryError): void {
    this.#state = state;
    if (state === 'ready') this.#beginLog = undefined;
    if (error) this.#office.log(`'${this.#tenant.service.namespace}' was not recovered: ${error.message}`);
    for (const { go, fail } of this.#awaiting.splice(0)) {
      if (error) fail(error);
      else go();
    }
  }

  #notReady(): UsageError {
    const { namespace } = this.#tenant.service;
    return new UsageError(
      'INVALID_ARGUMENT',
      `namespace '${namespace}' is being recovered; init keys before pushing to them`,
      { namespace },
    );
  }

  *#chain(first: number | undefined, problems: readonly string[]): Generator<Task, LogChain> {
    const options = {
      ...{ files: this.#files, folder: this.#folder, name: this.#name, first },
      ...{ cores: this.#tenant.service.cores, settings: this.#settings },
    };
    const chain = yield* LogChain.find(options, this.#rest);
    if (first !== undefined || problems.length === 0 || chain.hasRecords) return chain;
    throw new UsageError(
      'CHECKPOINT_CORRUPT',
      `There is no good checkpoint in ${this.#folder}, and nothing was logged since the beginning: ${problems.join(' ')}`,
      { path: this.#folder },
    );
  }

  #begin(previous: LogOrigin['previous'], isFirst: boolean): PushLog {
    return new PushLog({
      ...{ files: this.#files, folder: this.#folder, name: this.#name, room: this.#room },
      origin: {
        ...{ cores: this.#tenant.service.cores, settings: this.#settings, previous, isFirst },
        isFlushed: this.#tenant.service.durability === 'disk',
      },
    });
  }

  /** What cannot be removed costs room, not safety. */
  #remove(path: string): void {
    try {
      this.#files.remove(path);
    } catch (error) {
      this.#office.log(`the push log ${path} is not needed any more and cannot be removed: ${String(error)}`);
    }
  }

  get #folder(): string {
    return this.#tenant.service.logFolder!;
  }

  /** How pushes take effect; workers may come and go. */
  get #settings(): string {
    return JSON.stringify({ ...this.#tenant.settings, workers: undefined });
  }

  get #name(): string {
    return `core-${this.#core}`;
  }
}

/**
 * A log that is flushed for each push has nothing acknowledged where it is torn; of another a power cut may take such
 * pushes.
 */
function tornText({ path, atByte, fileBytes, isFlushed }: NonNullable<LogChain['torn']>): string {
  const place = `the push log ${path} ends at byte ${atByte}; the ${fileBytes - atByte} bytes behind it were`;
  return isFlushed
    ? `${place} never acknowledged`
    : `${place} not flushed and are not kept; if the power was cut, pushes in them may have been acknowledged: ` +
        "durability 'process' keeps those when the process ends, 'disk' also when the power is cut";
}

/** The rows one after the other, as their indices are. */
function rowsInOrder({ rows, positions, indices }: RowsContribution, rowLength: number): Float32Array {
  if (positions === undefined) return rows.view.subarray(0, indices.length * rowLength);
  const ordered = new Float32Array(positions.length * rowLength);
  positions.view.forEach((row, i) =>
    ordered.set(rows.view.subarray(row * rowLength, (row + 1) * rowLength), i * rowLength),
  );
  return ordered;
}
