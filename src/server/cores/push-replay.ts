/**
 * Pushes of a log that are applied again when a server was started again, one after the other, in turns of their tenant. Which
 * ones those are is the journal's business. Invariant: a push is applied once, and never where one before it is missing.
 */
import { UsageError } from '../../base/index.ts';
import type { PushRecord } from '../durability/index.ts';
import type { Task } from './task-sequence.ts';
import type { Tenant } from './tenant.ts';

export class PushReplay {
  readonly #tenant: Tenant;
  readonly #workers = new Set<number>();

  constructor(tenant: Tenant) {
    this.#tenant = tenant;
  }

  /** Applies a logged push. Each worker's follow one another: one that does not fit means that others are missing. */
  repeat(record: PushRecord): Task {
    return (done, fail) => this.#tenant.work.run(this.#repeated(record), done, fail);
  }

  *#repeated(record: PushRecord): Generator<void, void> {
    const { core } = this.#tenant;
    const parts = core.catchUp(record.key, record.kind === 'rows' ? record.indices : undefined);
    while (parts && !parts.next().done) yield;
    this.#repeat(record);
  }

  #repeat(record: PushRecord): void {
    const { core, pieces, space } = this.#tenant;
    const { worker, key, step, samples } = record;
    const piece = pieces.get(Number(key));
    // One that came later than the others may have pushed, and is not here yet, or has left while logs are read.
    core.admit(worker);
    this.#workers.add(worker);
    const expected = piece && core.nextStep(worker, key);
    if (piece === undefined || expected !== step) throw this.#gap(record, expected);
    const push = { worker, key, step, samples };
    if (record.kind === 'skipped')
      return core.push({ ...push, gradient: piece.value, isSkipped: true }, ignore);
    const elements = record.kind === 'rows' ? record.rows.length : piece.value.length;
    const indexCount = record.kind === 'rows' ? record.indices.length : 0;
    const segment = space.allocate(4 * (elements + indexCount) + 128);
    try {
      const values = segment.allocate('float32', elements);
      if (record.kind === 'rows') {
        const indices = segment.allocate('int32', indexCount);
        indices.view.set(record.indices);
        values.view.set(record.rows);
        core.pushRows({ ...push, indices, rows: values }, ignore);
      } else {
        for (const { start, values: part } of record.pieces) values.view.set(part, start);
        core.push({ ...push, gradient: values }, ignore);
      }
    } finally {
      segment.close();
    }
  }

  /** The workers whose pushes were applied. */
  end(): readonly number[] {
    const workers = [...this.#workers];
    this.#workers.clear();
    return workers;
  }

  #gap({ worker, key, step }: PushRecord, expected: number | undefined): UsageError {
    const { namespace, logFolder: path } = this.#tenant.service;
    return new UsageError(
      'CHECKPOINT_CORRUPT',
      expected === undefined
        ? `A push log of '${namespace}' in ${path} has a push of piece ${key}, whose first values are in none. Restore the logs from a copy, or give another folder.`
        : `A push log of '${namespace}' in ${path} goes on with push ${step} of piece ${key} by worker ${worker}, expected push ${expected}. Restore the logs from a copy, or give another folder.`,
      { namespace, path, worker, piece: key, expected, actual: step },
    );
  }
}

/** Those who pushed are gone, or do not wait any more. */
function ignore(): void {}
