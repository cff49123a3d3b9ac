/**
 * One core of a parameter server (PHub, section 3.2): takes pushes of the chunks that are its own, combines them, runs the
 * update rule on each chunk while it is in the cache, and answers. It knows no network and no thread: whoever owns
 * the core feeds it. Invariants: nothing is shared with other cores but memory that each touches in its own chunks; a
 * faulty push changes nothing and is answered by an error that names worker and key.
 */
import { UsageError } from '../base/index.ts';
import type { TributaryError } from '../base/index.ts';
import { copyRows } from '../kernels/index.ts';
import type { Kernels, Slots } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import { Aggregator } from './aggregation.ts';
import type { Aggregation, Combine } from './aggregation.ts';
import { checkConsistency } from './consistency.ts';
import type { Consistency } from './consistency.ts';
import { inWorkerOrder } from './contribution.ts';
import type { Contribution, DenseContribution, RowsContribution } from './contribution.ts';
import { Key } from './key.ts';
import type { KeyOptions, Waiting } from './key.ts';
import { RowHistory } from './row-history.ts';
import { accumulationRule } from './update-rule.ts';
import type { UpdateRule } from './update-rule.ts';

export interface ServerCoreOptions {
  readonly kernels: Kernels;
  /** Default synchronous. */
  readonly consistency?: Consistency | undefined;
  /** Whether gradients are added or averaged by their samples. Default 'sum'. */
  readonly combine?: Combine | undefined;
  /** 'wide' is for comparison, and adds whatever the samples are. Default 'tall'. */
  readonly aggregation?: Aggregation | undefined;
  /**
   * What becomes of rows without a gradient: 'lazy' leaves them and their slots alone, 'exact' gives them, when somebody
   * looks at them, what dense updates would have, at a cost that grows with the steps they missed. Default 'lazy'.
   */
  readonly rows?: RowsMode | undefined;
  /**
   * What becomes of a gradient that is not finite: 'refuse' answers with an error, 'skip' counts the push as made but
   * leaves its values out, 'accept' does not look. Default 'refuse'.
   */
  readonly nonFinite?: 'refuse' | 'skip' | 'accept' | undefined;
  /** Where a slot of a key is kept, a region of the key's length; cores of one server share it. */
  readonly slotRegion: (key: string, slot: string, length: number) => Region<'float32'>;
}

type Reply = Waiting['reply'];
type Fail = Waiting['fail'];
const ignore: Fail = () => undefined;

export type RowsMode = 'lazy' | 'exact';

interface Push {
  readonly worker: number;
  readonly key: string;
  /** Number of this worker's push of the key, from 1; in synchronous mode the number of the update. */
  readonly step: number;
  /** Samples behind the gradient, which weigh in an average. Default 1. */
  readonly samples?: number | undefined;
  /** Counts as pushed, but its values are left out: whoever pushes has found them not to be finite. Default false. */
  readonly isSkipped?: boolean | undefined;
}

export interface DensePush extends Push {
  /** As long as the key. Must stay as it is until the reply. In elastic mode: the weights, which are moved. */
  readonly gradient: Region<'float32'>;
}

export interface RowsPush extends Push {
  readonly indices: Region<'int32'>;
  readonly rows: Region<'float32'>;
  /** Which of the rows belongs to each index. Default: they are in the order of the indices. */
  readonly positions?: Region<'int32'> | undefined;
  /** Receives the rows as they are after the push, in the places of their gradients; may be `rows`. Default: none. */
  readonly answer?: Region<'float32'> | undefined;
  /** Whether the worker sees them, there or in the table itself. Default false. */
  readonly pulls?: boolean | undefined;
}

export class ServerCore {
  /** Pushes whose values were left out because they were not finite. */
  skipped = 0;
  readonly #kernels: Kernels;
  readonly #consistency: Consistency;
  readonly #nonFinite: 'refuse' | 'skip' | 'accept';
  readonly #slotRegion: ServerCoreOptions['slotRegion'];
  readonly #aggregator: Aggregator;
  readonly #isWide: boolean;
  readonly #hasExactRows: boolean;
  readonly #keys = new Map<string, Key>();
  readonly #workers = new Set<number>();
  #rule: UpdateRule;
  #lr: number | undefined;

  constructor(options: ServerCoreOptions) {
    const { kernels, consistency = { kind: 'synchronous' }, combine = 'sum' } = options;
    checkConsistency(consistency);
    this.#kernels = kernels;
    this.#consistency = consistency;
    this.#nonFinite = options.nonFinite ?? 'refuse';
    this.#slotRegion = options.slotRegion;
    this.#aggregator = new Aggregator(kernels, combine);
    this.#isWide = options.aggregation === 'wide';
    this.#hasExactRows = options.rows === 'exact';
    this.#rule = accumulationRule(kernels);
  }

  /** A worker whose pushes are waited for from now on. */
  admit(worker: number): void {
    if (this.#workers.has(worker)) return;
    this.#workers.add(worker);
    for (const key of this.#keys.values()) key.clocks.admit(worker);
  }

  /** A worker that is gone: what it pushed of unfinished steps is dropped, and nobody waits for it any more. */
  release(worker: number): void {
    this.#workers.delete(worker);
    for (const key of this.#keys.values()) {
      key.waiting.delete(worker);
      key.clocks.release(worker);
      if (this.#isComplete(key)) this.#applyTogether(key);
    }
  }

  /** Values are those in the region. A key is opened once. */
  open(options: KeyOptions): void {
    if (this.#keys.has(options.name)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `key '${options.title ?? options.name}' is there already; push to it, or use another name`,
        { key: options.title ?? options.name },
      );
    }
    const staleness = this.#consistency.kind === 'bounded' ? this.#consistency.staleness : Infinity;
    const key = new Key(options, staleness);
    for (const worker of this.#workers) key.clocks.admit(worker);
    if (this.#hasExactRows && key.rowLength !== undefined) {
      key.history = new RowHistory(this.#kernels, key.value.length / key.rowLength, 0);
    }
    this.#keys.set(options.name, key);
    this.#giveSlots(key);
  }

  /** From the next update on. Slots start anew. */
  setRule(rule: UpdateRule): void {
    for (const key of this.#keys.values()) this.#catchUp(key);
    this.#rule = rule;
    for (const key of this.#keys.values()) this.#giveSlots(key);
  }

  /** What a key has seen, to be kept with its value and slots. */
  progressOf(name: string): { readonly version: number; readonly lastSteps: Record<string, number> } {
    const key = this.#keys.get(name)!;
    this.#catchUp(key);
    const { version, lastSteps } = key;
    return { version, lastSteps: Object.fromEntries(lastSteps) };
  }

  slotsOf(name: string): Slots {
    return this.#keys.get(name)!.slots;
  }

  /** Value and slots were put back by the caller; what was pushed and not applied is forgotten. */
  restore(name: string, version: number, lastSteps: Readonly<Record<string, number>>): void {
    const key = this.#keys.get(name)!;
    key.waiting.clear();
    key.pulled.clear();
    key.version = version;
    key.history?.note(version);
    key.lastSteps.clear();
    for (const [worker, step] of Object.entries(lastSteps)) key.lastSteps.set(Number(worker), step);
    key.clocks.restart(key.lastSteps);
  }

  /** Tells everybody whose push waits for others that it will not be applied. */
  abandon(error: TributaryError): void {
    for (const { waiting } of this.#keys.values()) {
      const all = [...waiting.values()];
      waiting.clear();
      for (const { fail, others } of all) for (const one of [{ fail }, ...others]) one.fail(error);
    }
  }

  /** Learning rate from the next update on; undefined for the rule's own. */
  setLearningRate(lr: number | undefined): void {
    this.#lr = lr;
  }

  /** `fail` is told if the push, once taken, will not be applied after all. */
  push(push: DensePush, reply: Reply, fail: Fail = ignore): void {
    const key = this.#keyOf(push);
    if (push.gradient.length !== key.value.length) {
      throw new UsageError(
        'SHAPE_MISMATCH',
        `worker ${push.worker} pushed ${push.gradient.length} elements to key '${key.title}', which has ${key.value.length}; push its whole gradient`,
        { worker: push.worker, key: key.title, expected: key.value.length, actual: push.gradient.length },
      );
    }
    if (this.#isDuplicate(key, push, reply, fail)) return;
    const contribution: DenseContribution = { ...push, samples: samplesOf(push) };
    const isSkipped = push.isSkipped ?? false;
    const isUsable =
      isSkipped || key.chunksOf(push.gradient).every((chunk) => this.#isUsable(key, push, chunk));
    this.#take(key, { contribution, isSkipped: isSkipped || !isUsable, reply, fail, others: [] });
  }

  /** Only the given rows travel, and only they are updated. Indices may repeat. */
  pushRows(push: RowsPush, reply: Reply, fail: Fail = ignore): void {
    const key = this.#keyOf(push);
    const rowLength = this.#rowLengthOf(key, push.worker);
    if (push.positions) this.#checkPositions(key, push, rowLength);
    else if (push.rows.length < push.indices.length * rowLength) {
      throw new UsageError(
        'SHAPE_MISMATCH',
        `worker ${push.worker} pushed ${push.indices.length} indices and ${push.rows.length} elements to key '${key.title}', whose rows have ${rowLength}; push one row for each index`,
        {
          worker: push.worker,
          key: key.title,
          expected: push.indices.length * rowLength,
          actual: push.rows.length,
        },
      );
    }
    if (this.#consistency.kind === 'elastic') {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${push.worker} pushed rows of key '${key.title}' to a server in elastic mode, which averages whole weights; push them by push`,
        { worker: push.worker, key: key.title },
      );
    }
    this.#checkIndices(key, push.worker, push.indices, rowLength);
    if (this.#isDuplicate(key, push, reply, fail)) return;
    const contribution: RowsContribution = { ...push, samples: samplesOf(push) };
    const isSkipped = push.isSkipped ?? false;
    this.#take(key, {
      contribution,
      isSkipped: isSkipped || !this.#isUsable(key, push, push.rows),
      ...{ reply, fail, others: [] },
    });
  }

  /** Number of the next push of a worker: in synchronous mode that of the next update. */
  nextStep(worker: number, name: string): number {
    const key = this.#keyOf({ worker, key: name });
    return 1 + (this.#consistency.kind === 'synchronous' ? key.version : (key.lastSteps.get(worker) ?? 0));
  }

  /** The value itself, which the caller copies or reads in place, and how many updates it has seen. */
  pull(worker: number, name: string): { readonly value: Region<'float32'>; readonly version: number } {
    const key = this.#keyOf({ worker, key: name });
    this.#catchUp(key);
    key.pulled.set(worker, key.version);
    return { value: key.value, version: key.version };
  }

  /** Copies the rows of the given indices, in their order or to the given rows of the target. */
  pullRows(
    worker: number,
    name: string,
    indices: Region<'int32'>,
    into: Region<'float32'>,
    positions?: Region<'int32'>,
  ): { version: number } {
    const key = this.#keyOf({ worker, key: name });
    const rowLength = this.#rowLengthOf(key, worker);
    this.#checkIndices(key, worker, indices, rowLength);
    this.#catchUp(key, indices.view);
    this.#copyRows(key, indices, into, positions);
    key.pulled.set(worker, key.version);
    return { version: key.version };
  }

  close(): void {
    for (const { history } of this.#keys.values()) history?.close();
    this.#aggregator.close();
  }

  #take(key: Key, taken: Waiting): void {
    const { contribution, isSkipped, reply } = taken;
    const { worker, step } = contribution;
    if (this.#consistency.kind === 'synchronous') checkSameKind(key, contribution);
    if (isSkipped) this.skipped++;
    if (this.#consistency.kind === 'synchronous') {
      key.waiting.set(worker, taken);
      if (this.#isComplete(key)) this.#applyTogether(key);
      return;
    }
    const staleness = key.stalenessOf(worker);
    key.lastSteps.set(worker, step);
    if (!isSkipped) this.#apply(key, [contribution]);
    key.version++;
    const { version } = key;
    if ('rows' in contribution && contribution.pulls) key.pulled.set(worker, version);
    key.clocks.advance(worker, step, () => reply({ version, staleness, duplicate: false }));
  }

  #isComplete(key: Key): boolean {
    if (this.#consistency.kind !== 'synchronous' || key.waiting.size === 0) return false;
    for (const worker of this.#workers) if (!key.waiting.has(worker)) return false;
    return true;
  }

  #applyTogether(key: Key): void {
    const all = [...key.waiting.values()];
    key.waiting.clear();
    const used = all.filter(({ isSkipped }) => !isSkipped).map(({ contribution }) => contribution);
    if (used.length > 0) this.#apply(key, inWorkerOrder(used));
    key.version++;
    for (const { contribution, reply, others } of all) {
      key.lastSteps.set(contribution.worker, contribution.step);
      const answer = { version: key.version, staleness: 0, duplicate: false };
      if ('rows' in contribution && contribution.pulls) key.pulled.set(contribution.worker, key.version);
      reply(answer);
      for (const other of others) other.reply({ ...answer, duplicate: true });
    }
  }

  #apply(key: Key, contributions: readonly Contribution[]): void {
    const t = key.version + 1;
    const dense = contributions.filter((one) => 'gradient' in one);
    const rows = contributions.filter((one) => 'rows' in one);
    if (this.#consistency.kind === 'elastic') {
      for (const { gradient: weights } of dense) this.#average(key, weights, this.#consistency.alpha);
      return;
    }
    if (dense.length > 0) {
      this.#catchUp(key);
      this.#applyDense(key, dense, t);
      key.history?.note(t);
    }
    if (rows.length > 0) {
      this.#applyRows(key, rows, t);
    }
  }

  #applyRows(key: Key, contributions: readonly RowsContribution[], t: number): void {
    const { value: parameter, slots } = key;
    const rowLength = key.rowLength!;
    const planned = this.#aggregator.planRows(contributions, rowLength, parameter.length / rowLength);
    const { plan, unique, gradientScale } = planned;
    const touched = plan.indices.view.subarray(0, unique);
    this.#catchUp(key, touched);
    key.history?.note(t, touched);
    const step = { t, lr: this.#lr, parameter, slots, rowLength };
    if (this.#rule.updateRowsBySum && gradientScale !== undefined) {
      const sources = contributions.map(({ indices, rows, positions, answer }) => ({
        ...{ rows: positions ? rows : rows.slice(0, indices.length * rowLength), positions, answer },
      }));
      return this.#rule.updateRowsBySum({ ...step, ...planned, gradientScale, sources });
    }
    const rows = this.#aggregator.sumRows(contributions, planned, rowLength);
    this.#rule.updateRows({
      ...{ ...step, gradientScale: 1 },
      ...{ indices: plan.indices, rows, rowCount: unique },
    });
    for (const { answer, indices, positions } of contributions) {
      if (answer) this.#copyRows(key, indices, answer, positions);
    }
  }

  #copyRows(key: Key, from: Region<'int32'>, target: Region<'float32'>, into?: Region<'int32'>): void {
    copyRows(this.#kernels, { target, into, source: key.value, from, rowLength: key.rowLength! });
  }

  /** Gives rows, or all of a table, the updates that they missed. */
  #catchUp(key: Key, indices?: Int32Array): void {
    if (key.history === undefined) return;
    const { value: parameter, slots, rowLength, version } = key;
    const table = { parameter, slots, rowLength: rowLength!, version, lr: this.#lr };
    key.history.catchUp(this.#rule, table, indices);
  }

  #applyDense(key: Key, contributions: readonly DenseContribution[], t: number): void {
    const cut = contributions.map(({ gradient }) => key.chunksOf(gradient));
    const samples = contributions.map((one) => one.samples);
    if (this.#isWide) {
      const sums = this.#aggregator.wide(cut);
      key.chunks.forEach(({ value, slots }, i) => {
        const step = { t, lr: this.#lr, parameter: value, slots, gradient: sums[i]!, gradientScale: 1 };
        this.#rule.update(step);
      });
      return;
    }
    const gradientScale = this.#rule.updateBySum && this.#aggregator.sumScale(samples);
    if (gradientScale !== undefined) {
      const { scratch } = this.#aggregator;
      key.chunks.forEach(({ value, slots }, i) => {
        const sources = cut.map((chunks) => chunks[i]!);
        this.#rule.updateBySum!({
          t,
          lr: this.#lr,
          gradientScale,
          parameter: value,
          slots,
          sources,
          scratch,
        });
      });
      return;
    }
    key.chunks.forEach(({ value, slots }, i) => {
      const { gradient, gradientScale } = this.#aggregator.chunk(
        cut.map((chunks) => chunks[i]!),
        samples,
      );
      this.#rule.update({ t, lr: this.#lr, parameter: value, slots, gradient, gradientScale });
    });
  }

  /** Equations 2 and 3 of MXNET-MPI, both from the old values. */
  #average(key: Key, weights: Region<'float32'>, alpha: number): void {
    for (const { start, length, value } of key.chunks) {
      this.#kernels.elasticAverage(weights.slice(start, length), value, alpha);
    }
  }

  /** True if the push was taken before; it is answered then, or takes the place of the one whose answer was lost. */
  #isDuplicate(key: Key, { worker, step }: Push, reply: Reply, fail: Fail): boolean {
    const isSynchronous = this.#consistency.kind === 'synchronous';
    const last = isSynchronous ? key.version : (key.lastSteps.get(worker) ?? 0);
    const waiting = key.waiting.get(worker);
    if (waiting && step === waiting.contribution.step) {
      // Whoever asked before may still have something to clear away.
      waiting.others.push({ reply, fail });
      return true;
    }
    if (step <= last && Number.isInteger(step) && step > 0) {
      reply({ version: key.version, staleness: 0, duplicate: true });
      return true;
    }
    if (step === last + 1) return false;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} pushed step ${step} of key '${key.title}', expected step ${last + 1}; pull the key and go on from its version`,
      { worker, key: key.title, expected: last + 1, actual: step },
    );
  }

  #isUsable(key: Key, { worker, step }: Push, values: Region<'float32'>): boolean {
    if (this.#nonFinite === 'accept' || Number.isFinite(this.#kernels.sumOfSquares(values))) return true;
    const at = values.view.findIndex((value) => !Number.isFinite(value));
    if (at < 0) return true; // Only the sum of the squares is too large for a number.
    if (this.#nonFinite === 'skip') return false;
    throw new UsageError(
      'NOT_A_NUMBER',
      `worker ${worker} pushed ${values.view[at]} to key '${key.title}' in step ${step}; look for a division by zero or a learning rate that is too high, or let such pushes be skipped`,
      { worker, key: key.title, step, value: String(values.view[at]) },
    );
  }

  #checkIndices(key: Key, worker: number, indices: Region<'int32'>, rowLength: number): void {
    const tableRows = key.value.length / rowLength;
    const at = indices.view.findIndex((index) => index < 0 || index >= tableRows);
    if (at < 0) return;
    throw new UsageError(
      'OUT_OF_BOUNDS',
      `worker ${worker} named row ${indices.view[at]} of key '${key.title}', which has ${tableRows}; give rows from 0 to ${tableRows - 1}`,
      { worker, key: key.title, row: indices.view[at], rows: tableRows },
    );
  }

  #checkPositions(key: Key, { worker, indices, rows, positions }: RowsPush, rowLength: number): void {
    const count = Math.floor(rows.length / rowLength);
    const isRight =
      positions!.length === indices.length && positions!.view.every((row) => row >= 0 && row < count);
    if (isRight) return;
    throw new UsageError(
      'OUT_OF_BOUNDS',
      `worker ${worker} named rows of its gradient of key '${key.title}' that are not among its ${count}; push one row for each of the ${indices.length} indices`,
      { worker, key: key.title, rows: count, indices: indices.length },
    );
  }

  #rowLengthOf(key: Key, worker: number): number {
    if (key.rowLength !== undefined) return key.rowLength;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} asked for rows of key '${key.title}', which is no table; open it with a row length`,
      { worker, key: key.title },
    );
  }

  #keyOf({ worker, key: name }: { readonly worker: number; readonly key: string }): Key {
    if (!this.#workers.has(worker)) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `worker ${worker} is not one of this server's; let it join first`,
        {
          worker,
          workers: [...this.#workers],
        },
      );
    }
    const key = this.#keys.get(name);
    if (key) return key;
    throw new UsageError(
      'INVALID_ARGUMENT',
      `worker ${worker} used key '${name}', which is not there; init it first`,
      {
        worker,
        key: name,
      },
    );
  }

  #giveSlots(key: Key): void {
    const regions = this.#rule.slots.map((slot) => [
      slot,
      this.#slotRegion(key.name, slot, key.value.length),
    ]);
    key.setSlots(Object.fromEntries(regions) as Readonly<Record<string, Region<'float32'>>>);
    for (const { slots } of key.chunks) this.#rule.initialise(slots);
  }
}

/** Half of a step dense and half by rows would be two updates instead of one. */
function checkSameKind(key: Key, { worker, ...pushed }: Contribution): void {
  for (const { contribution } of key.waiting.values()) {
    if ('rows' in contribution === 'rows' in pushed) continue;
    const said = (byRows: boolean) => (byRows ? 'rows' : 'a whole gradient');
    throw new UsageError(
      'SHAPE_MISMATCH',
      `worker ${worker} pushed ${said('rows' in pushed)} of key '${key.title}', worker ${contribution.worker} ${said('rows' in contribution)}; push the same on all workers`,
      { worker, other: contribution.worker, key: key.title },
    );
  }
}

function samplesOf({ worker, key, samples = 1 }: Push): number {
  if (samples > 0 && Number.isFinite(samples)) return samples;
  throw new UsageError(
    'INVALID_ARGUMENT',
    `worker ${worker} pushed key '${key}' with ${samples} samples; give a positive number`,
    { worker, key, samples },
  );
}
