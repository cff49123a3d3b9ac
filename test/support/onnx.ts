/** Independent readers of ONNX files: ONNX Runtime's JavaScript binding, and Debian's python3-onnx where it is there. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as ort from 'onnxruntime-node';
import { Random } from '../../src/base/index.ts';
import { elementCount, fillInitial, resolveShape, type Graph, type Tensor } from '../../src/graph/index.ts';
import { component, PYTHON } from './components.ts';

/** The onnx package of Python, which some tests compare with. */
export const pythonOnnx = component('python3-onnx');

/** Runs a Python program with the path of a fresh folder as its argument; gives the files it wrote, by name. */
export function runPython(
  program: string,
  files: Record<string, Uint8Array>,
  wanted: string[] = [],
): Uint8Array[] {
  const folder = mkdtempSync(join(tmpdir(), 'tributary-onnx-'));
  try {
    for (const [name, bytes] of Object.entries(files)) writeFileSync(join(folder, name), bytes);
    const result = spawnSync(PYTHON, ['-c', program, folder], { encoding: 'utf8', timeout: 60_000 });
    if (result.status !== 0) throw new Error(`python3 ended with ${result.status}: ${result.stderr}`);
    return wanted.map((name) => new Uint8Array(readFileSync(join(folder, name))));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

export interface Feed {
  data: Float32Array | Int32Array;
  shape: number[];
  /** As the file has it; default by the array. */
  int64?: boolean;
}

/** The outputs of a model by ONNX Runtime's own binding. */
export async function runOnnx(
  bytes: Uint8Array,
  feeds: Record<string, Feed>,
): Promise<Record<string, Result>> {
  const session = await ort.InferenceSession.create(bytes, { intraOpNumThreads: 1 });
  try {
    const tensors = Object.entries(feeds).map(([name, { data, shape, int64 }]): [string, ort.Tensor] => {
      if (int64) return [name, new ort.Tensor('int64', BigInt64Array.from(data, BigInt), shape)];
      if (data instanceof Int32Array) return [name, new ort.Tensor('int32', data, shape)];
      return [name, new ort.Tensor('float32', data, shape)];
    });
    const results = await session.run(Object.fromEntries(tensors));
    return Object.fromEntries(
      Object.entries(results).map(([name, tensor]) => {
        const data = Array.from(tensor.data as ArrayLike<number | bigint>, Number);
        return [name, { data, shape: [...tensor.dims] }];
      }),
    );
  } finally {
    await session.release();
  }
}

export interface Result {
  data: number[];
  shape: number[];
}

/** Random values for the inputs of a graph; integers below `vocabulary`. */
export function randomFeeds(
  inputs: Iterable<Tensor>,
  batch: number,
  seed: number,
  vocabulary = 10,
): Record<string, Feed> {
  const random = new Random(seed);
  const feeds: Record<string, Feed> = {};
  for (const input of inputs) {
    const shape = resolveShape(input.shape, batch);
    const draw = input.dtype === 'int32' ? () => random.below(vocabulary) : () => random.normal();
    const data = Array.from({ length: elementCount(shape) }, draw);
    feeds[input.label] = {
      data: input.dtype === 'int32' ? Int32Array.from(data) : Float32Array.from(data),
      shape,
    };
  }
  return feeds;
}

/** The initial values of parameters and state, by name. */
export function initialValues(graph: Graph, seed = 1): Record<string, Float32Array> {
  const values: Record<string, Float32Array> = {};
  for (const source of [...graph.parameters.values(), ...graph.states.values()]) {
    const data = new Float32Array(elementCount(source.shape));
    fillInitial(data, source.initialiser, source.name, seed);
    values[source.name] = data;
  }
  return values;
}

export function dataOf(feeds: Record<string, Feed>): Record<string, ArrayLike<number>> {
  return Object.fromEntries(Object.entries(feeds).map(([name, { data }]) => [name, data]));
}
