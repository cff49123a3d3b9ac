/**
 * The gradients of a batch: masks are drawn, the compiled segments run, and the adjoints of lookups become unique
 * rows. Compiled once for each batch size. It ends where exchange and update begin.
 */
import { deriveSeed } from '../base/index.ts';
import type { CompiledGraph, Compute } from '../compute/index.ts';
import { elementCount, isNode, resolveShape, type Model, type Tensor } from '../graph/index.ts';
import { planRows, sumRows, type Kernels } from '../kernels/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import { IndexChecks } from './index-checks.ts';
import type { ModelMemory, SparsePlace } from './model-memory.ts';
import { inputWithSameBytes } from './row-buffer.ts';

export interface BackwardOptions {
  readonly model: Model;
  readonly memory: ModelMemory;
  readonly compute: Compute;
  readonly kernels: Kernels;
  readonly seed: number;
  /** The number by which people know a sample, for errors. */
  readonly numberOf: (sample: number) => number;
  /** Parameters whose gradients are handed over together, in the order of the backward pass. Default: all at once. */
  readonly groups?: readonly (readonly string[])[] | undefined;
}

interface CompiledBatch {
  readonly graph: CompiledGraph;
  readonly scratch: Segment[];
}

export class Backward {
  readonly #options: BackwardOptions;
  #groups: readonly (readonly string[])[];
  #isForwardApart = false;
  /** That of the last forward pass. */
  #batch = 0;
  readonly #checks: IndexChecks;
  readonly #compiled = new Map<number, CompiledBatch>();

  constructor(options: BackwardOptions) {
    this.#options = options;
    this.#checks = new IndexChecks(options.model.graph, options.memory, options.numberOf);
    this.#groups = options.groups ?? [[...options.memory.gradients.keys()]];
  }

  /**
   * Begins with the batch in the model's inputs: masks are drawn, and the forward pass runs where it
   * is a segment of its own. `onCompiled` is called if this batch size had to be compiled first.
   */
  forward(batch: number, step: number, onCompiled?: () => void): void {
    const isNew = !this.#compiled.has(batch);
    const { graph } = this.#compiledFor(batch);
    if (isNew) onCompiled?.();
    this.#checks.run(batch);
    this.#drawMasks(batch, step);
    this.#batch = batch;
    if (this.#forwardSegments > 0) graph.run(0);
  }

  /** Brings the gradients of a group to their places, in the order of the groups. */
  group(group: number): void {
    const { memory } = this.#options;
    this.#compiledFor(this.#batch).graph.run(this.#forwardSegments + group);
    for (const name of this.#groups[group]!) {
      const place = memory.gradients.get(name);
      if (place?.kind === 'sparse') this.#uniqueRows(place, this.#batch);
    }
  }

  get groups(): number {
    return this.#groups.length;
  }

  /** From the next batch on. What was compiled is compiled again. */
  setGroups(groups: readonly (readonly string[])[]): void {
    this.close();
    this.#groups = groups;
  }

  /** Runs the forward pass as a segment of its own, from the next batch on. Costs what one more cut costs, and changes no bit. */
  cutForward(): void {
    this.close();
    this.#isForwardApart = true;
  }

  close(): void {
    for (const { graph, scratch } of this.#compiled.values()) {
      graph.close();
      for (const segment of scratch) segment.close();
    }
    this.#compiled.clear();
  }

  /** A first group without gradients is the forward pass already. */
  get #forwardSegments(): 0 | 1 {
    return this.#isForwardApart && this.#groups[0]!.length > 0 ? 1 : 0;
  }

  #drawMasks(batch: number, step: number): void {
    const { model, memory, kernels, seed } = this.#options;
    for (const [name, mask] of model.graph.dropoutMasks) {
      const length = elementCount(resolveShape(mask.shape, batch));
      const p = isNode(mask.node, 'dropout_mask') ? mask.node.attributes.p : 0;
      kernels.dropoutMask(memory.masks.get(name)!.slice(0, length), {
        p,
        seed: deriveSeed(seed, 'dropout', name, step),
        sampleIds: memory.sampleIds.slice(0, batch),
      });
    }
  }

  #uniqueRows(place: SparsePlace, batch: number): void {
    const { kernels } = this.#options;
    const { gradient, plan, positionRows, rowLength, tableRows, rows } = place;
    const count = gradient.lookups.reduce(
      (sum, { indices }) => sum + elementCount(resolveShape(indices.shape, batch)),
      0,
    );
    const paddingIndex = gradient.lookups[0]!.paddingIndex ?? undefined;
    place.whole = undefined;
    place.count = planRows(kernels, {
      indices: this.#positions(place, batch),
      count,
      tableRows,
      paddingIndex,
      plan,
    });
    sumRows(kernels, { plan, unique: place.count, rows: positionRows, rowLength, rowsOut: rows });
  }

  /**
   * The looked-up indices: the model's input itself where nothing else is looked up, else inputs
   * and what backward wrote.
   */
  #positions({ gradient, positions }: SparsePlace, batch: number): Region<'int32'> {
    const { memory } = this.#options;
    let start = 0;
    for (const { indices } of gradient.lookups) {
      const length = elementCount(resolveShape(indices.shape, batch));
      const input = inputWithSameBytes(indices);
      if (input) {
        const given = memory.source(input) as Region<'int32'>;
        if (gradient.lookups.length === 1) return given;
        positions.view.set(given.view.subarray(0, length), start);
      }
      start += length;
    }
    return positions;
  }

  #compiledFor(batch: number): CompiledBatch {
    const known = this.#compiled.get(batch);
    if (known) return known;
    const { model, memory, compute } = this.#options;
    const places = new Map<Tensor, Region>([[model.loss, memory.loss]]);
    for (const { state, value } of model.graph.stateUpdates)
      places.set(value, memory.nextStates.get(state.name)!);
    const segments = this.#groups.map((names) => names.flatMap((name) => this.#outputs(name, batch, places)));
    if (this.#forwardSegments > 0) segments.unshift([]);
    segments[0]!.unshift(model.loss, ...model.graph.stateUpdates.map((update) => update.value));
    const scratch: Segment[] = [];
    const graph = compute.compile({
      segments,
      batch,
      place: (tensor, numbersIn) =>
        (numbersIn ? undefined : places.get(tensor)) ?? memory.read(tensor, numbersIn, batch),
      heldRows: memory.heldRows,
      allocate: (dtype, length) => {
        const segment = memory.segment.space.allocate(Math.max(64, length * 8));
        scratch.push(segment);
        return segment.allocate(dtype, length);
      },
    });
    const compiled = { graph, scratch };
    this.#compiled.set(batch, compiled);
    return compiled;
  }

  /** What backward must write for a parameter, with the place of each tensor. */
  #outputs(name: string, batch: number, places: Map<Tensor, Region>): Tensor[] {
    const place = this.#options.memory.gradients.get(name)!;
    if (place.kind === 'dense') {
      places.set(place.gradient.value, place.region);
      return [place.gradient.value];
    }
    let start = 0;
    return place.gradient.lookups.flatMap(({ indices, rows }) => {
      const length = elementCount(resolveShape(indices.shape, batch));
      // An input is where it is: written as an output, too, it would be read from there.
      const isGiven = inputWithSameBytes(indices) !== undefined;
      if (!isGiven) places.set(indices, place.positions.slice(start, length));
      places.set(rows, place.positionRows.slice(start * place.rowLength, length * place.rowLength));
      start += length;
      return isGiven ? [rows] : [indices, rows];
    });
  }
}
