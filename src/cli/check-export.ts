/**
 * Proof that an exported file says what was trained: it is read back, and both models get the same random batch.
 * Only the catalogue's operators are compared here; other runtimes are the ONNX standard's promise.
 */
import { deriveSeed, InternalError, Random } from '../base/index.ts';
import { memoryTypes, type Compute } from '../compute/index.ts';
import {
  elementCount,
  fillInitial,
  forInference,
  importOnnx,
  resolveShape,
  type Graph,
  type Tensor,
} from '../graph/index.ts';
import { SharedSpace, type Region } from '../memory/index.ts';

const TOLERANCE = 1e-5;
const BATCH = 2;

export interface CheckedFile {
  readonly inputs: Readonly<Record<string, Tensor>>;
  readonly outputs: Readonly<Record<string, Tensor>>;
  /** Largest difference relative to the larger of 1 and the value. */
  readonly difference: number;
}

/** `valueOf` gives the trained value of a source; `tokens` how many ids an int32 input may hold. */
export function checkExport(
  bytes: Uint8Array,
  outputs: Readonly<Record<string, Tensor>>,
  options: {
    readonly compute: Compute;
    readonly valueOf: (source: Tensor) => Float32Array;
    readonly tokens: number;
  },
): CheckedFile {
  const imported = importOnnx(bytes, { source: 'the exported model' });
  const names = Object.keys(outputs);
  const initial = (source: Tensor) => initialValue(imported.graph, source);
  const expected = evaluateOnce(Object.values(outputs), options.valueOf, options);
  const actual = evaluateOnce(
    names.map((name) => imported.outputs[name]!),
    initial,
    options,
  );
  let difference = 0;
  names.forEach((name, i) => {
    expected[i]!.forEach((value, j) => {
      const apart = Math.abs(actual[i]![j]! - value) / Math.max(1, Math.abs(value));
      // Written so that a NaN fails too.
      if (!(apart <= TOLERANCE)) {
        throw new InternalError(
          'BROKEN_INVARIANT',
          `The exported model differs: ${name}[${j}] is ${actual[i]![j]} instead of ${value}. The file was not written; please report this.`,
          { output: name, index: j, expected: value, actual: actual[i]![j] },
        );
      }
      difference = Math.max(difference, apart);
    });
  });
  return { inputs: imported.inputs, outputs: imported.outputs, difference };
}

function initialValue(graph: Graph, source: Tensor): Float32Array {
  const entry = (graph.parameters.get(source.label) ?? graph.states.get(source.label))!;
  const value = new Float32Array(elementCount(entry.shape));
  fillInitial(value, entry.initialiser, entry.name, 0);
  return value;
}

/** The outputs in inference form for a batch that depends on the names of the inputs alone. */
function evaluateOnce(
  outputs: readonly Tensor[],
  valueOf: (source: Tensor) => Float32Array,
  { compute, tokens }: { readonly compute: Compute; readonly tokens: number },
): number[][] {
  const targets = forInference(outputs);
  const { graph } = targets[0]!;
  const origin = outputs[0]!.graph;
  const sources = [
    ...graph.inputs.values(),
    ...[...graph.parameters.values(), ...graph.states.values()].map(({ tensor }) => tensor),
  ];
  const sizeOf = (tensor: Tensor) => elementCount(resolveShape(tensor.shape, BATCH));
  const bytes = [...sources, ...targets].reduce((sum, tensor) => sum + 8 * sizeOf(tensor) + 128, 0);
  const memory = SharedSpace.create().allocate(bytes);
  try {
    const places = new Map<Tensor, Region>();
    for (const tensor of [...sources, ...targets])
      places.set(tensor, memory.allocate(memoryTypes[tensor.dtype], sizeOf(tensor)));
    for (const source of sources) {
      const view = places.get(source)!.view as Float32Array | Int32Array;
      if (source.node.op === 'input') fillInput(view, source, tokens);
      else {
        const { label } = source;
        view.set(valueOf((origin.parameters.get(label) ?? origin.states.get(label))!.tensor));
      }
    }
    const compiled = compute.compile({
      segments: [targets],
      batch: BATCH,
      place: (tensor) => places.get(tensor)!,
      allocate: (dtype, length) => memory.allocate(dtype, length),
    });
    try {
      compiled.run(0);
      return targets.map((target) => Array.from(places.get(target)!.view as Float32Array));
    } finally {
      compiled.close();
    }
  } finally {
    memory.close();
  }
}

function fillInput(view: Float32Array | Int32Array, { label, dtype }: Tensor, tokens: number): void {
  const random = new Random(deriveSeed(0, label));
  for (let i = 0; i < view.length; i++)
    view[i] = dtype === 'float32' ? random.normal() : random.below(tokens);
}
