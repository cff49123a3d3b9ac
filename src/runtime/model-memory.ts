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
import {
  allocateRowPlan,
  averageSlot,
  rowPlanBytes,
  type Kernels,
  type RowPlan,
  type Slots,
} from '../kernels/index.ts';
import {
  alignUp,
  bytesPerElement,
  REGION_ALIGNMENT,
  type DType,
  type Region,
  type Segment,
  type SharedSpace,
} from '../memory/index.ts';
import { heldRows, lookups, RowBuffer } from './row-buffer.ts';

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
  /** The gradient of all rows, where an exchange has made one; then the rows above do not count. */
  whole?: Region<'float32'> | undefined;
}

export type GradientPlace = DensePlace | SparsePlace;

export interface ModelMemoryOptions {
  readonly space: SharedSpace;
  readonly maxBatch: number;
  /** In the order backward makes them. */
  readonly gradients: readonly Gradient[];
  /** Whose rows a sparse gradient has room for, once they are combined. Default 1. */
  readonly workers?: number | undefined;
  /** Names of the optimizer's slots for each parameter. */
  readonly slots: readonly string[];
  /** Tables that live elsewhere: here are the rows of a batch, and no slots. Default: none. */
  readonly rowsOnly?: ReadonlySet<string> | undefined;
  /** Decides what they hold at first. Default 0. */
  readonly seed?: number | undefined;
  /** Name of a shared segment. Default: private to this process. */
  readonly segmentName?: string | undefined;
  /**
   * Where what training changes lies: parameters, state, moving averages, optimizer slots, from its next free byte on. Other
   * processes that give the same memory work on the same weights. Default: with all the rest.
   */
  readonly weights?: Segment | undefined;
  /** Where gradients, inputs and masks lie, from its next free byte on; closed with this. Default: memory of its own. */
  readonly work?: Segment | undefined;
}

/** Elements of a table that is not here whole, by its name; undefined: all, with slots. */
type ElementsHere = (name: string) => number | undefined;

const ALL_HERE: ElementsHere = () => undefined;

/** Bytes of a model's weights, as `ModelMemoryOptions.weights` must have them free. */
export function weightBytes(
  model: Model,
  slots: readonly string[],
  elementsHere: ElementsHere = ALL_HERE,
): number {
  let bytes = 0;
  walkWeights(model, slots, elementsHere, (length) => {
    bytes += alignUp(4 * length, REGION_ALIGNMENT);
    return undefined as never;
  });
  return bytes;
}

interface Weights {
  readonly parameters: Map<string, Region<'float32'>>;
  readonly slots: Map<string, Slots>;
  readonly states: Map<string, Region<'float32'>>;
  readonly averages: Map<string, Map<string, Region<'float32'>>>;
}

/** In the same order wherever it is called: that is what places them alike in several processes. */
function walkWeights(
  { graph }: Model,
  slotNames: readonly string[],
  elementsHere: ElementsHere,
  allocate: (length: number) => Region<'float32'>,
): Weights {
  const floats = (shape: readonly number[]) => allocate(elementCount(shape));
  const weights: Weights = {
    ...{ parameters: new Map(), slots: new Map(), states: new Map(), averages: new Map() },
  };
  for (const { name, shape, trainable } of graph.parameters.values()) {
    const elements = elementsHere(name);
    weights.parameters.set(name, elements === undefined ? floats(shape) : allocate(elements));
    if (trainable && elements === undefined) {
      weights.slots.set(name, Object.fromEntries(slotNames.map((slot) => [slot, floats(shape)])));
    }
  }
  for (const { name, shape } of graph.states.values()) weights.states.set(name, floats(shape));
  for (const { name, applies } of graph.movingAverages) {
    const followed = [...graph.parameters.values()].filter(
      (parameter) => parameter.trainable && applies(parameter),
    );
    weights.averages.set(
      name,
      new Map(followed.map(({ name: of, shape }) => [of, allocate(elementsHere(of) ?? elementCount(shape))])),
    );
  }
  return weights;
}

interface Work {
  readonly nextStates: Map<string, Region<'float32'>>;
  readonly lossAndStates: Region<'float32'>;
  readonly gradients: Map<string, GradientPlace>;
  readonly rowBuffers: Map<string, RowBuffer>;
  readonly inputs: Map<string, Region>;
  readonly masks: Map<string, Region<'float32'>>;
  readonly exchanged: Region<'float32'>;
  readonly loss: Region<'float32'>;
  readonly sampleIds: Region<'int32'>;
}

/** Where a region may begin, in floats. */
const FLOATS_A_LINE = REGION_ALIGNMENT / 4;

const NONE: ReadonlySet<string> = new Set();

interface WorkAllocator {
  region<T extends DType>(dtype: T, length: number): Region<T>;
  plan(capacity: number): RowPlan;
}

/** As `walkWeights`, for what a step writes and reads. */
function walkWork(
  { graph }: Model,
  gradients: readonly Gradient[],
  maxBatch: number,
  workers: number,
  { rowsOnly = NONE, seed = 0 }: Pick<ModelMemoryOptions, 'rowsOnly' | 'seed'>,
  allocator: WorkAllocator,
): Work {
  const updated = graph.stateUpdates.map(({ state }) => state);
  const dense = gradients.filter(({ kind }) => kind === 'dense').map(({ parameter }) => parameter);
  const inLines = ({ shape }: { readonly shape: readonly number[] }) =>
    alignUp(elementCount(shape), FLOATS_A_LINE);
  const exchanged = allocator.region(
    'float32',
    [...updated, ...dense].reduce((sum, one) => sum + inLines(one), FLOATS_A_LINE),
  );
  let used = FLOATS_A_LINE;
  const nextPart = (one: { readonly shape: readonly number[] }): Region<'float32'> => {
    const part = exchanged.slice(used, elementCount(one.shape));
    used += inLines(one);
    return part;
  };
  const nextStates = new Map(updated.map((state) => [state.name, nextPart(state)]));
  const lossAndStates = exchanged.slice(0, used);
  const places = new Map<string, GradientPlace>();
  for (const gradient of gradients) {
    const { name, shape } = gradient.parameter;
    if (gradient.kind === 'dense') {
      places.set(name, { kind: 'dense', gradient, region: nextPart(gradient.parameter) });
      continue;
    }
    const [tableRows, rowLength] = shape as [number, number];
    const capacity = gradient.lookups.reduce(
      (sum, { indices }) => sum + elementCount(resolveShape(indices.shape, maxBatch)),
      0,
    );
    places.set(name, {
      ...{ kind: 'sparse', gradient, rowLength, tableRows },
      positions: allocator.region('int32', capacity),
      positionRows: allocator.region('float32', capacity * rowLength),
      plan: allocator.plan(capacity * workers),
      rows: allocator.region('float32', capacity * workers * rowLength),
      count: 0,
    });
  }
  const rowBuffers = new Map<string, RowBuffer>();
  for (const name of rowsOnly) {
    const parameter = graph.parameters.get(name)!;
    const positions = lookups(graph, parameter, maxBatch);
    const room = {
      positions: allocator.region('int32', positions),
      numbers: allocator.region('int32', positions),
      plan: allocator.plan(positions),
    };
    rowBuffers.set(name, new RowBuffer(parameter, graph, maxBatch, seed, room));
  }
  const inputs = new Map<string, Region>();
  for (const [name, tensor] of graph.inputs)
    inputs.set(name, allocator.region(memoryTypes[tensor.dtype], count(tensor, maxBatch)));
  const masks = new Map<string, Region<'float32'>>();
  for (const [name, tensor] of graph.dropoutMasks)
    masks.set(name, allocator.region('float32', count(tensor, maxBatch)));
  const [loss, sampleIds] = [exchanged.slice(0, 1), allocator.region('int32', maxBatch)];
  return {
    ...{ nextStates, lossAndStates, gradients: places, rowBuffers, inputs, masks },
    ...{ exchanged, loss, sampleIds },
  };
}

/** Bytes of what is not weights, as `ModelMemoryOptions.work` must have them free. */
export function workBytes(
  model: Model,
  gradients: readonly Gradient[],
  maxBatch: number,
  workers = 1,
  elsewhere: Pick<ModelMemoryOptions, 'rowsOnly'> = {},
): number {
  let bytes = 0;
  const add = (more: number) => (bytes += alignUp(more, REGION_ALIGNMENT) + REGION_ALIGNMENT);
  // Only counts: of a region nothing is used but its parts.
  const uncounted = { slice: () => undefined } as unknown;
  walkWork(model, gradients, maxBatch, workers, elsewhere, {
    region: (dtype, length) => {
      add(length * bytesPerElement(dtype));
      return uncounted as never;
    },
    plan: (capacity) => {
      add(rowPlanBytes(capacity));
      return undefined as never;
    },
  });
  return bytes;
}

export class ModelMemory {
  readonly segment: Segment;
  readonly #parameters: Map<string, Region<'float32'>>;
  readonly states: ReadonlyMap<string, Region<'float32'>>;
  /** What a step writes; copied over the state when the step is done. */
  readonly nextStates: ReadonlyMap<string, Region<'float32'>>;
  readonly averages: ReadonlyMap<string, ReadonlyMap<string, Region<'float32'>>>;
  readonly gradients: ReadonlyMap<string, GradientPlace>;
  readonly slots: ReadonlyMap<string, Slots>;
  /** Of tables that live elsewhere; their parameters are the rows of a batch. */
  readonly rowBuffers: ReadonlyMap<string, RowBuffer>;
  readonly inputs: ReadonlyMap<string, Region>;
  readonly masks: ReadonlyMap<string, Region<'float32'>>;
  /**
   * The loss, the next states, then all dense gradients in the order backward makes them, each from a new line on: what workers
   * exchange, so that neighbours can go as one message. What fills up lines is 0.
   */
  readonly exchanged: Region<'float32'>;
  /** The beginning of it: what the first segment of backward makes, whatever its gradients are. */
  readonly lossAndStates: Region<'float32'>;
  readonly loss: Region<'float32'>;
  readonly sampleIds: Region<'int32'>;

  constructor(model: Model, options: ModelMemoryOptions) {
    const { space, maxBatch, gradients, slots, weights, work, workers = 1, rowsOnly = NONE } = options;
    const elementsHere = (name: string): number | undefined => {
      if (!rowsOnly.has(name)) return undefined;
      const parameter = model.graph.parameters.get(name)!;
      return heldRows(model.graph, parameter, maxBatch) * parameter.shape[1]!;
    };
    const bytes =
      (weights ? 0 : weightBytes(model, slots, elementsHere)) +
      (work ? 0 : workBytes(model, gradients, maxBatch, workers, options));
    if (bytes > 0xffff0000) {
      const gib = (bytes / 2 ** 30).toFixed(1);
      throw new UsageError(
        'MODEL_TOO_LARGE',
        `The model with its gradients and optimizer state takes ${gib} GiB, but one process addresses 4 GiB. Use a smaller model, batch or an optimizer with less state.`,
        { bytes },
      );
    }
    this.segment =
      work ??
      (options.segmentName === undefined
        ? space.allocate(bytes)
        : space.createSegment(options.segmentName, bytes));
    const home = weights ?? this.segment;
    const placed = walkWeights(model, slots, elementsHere, (length) => home.allocate('float32', length));
    this.#parameters = placed.parameters;
    this.states = placed.states;
    this.averages = placed.averages;
    this.slots = placed.slots;
    const own = walkWork(model, gradients, maxBatch, workers, options, {
      region: (dtype, length) => this.segment.allocate(dtype, length),
      plan: (capacity) => allocateRowPlan(this.segment, capacity),
    });
    this.nextStates = own.nextStates;
    this.gradients = own.gradients;
    this.rowBuffers = own.rowBuffers;
    this.inputs = own.inputs;
    this.masks = own.masks;
    this.exchanged = own.exchanged;
    this.lossAndStates = own.lossAndStates;
    this.loss = own.loss;
    this.sampleIds = own.sampleIds;
  }

  get parameters(): ReadonlyMap<string, Region<'float32'>> {
    return this.#parameters;
  }

  /** The states of the step become those of the model, unless its loss is not finite: then nothing of the step is kept. */
  takeStates(kernels: Kernels): void {
    if (!Number.isFinite(this.loss.view[0]!)) return;
    for (const [name, next] of this.nextStates) kernels.copy(this.states.get(name)!, next);
  }

  /** The moving averages of a parameter, as whoever has it elsewhere keeps them: each is a slot. */
  averagesOf(name: string): Slots {
    return Object.fromEntries(
      [...this.averages].flatMap(([average, regions]) => {
        const region = regions.get(name);
        return region ? [[averageSlot(average), region] as const] : [];
      }),
    );
  }

  /** A parameter lies elsewhere from now on, with the value that is there; what was compiled must be compiled again. */
  relocate(name: string, region: Region<'float32'>): void {
    this.#parameters.set(name, region);
  }

  /** How many rows of a table are here, if they are not all; see `CompileRequest`. */
  readonly heldRows = (table: Tensor): number | undefined => this.rowBuffers.get(table.label)?.capacity;

  /**
   * The place of what a compiled graph reads: of a source, or of the numbers by which a lookup
   * reads held rows.
   */
  read(tensor: Tensor, numbersIn: Tensor | undefined, batch: number, average?: string): Region {
    const buffer = numbersIn && this.rowBuffers.get(numbersIn.label);
    return buffer ? buffer.numbersOf(tensor, batch) : this.source(tensor, average);
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
