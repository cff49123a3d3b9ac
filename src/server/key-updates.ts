/**
 * How keys change: contributions are combined and run through the update rule chunk by chunk, rows by index; or they are
 * combined and held, and run through it later. When that is, and who waits for it, is the core's business. Invariants: the
 * number of an update is the version of the key after it; whoever calls raises the version, but for held updates.
 */
import { asTributaryError } from '../base/index.ts';
import type { StoreKey, TributaryError } from '../base/index.ts';
import { averageSlot, copyRows } from '../kernels/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region, SharedSpace } from '../memory/index.ts';
import { Aggregator } from './aggregation.ts';
import type { Combine } from './aggregation.ts';
import type { Contribution, DenseContribution, RowsContribution } from './contribution.ts';
import { HeldGradient } from './held-gradient.ts';
import type { HeldMemory } from './held-gradient.ts';
import { aroundScale, averageSlots, transformChunk, transformRows, withAverages } from './key-operations.ts';
import type { Key } from './key.ts';
import { HistoryRoom, RowHistory } from './row-history.ts';
import { updaterRule } from './update-rule.ts';
import type { Updater, UpdateRule } from './update-rule.ts';

export interface KeyUpdatesOptions {
  readonly kernels: Kernels;
  readonly combine: Combine;
  readonly isWide: boolean;
  readonly updater: Updater;
  /** Where memory for sums comes from. */
  readonly scratch: Pick<SharedSpace, 'allocate'>;
  /** In elastic mode: the share of the distance; undefined: contributions are gradients. */
  readonly alpha: number | undefined;
  /** Whether rows without a gradient get what dense updates would give them. */
  readonly hasExactRows: boolean;
  /** Where a slot of a key is kept, a region of the key's length. */
  readonly slotRegion: (key: StoreKey, slot: string, length: number) => Region<'float32'>;
}

export class KeyUpdates {
  readonly #options: KeyUpdatesOptions;
  readonly #kernels: Kernels;
  readonly #aggregator: Aggregator;
  #rule: UpdateRule;
  #lr: number | undefined;
  /** Made with the first history, so that nothing fails later for want of it. */
  #historyRoom: HistoryRoom | undefined;

  constructor(options: KeyUpdatesOptions) {
    this.#options = options;
    this.#kernels = options.kernels;
    this.#aggregator = new Aggregator(options.kernels, options.combine, options.scratch);
    this.#rule = updaterRule(options.kernels, options.updater);
  }

  /**
   * From the next update on, at its own learning rate. Slots that a rule of the same name has already are kept. In steps
   * of one key; no key may be used in between.
   */
  *setRule(rule: UpdateRule, keys: Iterable<Key>): Generator<void, void> {
    const all = [...keys];
    for (const key of all) yield this.catchUp(key);
    const kept = rule.name !== undefined && rule.name === this.#rule.name ? this.#rule.slots : [];
    this.#rule = rule;
    this.#lr = undefined;
    for (const key of all) yield this.giveSlots(key, kept);
  }

  /** Whether the rule has a learning rate. */
  get hasRate(): boolean {
    return this.#rule.hasRate ?? false;
  }

  /** Learning rate from the next update on; undefined for that of the rule. */
  setLearningRate(lr: number | undefined): void {
    this.#lr = lr;
  }

  /** Memory in which combined gradients of a key wait. */
  heldOf(memory: HeldMemory): HeldGradient {
    return new HeldGradient(this.#kernels, memory, this.#aggregator);
  }

  /** What remembers the updates that rows of a table have missed. */
  #historyOf({ chunks, rowLength }: Key): RowHistory {
    const { scratch } = this.#options;
    this.#historyRoom ??= new HistoryRoom(scratch);
    // Up to the last row of which something is here; others are nobody's business.
    const end = chunks.reduce((last, { start, length }) => Math.max(last, start + length), 0);
    return new RowHistory(scratch, this.#historyRoom, Math.ceil(end / rowLength!));
  }

  /** Before anybody uses the key: its averages begin at its first value. */
  openKey(key: Key): void {
    const { averages = [] } = key.operations ?? {};
    const isTable = key.rowLength !== undefined;
    if (isTable && (this.#options.hasExactRows || averages.length > 0)) key.history = this.#historyOf(key);
    this.giveSlots(key);
    for (const { value, slots } of key.chunks) {
      for (const { name } of averages) this.#kernels.copy(slots[averageSlot(name)]!, value);
    }
  }

  /** A key's slots for the rule, with the values before the first update, but for those that are kept. */
  giveSlots(key: Key, kept: readonly string[] = []): void {
    const { hasExactRows } = this.#options;
    const { averages = [] } = key.operations ?? {};
    if (averages.length > 0) {
      const update = withAverages(this.#kernels, this.#rule, averages);
      key.rules = {
        update,
        missed: hasExactRows ? update : withAverages(this.#kernels, undefined, averages),
      };
    }
    const regions = [...this.#rule.slots, ...averageSlots(key.operations)].map((slot) => [
      slot,
      this.#options.slotRegion(key.name, slot, key.value.length),
    ]);
    key.setSlots(Object.fromEntries(regions) as Readonly<Record<string, Region<'float32'>>>);
    const fresh = this.#rule.slots.filter((slot) => !kept.includes(slot));
    for (const { slots } of key.chunks) this.#rule.initialise(slots, fresh);
  }

  #ruleOf(key: Key): UpdateRule {
    return key.rules?.update ?? this.#rule;
  }

  /** Takes all the memory that an update needs, so that it cannot fail half-way for want of it. */
  reserve(key: Key, contributions: readonly Contribution[]): void {
    const { alpha, isWide } = this.#options;
    if (alpha !== undefined) return;
    const dense = contributions.filter((one) => 'gradient' in one);
    const rows = contributions.filter((one) => 'rows' in one);
    const transforms = hasTransforms(key);
    if (dense.length > 0 && isWide) this.#aggregator.reserveWide(key.chunks);
    else if (dense.length > 1 || (dense.length > 0 && transforms)) {
      this.#aggregator.reserveChunks(key.chunks);
    }
    if (rows.length > 0) {
      const isPlainSumFree = this.#rule.updateRowsBySum !== undefined && !transforms;
      this.#aggregator.reserveRows(rows, key.rowLength!, isPlainSumFree);
    }
  }

  /** The contributions of one update, in the order in which they are added. If it throws, nothing was changed. */
  apply(key: Key, contributions: readonly Contribution[]): void {
    this.reserve(key, contributions);
    const t = key.version + 1;
    const dense = contributions.filter((one) => 'gradient' in one);
    const rows = contributions.filter((one) => 'rows' in one);
    const { alpha } = this.#options;
    if (alpha !== undefined) {
      for (const { gradient: weights } of dense) this.#average(key, weights, alpha);
      return;
    }
    if (dense.length > 0) {
      this.catchUp(key);
      this.#applyDense(key, dense, t);
      key.history?.note(t);
    }
    if (rows.length > 0) {
      this.#applyRows(key, rows, t);
    }
  }

  /** The same; returns why it failed, which only a rule of users can once memory is reserved. */
  applyOrFail(key: Key, contributions: readonly Contribution[]): TributaryError | undefined {
    try {
      this.apply(key, contributions);
      return undefined;
    } catch (error) {
      return asTributaryError(error);
    }
  }

  #applyRows(key: Key, contributions: readonly RowsContribution[], t: number): void {
    const { value: parameter, slots } = key;
    const rowLength = key.rowLength!;
    const planned = this.#aggregator.planRows(contributions, rowLength, parameter.length / rowLength);
    const { plan, unique, gradientScale } = planned;
    this.keepRate(key);
    const touched = plan.indices.view.subarray(0, unique);
    this.catchUp(key, touched);
    key.history?.note(t, touched);
    const step = { t, lr: this.#lr, parameter, slots, rowLength };
    const rule = this.#ruleOf(key);
    const transforms = hasTransforms(key);
    if (rule.updateRowsBySum && gradientScale !== undefined && !transforms) {
      const sources = contributions.map(({ indices, rows, positions, answer }) => ({
        ...{ rows: positions ? rows : rows.slice(0, indices.length * rowLength), positions, answer },
      }));
      return rule.updateRowsBySum({ ...step, ...planned, gradientScale, sources });
    }
    const rows = this.#aggregator.sumRows(contributions, planned, rowLength);
    const summed = { indices: plan.indices, rows, rowCount: unique };
    if (transforms)
      transformRows(this.#kernels, key.operations!.gradient, { ...summed, rowLength }, parameter);
    rule.updateRows({ ...step, gradientScale: 1, ...summed });
    for (const { answer, indices, positions } of contributions) {
      if (answer) this.copyRows(key, indices, answer, positions);
    }
  }

  /** Copies rows of the value, or of a slot, in their order or to the given rows of the target. */
  copyRows(
    key: Key,
    from: Region<'int32'>,
    target: Region<'float32'>,
    into?: Region<'int32'>,
    source = key.value,
  ): void {
    copyRows(this.#kernels, { target, into, source, from, rowLength: key.rowLength! });
  }

  /** Gives rows, or all of a table, the updates that they missed. */
  catchUp(key: Key, indices?: Int32Array): void {
    const parts = this.catchUpInParts(key, indices);
    while (parts && !parts.next().done);
  }

  /** The same, a part with each step; undefined: nothing was missed. */
  catchUpInParts(key: Key, indices?: Int32Array): Iterator<void, void> | undefined {
    const rule = key.rules?.missed ?? this.#rule;
    if (!key.history?.isBehind(rule, key, indices)) return undefined;
    return key.history.catchUp(rule, key, indices);
  }

  /** Before an update that does not reach all rows: the others need its rate when they catch up. */
  keepRate(key: Key, lr = this.#lr): undefined {
    // Averages alone have no rate.
    if (!this.#options.hasExactRows) return undefined;
    if (key.history?.isFull) this.catchUp(key);
    key.history?.keepRate(key.version + 1, lr);
    return undefined;
  }

  #applyDense(key: Key, contributions: readonly DenseContribution[], t: number): void {
    const cut = contributions.map(({ gradient }) => key.chunksOf(gradient));
    const samples = contributions.map((one) => one.samples);
    const rule = this.#ruleOf(key);
    if (hasTransforms(key)) return this.#applyTransformed(key, cut, samples, t);
    if (this.#options.isWide) {
      const { gradient: sums, gradientScale } = this.#aggregator.wide(cut, samples);
      key.chunks.forEach(({ value: parameter, slots }, i) =>
        rule.update({ t, lr: this.#lr, parameter, slots, gradient: sums[i]!, gradientScale }),
      );
      return;
    }
    const gradientScale = rule.updateBySum && this.#aggregator.sumScale(samples);
    if (gradientScale !== undefined) {
      const { scratch } = this.#aggregator;
      key.chunks.forEach(({ value, slots }, i) => {
        const sources = cut.map((chunks) => chunks[i]!);
        rule.updateBySum!({
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
      rule.update({ t, lr: this.#lr, parameter: value, slots, gradient, gradientScale });
    });
  }

  /** In memory of its own: what was pushed stays as it is. */
  #applyTransformed(
    key: Key,
    cut: readonly (readonly Region<'float32'>[])[],
    samples: readonly number[],
    t: number,
  ): void {
    const { gradient: operations } = key.operations!;
    key.chunks.forEach(({ value: parameter, slots, length }, i) => {
      const gradient = this.#aggregator.chunkRoom(length);
      const sources = cut.map((chunks) => chunks[i]!);
      const scale = this.#aggregator.chunkInto(gradient, sources, samples);
      if (scale !== 1) this.#kernels.scale(gradient, scale);
      transformChunk(this.#kernels, operations, gradient, parameter);
      this.#ruleOf(key).update({ t, lr: this.#lr, parameter, slots, gradient, gradientScale: 1 });
    });
  }

  /** Equations 2 and 3 of MXNET-MPI, both from the old values. */
  #average(key: Key, weights: Region<'float32'>, alpha: number): void {
    for (const { start, length, value } of key.chunks) {
      this.#kernels.elasticAverage(weights.slice(start, length), value, alpha);
    }
  }

  /** Combines them without an update. None: the step counts, but nobody's values can be used. */
  hold(key: Key, held: HeldGradient, contributions: readonly Contribution[]): void {
    const step = key.version + 1;
    const [first] = contributions;
    if (first === undefined) return held.holdNothing(step);
    const { before = [] } = key.operations ? aroundScale(key.operations) : {};
    if (before.length > 0) this.catchUp(key, 'rows' in first ? indicesOf(contributions) : undefined);
    // Who has no samples counts as one that pushed, and weighs nothing.
    const weighing = contributions.filter(({ samples }) => samples > 0);
    if ('rows' in first) {
      const rowLength = key.rowLength!;
      const rows = weighing.filter((one) => 'rows' in one);
      return held.holdRows(
        ...([step, rowLength, key.value.length / rowLength, rows] as const),
        before.length === 0
          ? undefined
          : (all) => transformRows(this.#kernels, before, { ...all, rowLength }, key.value),
      );
    }
    const dense = weighing.filter((one) => 'gradient' in one);
    held.holdDense(
      ...([step, key.chunks] as const),
      {
        chunks: dense.map(({ gradient }) => key.chunksOf(gradient)),
        samples: dense.map(({ samples }) => samples),
      },
      before.length === 0
        ? undefined
        : (chunk, i) => transformChunk(this.#kernels, before, chunk, key.chunks[i]!.value),
    );
  }

  /** Applies what is held and raises the version. Nothing held: only a table with exact rows has missed something. */
  applyHeld(
    key: Key,
    { scale, lr = this.#lr }: { readonly scale: number; readonly lr?: number | undefined },
  ): void {
    const { value: parameter, history } = key;
    const held = key.held!.take();
    if (held === undefined && history === undefined) return;
    const t = key.version + 1;
    const step = { t, lr };
    const rule = this.#ruleOf(key);
    const { behind = [] } = key.operations ? aroundScale(key.operations) : {};
    if (held?.kind === 'dense') {
      this.catchUp(key);
      history?.note(t);
      const gradientScale = scale * held.gradientScale;
      key.chunks.forEach(({ value: parameter, slots }, i) => {
        const gradient = held.chunks[i]!;
        if (behind.length === 0) return rule.update({ ...step, parameter, slots, gradient, gradientScale });
        const own = this.#scaledCopy(gradient, gradientScale);
        transformChunk(this.#kernels, behind, own, parameter);
        rule.update({ ...step, parameter, slots, gradient: own, gradientScale: 1 });
      });
    } else {
      this.keepRate(key, lr);
      if (held?.kind === 'rows') {
        const { indices, rows, rowCount } = held;
        this.catchUp(key, indices.view);
        history?.note(t, indices.view);
        const rowLength = key.rowLength!;
        const gradientScale = scale * held.gradientScale;
        const all = { ...step, parameter, slots: key.slots, rowLength, indices, rowCount };
        if (behind.length === 0) rule.updateRows({ ...all, rows, gradientScale });
        else {
          const own = this.#scaledCopy(rows, gradientScale);
          transformRows(this.#kernels, behind, { ...all, rows: own }, parameter);
          rule.updateRows({ ...all, rows: own, gradientScale: 1 });
        }
      }
    }
    key.version = t;
  }

  /** What is held stays as it is: a worker may still look at it. */
  #scaledCopy(gradient: Region<'float32'>, scale: number): Region<'float32'> {
    const own = this.#aggregator.chunkRoom(gradient.length);
    this.#kernels.copy(own, gradient);
    if (scale !== 1) this.#kernels.scale(own, scale);
    return own;
  }

  close(): void {
    this.#aggregator.close();
    this.#historyRoom?.close();
  }
}

function hasTransforms({ operations }: Key): boolean {
  return operations?.gradient.some(({ kind }) => kind !== 'scale') ?? false;
}

function indicesOf(contributions: readonly Contribution[]): Int32Array {
  const all = contributions.flatMap((one) => ('rows' in one ? [...one.indices.view] : []));
  return Int32Array.from(all);
}
