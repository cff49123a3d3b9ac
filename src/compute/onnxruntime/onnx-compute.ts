/**
 * Compute by ONNX Runtime: one session for each segment, every tensor bound once to its address in shared
 * memory. Parameters are read and gradients written in place; a run is one foreign call.
 */
import { UsageError } from '../../base/index.ts';
import { elementCount, encodeModel, lower, resolveShape, type Port, type Tensor } from '../../graph/index.ts';
import type { DType as GraphDType } from '../../graph/index.ts';
import { bytesPerElement, type DType, type Region } from '../../memory/index.ts';
import type { CompiledGraph, CompileRequest, Compute } from '../compute.ts';
import { cutSegments } from '../segments.ts';
import type { Binding } from './binding.ts';
import type { SessionOptions } from './session-options.ts';
import type { NativeTensorSpec } from './session-values.ts';
import { OnnxRuntime, type Session } from './session.ts';

/** How a graph type lies in memory; bool is a byte. */
export const memoryTypes: Readonly<Record<GraphDType, DType>> = {
  float32: 'float32',
  int32: 'int32',
  int64: 'int64',
  bool: 'uint8',
};

export class OnnxCompute implements Compute {
  readonly name = 'onnxruntime';
  readonly #runtime: OnnxRuntime;
  readonly #options: SessionOptions;

  constructor(options: SessionOptions = {}) {
    this.#runtime = OnnxRuntime.load();
    this.#options = options;
  }

  compile(request: CompileRequest): CompiledGraph {
    const { batch, place, allocate, heldRows } = request;
    const kept = new Map<Tensor, Region>();
    const wanted = new Set(request.segments.flat());
    const sessions: Session[] = [];
    // A segment whose outputs earlier ones made on their way has nothing to run.
    const bindings: (Binding | undefined)[] = [];
    const close = () => {
      for (const binding of bindings) binding?.close();
      for (const session of sessions) session.close();
    };
    try {
      for (const cut of cutSegments(request.segments)) {
        for (const tensor of cut.kept) {
          if (wanted.has(tensor)) continue;
          kept.set(
            tensor,
            allocate(memoryTypes[tensor.dtype], elementCount(resolveShape(tensor.shape, batch))),
          );
        }
        const outputs = [...cut.outputs.filter((tensor) => !cut.given.includes(tensor)), ...cut.kept];
        if (outputs.length === 0) {
          bindings.push(undefined);
          continue;
        }
        const lowered = lower({ outputs, given: cut.given, batch, heldRows });
        const spec = (port: Port) => {
          const { tensor, numbersIn } = port;
          const region = numbersIn ? place(tensor, numbersIn) : (kept.get(tensor) ?? place(tensor));
          return nativeSpec(port, region, batch);
        };
        const session = this.#runtime.createSession(encodeModel(lowered.model), this.#options);
        sessions.push(session);
        bindings.push(session.bind(lowered.inputs.map(spec), lowered.outputs.map(spec)));
      }
    } catch (error) {
      close();
      throw error;
    }
    return { segmentCount: bindings.length, run: (segment) => bindings[segment]?.run(), close };
  }

  close(): void {
    this.#runtime.close();
  }
}

function nativeSpec(port: Port, region: Region, batch: number): NativeTensorSpec {
  const shape = resolveShape(port.shape, batch);
  const dtype = memoryTypes[port.dtype];
  const byteLength = elementCount(shape) * bytesPerElement(dtype);
  if (region.dtype !== dtype || region.byteLength < byteLength) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `${port.tensor.label} needs ${byteLength} bytes of ${dtype}, its place has ${region.byteLength} of ${region.dtype}.`,
    );
  }
  return { name: port.name, dtype: port.dtype, shape, address: region.address, byteLength };
}
