/**
 * The C API of ONNX Runtime as typed functions. `OrtGetApiBase` gives a table of function pointers whose order never
 * changes; `table` names the position of each one used here, as in onnxruntime_c_api.h. No object lifetimes here.
 * Invariant: a status never leaks. Every function that returns one is called through `check`, which turns a status
 * into an InternalError with the runtime's own words and releases it.
 */
import koffi from 'koffi';
import { InternalError } from '../../base/index.ts';
import { openLibrary } from './library.ts';

/** A native address. 0n is the null pointer. */
export type Pointer = bigint;
/** Zero, or the address of an OrtStatus. */
export type Status = number | bigint;
/** One native word that a function writes its result into. */
export type Out = BigUint64Array | BigInt64Array | Int32Array;
/** The strings C code calls ORTCHAR_T: UTF-16 on Windows, UTF-8 elsewhere. */
const pathString = process.platform === 'win32' ? 'str16' : 'str';

export interface OrtFunctions {
  getErrorCode(status: Status): number;
  getErrorMessage(status: Status): string;
  createEnv(severity: number, logId: string, out: Out): Status;
  disableTelemetryEvents(env: Pointer): Status;
  createSessionFromArray(env: Pointer, model: Uint8Array, bytes: number, options: Pointer, out: Out): Status;
  run(
    session: Pointer,
    runOptions: null,
    inputNames: Pointer,
    inputs: Pointer,
    inputCount: number,
    outputNames: Pointer,
    outputCount: number,
    outputs: Pointer,
  ): Status;
  createSessionOptions(out: Out): Status;
  setSessionExecutionMode(options: Pointer, mode: number): Status;
  enableProfiling(options: Pointer, prefix: string): Status;
  enableMemPattern(options: Pointer): Status;
  enableCpuMemArena(options: Pointer): Status;
  setSessionLogSeverityLevel(options: Pointer, severity: number): Status;
  setSessionGraphOptimizationLevel(options: Pointer, level: number): Status;
  setIntraOpNumThreads(options: Pointer, threads: number): Status;
  setInterOpNumThreads(options: Pointer, threads: number): Status;
  sessionGetInputCount(session: Pointer, out: Out): Status;
  sessionGetOutputCount(session: Pointer, out: Out): Status;
  sessionGetInputTypeInfo(session: Pointer, index: number, out: Out): Status;
  sessionGetOutputTypeInfo(session: Pointer, index: number, out: Out): Status;
  sessionGetInputName(session: Pointer, index: number, allocator: Pointer, out: Out): Status;
  sessionGetOutputName(session: Pointer, index: number, allocator: Pointer, out: Out): Status;
  createTensorWithDataAsOrtValue(
    memoryInfo: Pointer,
    data: Pointer,
    bytes: number,
    shape: BigInt64Array,
    rank: number,
    type: number,
    out: Out,
  ): Status;
  castTypeInfoToTensorInfo(typeInfo: Pointer, out: Out): Status;
  getTensorElementType(info: Pointer, out: Out): Status;
  getDimensionsCount(info: Pointer, out: Out): Status;
  getDimensions(info: Pointer, out: Out, rank: number): Status;
  createCpuMemoryInfo(allocatorType: number, memoryType: number, out: Out): Status;
  allocatorFree(allocator: Pointer, memory: Pointer): Status;
  getAllocatorWithDefaultOptions(out: Out): Status;
  releaseEnv(env: Pointer): void;
  releaseStatus(status: Status): void;
  releaseMemoryInfo(info: Pointer): void;
  releaseSession(session: Pointer): void;
  releaseValue(value: Pointer): void;
  releaseTypeInfo(info: Pointer): void;
  releaseSessionOptions(options: Pointer): void;
  sessionEndProfiling(session: Pointer, allocator: Pointer, out: Out): Status;
  getAvailableProviders(out: Out, count: Out): Status;
  releaseAvailableProviders(providers: Pointer, count: number): Status;
  addSessionConfigEntry(options: Pointer, key: string, value: string): Status;
  appendCudaProvider(options: Pointer, providerOptions: Pointer): Status;
  createCudaProviderOptions(out: Out): Status;
  releaseCudaProviderOptions(providerOptions: Pointer): void;
  appendExecutionProvider(options: Pointer, name: string, keys: null, values: null, count: number): Status;
}

/** The first API version that has every function of `table`; later runtimes serve it unchanged. */
const apiVersion = 12;
const p = 'void *';
const n = 'size_t';
const status = 'uintptr_t';

const table: Readonly<
  Record<keyof OrtFunctions, readonly [index: number, result: string, args: readonly string[]]>
> = {
  getErrorCode: [1, 'int', [status]],
  getErrorMessage: [2, 'str', [status]],
  createEnv: [3, status, ['int', 'str', p]],
  disableTelemetryEvents: [6, status, [p]],
  createSessionFromArray: [8, status, [p, p, n, p, p]],
  run: [9, status, [p, p, p, p, n, p, n, p]],
  createSessionOptions: [10, status, [p]],
  setSessionExecutionMode: [13, status, [p, 'int']],
  enableProfiling: [14, status, [p, pathString]],
  enableMemPattern: [16, status, [p]],
  enableCpuMemArena: [18, status, [p]],
  setSessionLogSeverityLevel: [22, status, [p, 'int']],
  setSessionGraphOptimizationLevel: [23, status, [p, 'int']],
  setIntraOpNumThreads: [24, status, [p, 'int']],
  setInterOpNumThreads: [25, status, [p, 'int']],
  sessionGetInputCount: [30, status, [p, p]],
  sessionGetOutputCount: [31, status, [p, p]],
  sessionGetInputTypeInfo: [33, status, [p, n, p]],
  sessionGetOutputTypeInfo: [34, status, [p, n, p]],
  sessionGetInputName: [36, status, [p, n, p, p]],
  sessionGetOutputName: [37, status, [p, n, p, p]],
  createTensorWithDataAsOrtValue: [49, status, [p, p, n, p, n, 'int', p]],
  castTypeInfoToTensorInfo: [55, status, [p, p]],
  getTensorElementType: [60, status, [p, p]],
  getDimensionsCount: [61, status, [p, p]],
  getDimensions: [62, status, [p, p, n]],
  createCpuMemoryInfo: [69, status, ['int', 'int', p]],
  allocatorFree: [76, status, [p, p]],
  getAllocatorWithDefaultOptions: [78, status, [p]],
  releaseEnv: [92, 'void', [p]],
  releaseStatus: [93, 'void', [status]],
  releaseMemoryInfo: [94, 'void', [p]],
  releaseSession: [95, 'void', [p]],
  releaseValue: [96, 'void', [p]],
  releaseTypeInfo: [98, 'void', [p]],
  releaseSessionOptions: [100, 'void', [p]],
  sessionEndProfiling: [110, status, [p, p, p]],
  getAvailableProviders: [125, status, [p, p]],
  releaseAvailableProviders: [126, status, [p, 'int']],
  addSessionConfigEntry: [130, status, [p, 'str', 'str']],
  appendCudaProvider: [204, status, [p, p]],
  createCudaProviderOptions: [205, status, [p]],
  releaseCudaProviderOptions: [208, 'void', [p]],
  appendExecutionProvider: [216, status, [p, 'str', p, p, n]],
};

/** OrtLoggingLevel: errors and worse. Every failure also comes back as a status. */
export const logErrorsOnly = 3;

export class OrtApi {
  readonly version: string;
  readonly call: Readonly<OrtFunctions>;
  /** Held because koffi unloads a library that is collected, and the functions of `call`, found by address, do not hold it. */
  readonly library = openLibrary();

  constructor() {
    const base = (this.library.func('OrtGetApiBase', p, []) as () => Pointer)();
    const [getApi, getVersionString] = koffi.decode(base, koffi.array(p, 2)) as [Pointer, Pointer];
    this.version = koffi.call(getVersionString, koffi.proto('str', [])) as string;
    const api = koffi.call(getApi, koffi.proto(p, ['uint32_t']), apiVersion) as Pointer | null;
    if (api === null) {
      throw new InternalError(
        'RUNTIME_FAILURE',
        `ONNX Runtime ${this.version} does not serve version ${apiVersion} of its C API. Install onnxruntime-node 1.12 or newer.`,
        { version: this.version, apiVersion },
      );
    }
    const last = Math.max(...Object.values(table).map(([index]) => index));
    const pointers = koffi.decode(api, koffi.array(p, last + 1)) as Pointer[];
    const call: Record<string, unknown> = {};
    for (const [name, [index, result, args]] of Object.entries(table)) {
      call[name] = koffi.decode(pointers[index], koffi.proto(result, [...args]));
    }
    this.call = call as unknown as OrtFunctions;
  }

  /** Throws what a non-null status says; `doing` completes the sentence 'ONNX Runtime failed to ...'. */
  check(result: Status, doing: string): void {
    if (result != 0) throw this.failure(result, doing);
  }

  /** Calls a function that writes one pointer and gives that pointer. */
  pointer(call: (out: BigUint64Array) => Status, doing: string): Pointer {
    const out = new BigUint64Array(1);
    this.check(call(out), doing);
    return out[0]!;
  }

  failure(result: Status, doing: string): InternalError {
    const reason = this.call.getErrorMessage(result).trim();
    const ortCode = this.call.getErrorCode(result);
    this.call.releaseStatus(result);
    return new InternalError(
      'RUNTIME_FAILURE',
      `ONNX Runtime ${this.version} failed to ${doing}: ${reason} (its code ${ortCode}). ` +
        'If the model is your own, correct what is named; otherwise report it with the model.',
      { doing, reason, ortCode },
    );
  }
}
