/** Runs a model in inference form (no dropout, running statistics) on the parameters of a replica, in place. */
import type { CompiledGraph, Compute } from '../compute/index.ts';
import { memoryTypes } from '../compute/index.ts';
import { elementCount, forInference, resolveShape, type Tensor } from '../graph/index.ts';
import type { Region, Segment } from '../memory/index.ts';
import type { ModelMemory } from './model-memory.ts';

interface CompiledBatch {
  readonly graph: CompiledGraph;
  readonly segment: Segment;
  readonly results: readonly Region[];
}

export class Evaluator {
  readonly outputs: readonly Tensor[];
  readonly #memory: ModelMemory;
  readonly #compute: Compute;
  readonly #average: string | undefined;
  readonly #compiled = new Map<number, CompiledBatch>();

  /** With `average`, that moving average of the parameters is used instead of the parameters. */
  constructor(outputs: readonly Tensor[], memory: ModelMemory, compute: Compute, average?: string) {
    this.outputs = forInference(outputs);
    this.#memory = memory;
    this.#compute = compute;
    this.#average = average;
  }

  /** The outputs for the batch in the model's inputs; valid until the next run of the same size. */
  run(batch: number): readonly Region[] {
    const { graph, results } = this.#compiledFor(batch);
    graph.run(0);
    return results;
  }

  close(): void {
    for (const { graph, segment } of this.#compiled.values()) {
      graph.close();
      segment.close();
    }
    this.#compiled.clear();
  }

  #compiledFor(batch: number): CompiledBatch {
    const known = this.#compiled.get(batch);
    if (known) return known;
    const lengths = this.outputs.map((output) => elementCount(resolveShape(output.shape, batch)));
    const segment = this.#memory.segment.space.allocate(
      lengths.reduce((bytes, length) => bytes + 8 * length + 128, 0),
    );
    const results = this.outputs.map((output, i) => segment.allocate(memoryTypes[output.dtype], lengths[i]!));
    const places = new Map(this.outputs.map((output, i) => [output, results[i]!]));
    const graph = this.#compute.compile({
      segments: [this.outputs],
      batch,
      place: (tensor, numbersIn) =>
        (numbersIn ? undefined : places.get(tensor)) ??
        this.#memory.read(tensor, numbersIn, batch, this.#average),
      heldRows: this.#memory.heldRows,
      allocate: (dtype, length) => segment.allocate(dtype, length),
    });
    const compiled = { graph, segment, results };
    this.#compiled.set(batch, compiled);
    return compiled;
  }
}
