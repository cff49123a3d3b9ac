/**
 * Where everything of a model lies: parameters, state, gradients, optimizer slots, inputs and masks, all in one
 * segment, so that another process can be handed the whole by one name. It allocates and finds; it computes nothing.
 */
import { UsageError } from '../base/index.ts';
import { memoryTypes } from '../compute/index.ts';
import {
  elementCount,
  resolveShape,
  type DenseGradient,
  type Gradient,
  type Model,
  type SparseGradient,
  type Tensor,
} from '../graph/index.ts';
import { allocateRowPlan, rowPlanBytes, type RowPlan, type Slots } from '../kernels/index.ts';
import {
  alignUp,
  bytesPerElement,
  REGION_ALIGNMENT,
  type DType,
  type Region,
  type Segment,
  type SharedSpace,
} from '../memory/index.ts';

export interface DensePlace {
  readonly kind: 'dense';
  readonly gradient: DenseGradient;
  readonly region: Region<'float32'>;
}

/** After a backward pass: `count` ascending unique indices and their summed rows. */
export interface SparsePlace {
  readonly kind: 'sparse';
  readonly gradient: SparseGradient;
  readonly rowLength: number;
  readonly tableRows: number;
  /** What backward writes: an index and a row for each looked-up position. */
  readonly positions: Region<'int32'>;
  readonly positionRows: Region<'float32'>;
  readonly plan: RowPlan;
  readonly rows: Region<'float32'>;
  count: number;
}

export type GradientPlace = DensePlace | SparsePlace;

export interface ModelMemoryOptions {
  readonly space: SharedSpace;
  readonly maxBatch: number;
  readonly gradients: readonly Gradient[];
  /** Names of the optimizer's slots for each parameter. */
  readonly slots: readonly string[];
  /** Name of a shared segment. Default: private to this process. */
  readonly segmentName?: string | undefined;
}

export class ModelMemory {
  readonly segment: Segment;
  readonly parameters = new Map<string, Region<'float32'>>();
  readonly states = new Map<string, Region<'float32'>>();
  /** What a step writes; copied over the state when the step is done. */
  readonly nextStates = new Map<string, Region<'float32'>>();
  readonly averages = new Map<string, Map<string, Region<'float32'>>>();
  readonly gradients = new Map<string, GradientPlace>();
  readonly slots = new Map<string, Slots>();
  readonly inputs = new Map<string, Region>();
  readonly masks = new Map<string, Region<'float32'>>();
  readonly loss: Region<'float32'>;
  readonly sampleIds: Region<'int32'>;

  constructor({ graph }: Model, options: ModelMemoryOptions) {
    const { space, maxBatch, gradients, slots } = options;
    // The same walk runs twice: once to count bytes, once to allocate.
    const walk = (
      allocate: <T extends DType>(dtype: T, length: number) => Region<T>,
      reserve: (bytes: number) => void,
    ) => {
      const floats = (shape: readonly number[]) => allocate('float32', elementCount(shape));
      for (const { name, shape, trainable } of graph.parameters.values()) {
        this.parameters.set(name, floats(shape));
        if (trainable) this.slots.set(name, Object.fromEntries(slots.map((slot) => [slot, floats(shape)])));
      }
      for (const { name, shape } of graph.states.values()) this.states.set(name, floats(shape));
      for (const { state } of graph.stateUpdates) this.nextStates.set(state.name, floats(state.shape));
      for (const { name, applies } of graph.movingAverages) {
        const followed = [...graph.parameters.values()].filter(
          (parameter) => parameter.trainable && applies(parameter),
        );
        this.averages.set(
          name,
          new Map(followed.map((parameter) => [parameter.name, floats(parameter.shape)])),
        );
      }
      for (const gradient of gradients) {
        const { name, shape } = gradient.parameter;
        if (gradient.kind === 'dense') {
          this.gradients.set(name, { kind: 'dense', gradient, region: floats(shape) });
          continue;
        }
        const [tableRows, rowLength] = shape as [number, number];
        const capacity = gradient.lookups.reduce(
          (sum, { indices }) => sum + elementCount(resolveShape(indices.shape, maxBatch)),
          0,
        );
        reserve(rowPlanBytes(capacity));
        this.gradients.set(name, {
          kind: 'sparse',
          gradient,
          rowLength,
          tableRows,
          positions: allocate('int32', capacity),
          positionRows: allocate('float32', capacity * rowLength),
          plan: this.segment ? allocateRowPlan(this.segment, capacity) : (undefined as never),
          rows: allocate('float32', capacity * rowLength),
          count: 0,
        });
      }
      for (const [name, tensor] of graph.inputs)
        this.inputs.set(name, allocate(memoryTypes[tensor.dtype], count(tensor, maxBatch)));
      for (const [name, tensor] of graph.dropoutMasks)
        this.masks.set(name, allocate('float32', count(tensor, maxBatch)));
      return { loss: allocate('float32', 1), sampleIds: allocate('int32', maxBatch) };
    };
    let bytes = 0;
    const add = (more: number) => (bytes += alignUp(more, REGION_ALIGNMENT) + REGION_ALIGNMENT);
    walk((dtype, length) => {
      add(length * bytesPerElement(dtype));
      return undefined as never;
    }, add);
    if (bytes > 0xffff0000) {
      const gib = (bytes / 2 ** 30).toFixed(1);
      throw new UsageError(
        'MODEL_TOO_LARGE',
        `The model with its gradients and optimizer state takes ${gib} GiB, but one process addresses 4 GiB. Use a smaller model, batch or an optimizer with less state.`,
        { bytes },
      );
    }
    this.segment =
      options.segmentName === undefined
        ? space.allocate(bytes)
        : space.createSegment(options.segmentName, bytes);
    const { loss, sampleIds } = walk(
      (dtype, length) => this.segment.allocate(dtype, length),
      () => undefined,
    );
    this.loss = loss;
    this.sampleIds = sampleIds;
  }

  /** The place of a source of the graph, or of a copy of the graph with the same names. */
  source(tensor: Tensor, average?: string): Region {
    const { node, label } = tensor;
    const averaged = average === undefined ? undefined : this.averages.get(average)?.get(label);
    const tables: Partial<Record<string, ReadonlyMap<string, Region>>> = {
      input: this.inputs,
      parameter: this.parameters,
      state: this.states,
      dropout_mask: this.masks,
    };
    const region = averaged ?? tables[node.op]?.get(label);
    if (!region)
      throw new UsageError(
        'INVALID_GRAPH',
        `There is no memory for ${node.op} ${label}; is it of another model?`,
      );
    return region;
  }

  close(): void {
    this.segment.close();
  }
}

function count(tensor: Tensor, batch: number): number {
  return elementCount(resolveShape(tensor.shape, batch));
}
