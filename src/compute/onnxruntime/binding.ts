/**
 * A session tied to memory: native arrays of names and of tensors, made once on addresses of the caller's memory, so
 * that a run is one native call on prepared pointers. Nothing is allocated, copied or looked up in it.
 * Invariant: the arrays live in buffers that never move and stay referenced until the binding is collected; the
 * caller's memory must outlive the binding and is never freed here.
 */
import koffi from 'koffi';
import { UsageError } from '../../base/index.ts';
import type { OrtApi, Pointer } from './api.ts';
import { checkSpec, nativeDTypes } from './session-values.ts';
import type { NativeTensorSpec, SessionValue } from './session-values.ts';

/** What every object below a runtime needs of it. */
export interface Shared {
  readonly api: OrtApi;
  readonly memoryInfo: Pointer;
  readonly allocator: Pointer;
}

export function closedError(what: string): UsageError {
  return new UsageError('INVALID_ARGUMENT', `The ${what} is closed. Create a new one, or close it later.`, {
    what,
  });
}

/** The inputs or the outputs of a binding: native arrays of names and of tensors, in one buffer that never moves. */
class BoundSide {
  readonly count: number;
  readonly namesAddress: Pointer;
  readonly valuesAddress: Pointer;
  readonly #shared: Shared;
  readonly #kind: 'input' | 'output';
  readonly #declared: readonly SessionValue[];
  readonly #slots = new Map<string, number>();
  readonly #values: BigUint64Array;
  // Held only so that the name bytes stay where #names points to.
  readonly #memory: ArrayBuffer;

  constructor(
    shared: Shared,
    kind: 'input' | 'output',
    declared: readonly SessionValue[],
    specs: readonly NativeTensorSpec[],
  ) {
    this.#shared = shared;
    this.#kind = kind;
    this.#declared = declared;
    this.count = specs.length;
    const names = specs.map((spec) => Buffer.from(`${spec.name}\0`));
    const words = 8 * specs.length;
    // At least one word: an empty buffer has no address.
    this.#memory = new ArrayBuffer(
      Math.max(8, 2 * words + names.reduce((sum, name) => sum + name.length, 0)),
    );
    const bytes = new Uint8Array(this.#memory);
    const base = koffi.address(bytes);
    const namePointers = new BigUint64Array(this.#memory, 0, specs.length);
    this.#values = new BigUint64Array(this.#memory, words, specs.length);
    let offset = 2 * words;
    names.forEach((name, i) => {
      bytes.set(name, offset);
      namePointers[i] = base + BigInt(offset);
      offset += name.length;
    });
    this.namesAddress = base;
    this.valuesAddress = base + BigInt(words);
    try {
      specs.forEach((spec, slot) => {
        if (this.#slots.has(spec.name)) {
          throw new UsageError(
            'INVALID_ARGUMENT',
            `The ${kind} "${spec.name}" is bound twice. Pass it once.`,
            {
              tensor: spec.name,
            },
          );
        }
        this.#slots.set(spec.name, slot);
        this.#values[slot] = this.#createValue(spec);
      });
    } catch (error) {
      this.release();
      throw error;
    }
  }

  rebind(name: string, spec: NativeTensorSpec): void {
    const slot = this.#slots.get(name);
    if (slot === undefined || spec.name !== name) throw this.#unknown(slot === undefined ? name : spec.name);
    const value = this.#createValue(spec);
    this.#shared.api.call.releaseValue(this.#values[slot]!);
    this.#values[slot] = value;
  }

  release(): void {
    this.#values.forEach((value, slot) => {
      if (value !== 0n) this.#shared.api.call.releaseValue(value);
      this.#values[slot] = 0n;
    });
  }

  #createValue(spec: NativeTensorSpec): Pointer {
    const declared = this.#declared.find((value) => value.name === spec.name);
    if (declared === undefined) throw this.#unknown(spec.name);
    checkSpec(spec, declared, this.#kind);
    const { api, memoryInfo } = this.#shared;
    const shape = BigInt64Array.from(spec.shape, BigInt);
    const { code } = nativeDTypes[spec.dtype];
    return api.pointer(
      (out) =>
        api.call.createTensorWithDataAsOrtValue(
          memoryInfo,
          spec.address,
          spec.byteLength,
          shape,
          shape.length,
          code,
          out,
        ),
      `make a tensor for the ${this.#kind} "${spec.name}"`,
    );
  }

  #unknown(name: string): UsageError {
    const known = this.#declared.map((value) => `"${value.name}"`).join(', ');
    return new UsageError(
      'INVALID_ARGUMENT',
      `The model has no bound ${this.#kind} "${name}"; it has ${known}. Use one of these names.`,
      { tensor: name },
    );
  }
}

export class Binding {
  readonly #api: OrtApi;
  readonly #call: OrtApi['call']['run'];
  readonly #session: Pointer;
  readonly #inputs: BoundSide;
  readonly #outputs: BoundSide;
  readonly #onClose: () => void;
  #closed = false;

  /** Use `Session.bind`. */
  constructor(
    shared: Shared,
    session: Pointer,
    declared: { readonly inputs: readonly SessionValue[]; readonly outputs: readonly SessionValue[] },
    inputs: readonly NativeTensorSpec[],
    outputs: readonly NativeTensorSpec[],
    onClose: () => void,
  ) {
    this.#api = shared.api;
    this.#call = shared.api.call.run;
    this.#session = session;
    this.#onClose = onClose;
    this.#inputs = new BoundSide(shared, 'input', declared.inputs, inputs);
    try {
      this.#outputs = new BoundSide(shared, 'output', declared.outputs, outputs);
    } catch (error) {
      this.#inputs.release();
      throw error;
    }
  }

  /** Reads the input memory, computes, and writes the output memory; blocks until done. */
  run(): void {
    if (this.#closed) throw closedError('binding');
    const inputs = this.#inputs;
    const outputs = this.#outputs;
    const status = this.#call(
      this.#session,
      null,
      inputs.namesAddress,
      inputs.valuesAddress,
      inputs.count,
      outputs.namesAddress,
      outputs.count,
      outputs.valuesAddress,
    );
    if (status !== 0) this.#api.check(status, 'run a session');
  }

  /** Other memory or another shape for one input; `spec.name` must be `name`. */
  rebindInput(name: string, spec: NativeTensorSpec): void {
    if (this.#closed) throw closedError('binding');
    this.#inputs.rebind(name, spec);
  }

  /** Other memory or another shape for one output; `spec.name` must be `name`. */
  rebindOutput(name: string, spec: NativeTensorSpec): void {
    if (this.#closed) throw closedError('binding');
    this.#outputs.rebind(name, spec);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#inputs.release();
    this.#outputs.release();
    this.#onClose();
  }
}
