/** Runs tensors of a graph once on ONNX Runtime and gives their values: what most graph tests need. */
import { memoryTypes, OnnxCompute } from '../../src/compute/index.ts';
import { elementCount, resolveShape, type Tensor } from '../../src/graph/index.ts';
import { SharedSpace, type Region } from '../../src/memory/index.ts';

export interface EvaluateOptions {
  batch?: number;
  /** One list of outputs for each segment; default all in one. */
  segments?: Tensor[][];
}

const space = SharedSpace.create();
const compute = new OnnxCompute();

/** Values of sources by name; the results in the order of `outputs`. */
export function evaluate(
  outputs: readonly Tensor[],
  values: Record<string, ArrayLike<number>>,
  { batch = 1, segments = [[...outputs]] }: EvaluateOptions = {},
): number[][] {
  const memory = space.allocate(64 << 20);
  const places = new Map<Tensor, Region>();
  const place = (tensor: Tensor) => {
    const known = places.get(tensor);
    if (known) return known;
    const region = memory.allocate(
      memoryTypes[tensor.dtype],
      elementCount(resolveShape(tensor.shape, batch)),
    );
    const given = values[tensor.label];
    if (given) region.view.set(Array.from(given) as never[]);
    places.set(tensor, region);
    return region;
  };
  const compiled = compute.compile({
    segments,
    batch,
    place,
    allocate: (dtype, length) => memory.allocate(dtype, length),
  });
  try {
    for (let i = 0; i < compiled.segmentCount; i++) compiled.run(i);
    return outputs.map((output) => Array.from(place(output).view as ArrayLike<number>, Number));
  } finally {
    compiled.close();
    memory.close();
  }
}
