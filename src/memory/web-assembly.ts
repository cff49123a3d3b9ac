/**
 * The part of the WebAssembly global that Tributary uses, typed here because the language library without
 * the browser's does not know it. Not a polyfill. Invariant: the shapes agree with the standard, so that a
 * `WebAssembly.Memory` made elsewhere can be passed where a `WasmMemory` is asked.
 */

export interface WasmMemory {
  readonly buffer: ArrayBufferLike;
}

export interface WasmInstance {
  readonly exports: Readonly<Record<string, unknown>>;
}

/** A compiled module; opaque. */
export interface WasmModule {
  readonly [Symbol.toStringTag]?: string;
}

interface WebAssemblyGlobal {
  readonly Memory: new (options: { initial: number; maximum: number; shared: boolean }) => WasmMemory;
  readonly Module: new (bytes: Uint8Array) => WasmModule;
  readonly Instance: new (
    module: WasmModule,
    imports: Readonly<Record<string, Readonly<Record<string, unknown>>>>,
  ) => WasmInstance;
}

export const webAssembly = (globalThis as unknown as { WebAssembly: WebAssemblyGlobal }).WebAssembly;
