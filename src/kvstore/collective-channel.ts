/**
 * One call's way to the other workers of its group: the tag and the name of its collectives, and memory for as long as the
 * call lasts. It decides nothing. Invariants: collectives of one channel are started in the same order on all
 * ranks; memory that was taken is given back when the call has ended, however it ended.
 */
import type { Group } from '../cluster/index.ts';
import type { CollectiveOptions } from '../collectives/index.ts';
import { allocateRowPlan, rowPlanBytes } from '../kernels/index.ts';
import type { RowPlan } from '../kernels/index.ts';
import type { DType, Region, Segment, SharedSpace } from '../memory/index.ts';
import type { StoreTensor as Tensor } from './kv-store.ts';
import { copy } from './remote/tensors.ts';

export class Channel {
  readonly group: Group;
  /** For every collective of the call. */
  readonly options: CollectiveOptions;
  readonly #plans: RowPlanPool;
  readonly #taken: Region[] = [];
  readonly #planned: RowPlan[] = [];

  constructor(group: Group, options: CollectiveOptions, plans: RowPlanPool) {
    this.group = group;
    this.options = options;
    this.#plans = plans;
  }

  /** Memory that peers on this host can work on in place. Its values are undefined. */
  take<T extends DType>(dtype: T, length: number): Region<T> {
    const region = this.group.progress.scratch.take(dtype, length);
    this.#taken.push(region);
    return region;
  }

  takePlan(count: number): RowPlan {
    const plan = this.#plans.take(count);
    this.#planned.push(plan);
    return plan;
  }

  /**
   * Tensors of one length as one region: where it lies, if `mayStay`, else in `room`, copied and added over the devices.
   * Default room: memory of the call.
   */
  stage(
    tensors: readonly Tensor[],
    mayStay: boolean,
    room = () => this.take('float32', tensors[0]!.length),
  ): Region<'float32'> {
    const { kernels } = this.group;
    const [first, ...others] = tensors;
    if (mayStay && others.length === 0 && this.#isHere(first!)) return first;
    const sum = room();
    copy(kernels, sum, first!);
    for (const tensor of others) kernels.axpy(sum, 1, this.stage([tensor], true));
    return sum;
  }

  /** Where what the tensors are to hold can arrive: in the first of them, or in `room`. */
  landing(tensors: readonly Tensor[], room: () => Region<'float32'>): Region<'float32'> {
    const [first] = tensors;
    return first !== undefined && this.#isHere(first) ? first : room();
  }

  /** For the owner of the call only. */
  end(): void {
    for (const region of this.#taken.splice(0)) this.group.progress.scratch.giveBack(region);
    for (const plan of this.#planned.splice(0)) this.#plans.giveBack(plan);
  }

  #isHere(tensor: Tensor): tensor is Region<'float32'> {
    return !(tensor instanceof Float32Array) && tensor.space === this.group.space;
  }
}

/** Plans of rows, kept for reuse: mapping fresh memory costs more than planning some thousand rows. */
export class RowPlanPool {
  readonly #space: SharedSpace;
  readonly #segments: Segment[] = [];
  readonly #free: RowPlan[] = [];

  constructor(space: SharedSpace) {
    this.#space = space;
  }

  take(count: number): RowPlan {
    const at = this.#free.findIndex(({ capacity }) => capacity >= count);
    if (at >= 0) return this.#free.splice(at, 1)[0]!;
    const capacity = 2 ** Math.ceil(Math.log2(Math.max(256, count)));
    const segment = this.#space.allocate(rowPlanBytes(capacity));
    this.#segments.push(segment);
    return allocateRowPlan(segment, capacity);
  }

  giveBack(plan: RowPlan): void {
    this.#free.push(plan);
  }

  close(): void {
    this.#free.length = 0;
    for (const segment of this.#segments.splice(0)) segment.close();
  }
}
