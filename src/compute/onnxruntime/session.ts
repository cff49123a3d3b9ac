/**
 * The runtime and its sessions: compiled models that run in place on the caller's memory through a `Binding`. Knows
 * nothing of our graphs; a model is the bytes of an ONNX file. A run blocks its thread.
 * Invariant: each object owns what it makes. Closing a runtime closes its sessions, closing a session closes its
 * bindings; closing twice does nothing; anything else after close is an error.
 */
import koffi from 'koffi';
import { UsageError } from '../../base/index.ts';
import { encodeModel, Graph, lower, N, neg } from '../../graph/index.ts';
import { logErrorsOnly, OrtApi } from './api.ts';
import type { Pointer } from './api.ts';
import { Binding, closedError } from './binding.ts';
import type { Shared } from './binding.ts';
import { createSessionOptions } from './session-options.ts';
import type { Provider, SessionOptions } from './session-options.ts';
import { readSessionValues, takeString } from './session-values.ts';
import type { NativeTensorSpec, SessionValue } from './session-values.ts';

export class OnnxRuntime {
  readonly version: string;
  readonly #shared: Shared;
  readonly #env: Pointer;
  readonly #sessions = new Set<Session>();
  #closed = false;

  /** Opens the library; the native environment below is one for the process, however often this is called. */
  static load(): OnnxRuntime {
    return new OnnxRuntime(new OrtApi());
  }

  private constructor(api: OrtApi) {
    const { call } = api;
    this.version = api.version;
    this.#env = api.pointer((out) => call.createEnv(logErrorsOnly, 'tributary', out), 'start');
    api.check(call.disableTelemetryEvents(this.#env), 'switch telemetry off');
    // OrtArenaAllocator 1, OrtMemTypeDefault 0: how tensors on our own addresses are described.
    const memoryInfo = api.pointer((out) => call.createCpuMemoryInfo(1, 0, out), 'describe memory');
    const allocator = api.pointer((out) => call.getAllocatorWithDefaultOptions(out), 'give its allocator');
    this.#shared = { api, memoryInfo, allocator };
  }

  /** Execution providers compiled in, by ONNX Runtime's names; whether one works shows `tryProvider`. */
  availableProviders(): string[] {
    if (this.#closed) throw closedError('ONNX runtime');
    const { api } = this.#shared;
    const count = new Int32Array(1);
    const list = api.pointer((out) => api.call.getAvailableProviders(out, count), 'list its providers');
    const names = koffi.decode(list, koffi.array('str', count[0]!)) as string[];
    api.check(api.call.releaseAvailableProviders(list, count[0]!), 'free the list of providers');
    return names;
  }

  /** Compiles a model (the bytes of an ONNX file, not needed afterwards). */
  createSession(model: Uint8Array, options: SessionOptions = {}): Session {
    if (this.#closed) throw closedError('ONNX runtime');
    const { api } = this.#shared;
    const native = createSessionOptions(api, options, this.availableProviders());
    // Native code cannot be handed a view of a SharedArrayBuffer.
    const bytes = model.buffer instanceof ArrayBuffer ? model : new Uint8Array(model);
    let session: Pointer;
    try {
      session = api.pointer(
        (out) => api.call.createSessionFromArray(this.#env, bytes, bytes.length, native, out),
        'create a session',
      );
    } finally {
      api.call.releaseSessionOptions(native);
    }
    const created = new Session(this.#shared, session, () => this.#sessions.delete(created));
    this.#sessions.add(created);
    return created;
  }

  /** Makes a small session there and ends it: a provider that is compiled in may still lack its libraries or a device. */
  tryProvider(provider: Provider): void {
    const x = new Graph().input('x', [N]);
    const { model } = lower({ outputs: [neg(x)], given: [], batch: 1 });
    this.createSession(encodeModel(model), { provider }).close();
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const session of [...this.#sessions]) session.close();
    this.#shared.api.call.releaseMemoryInfo(this.#shared.memoryInfo);
    this.#shared.api.call.releaseEnv(this.#env);
  }
}

export class Session {
  readonly inputs: readonly SessionValue[];
  readonly outputs: readonly SessionValue[];
  readonly #shared: Shared;
  readonly #session: Pointer;
  readonly #onClose: () => void;
  readonly #bindings = new Set<Binding>();
  #closed = false;

  /** Use `OnnxRuntime.createSession`. */
  constructor(shared: Shared, session: Pointer, onClose: () => void) {
    this.#shared = shared;
    this.#session = session;
    this.#onClose = onClose;
    this.inputs = readSessionValues(shared.api, session, shared.allocator, 'Input');
    this.outputs = readSessionValues(shared.api, session, shared.allocator, 'Output');
  }

  /** Ties every input, and the outputs that are wanted, to memory. The order of the specs is free. */
  bind(inputs: readonly NativeTensorSpec[], outputs: readonly NativeTensorSpec[]): Binding {
    if (this.#closed) throw closedError('session');
    const given = new Set(inputs.map((spec) => spec.name));
    const absent = this.inputs.filter((value) => !given.has(value.name)).map((value) => value.name);
    if (absent.length > 0) {
      throw new UsageError(
        'INVALID_ARGUMENT',
        `The model's inputs ${absent.map((name) => `"${name}"`).join(', ')} are not bound. Pass a tensor for each.`,
        { absent },
      );
    }
    const binding = new Binding(this.#shared, this.#session, this, inputs, outputs, () =>
      this.#bindings.delete(binding),
    );
    this.#bindings.add(binding);
    return binding;
  }

  /** Ends profiling (see `profilePathPrefix`) and gives the path of the file written. */
  endProfiling(): string {
    if (this.#closed) throw closedError('session');
    const { api, allocator } = this.#shared;
    const text = api.pointer(
      (out) => api.call.sessionEndProfiling(this.#session, allocator, out),
      'end profiling',
    );
    return takeString(api, allocator, text);
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const binding of [...this.#bindings]) binding.close();
    this.#shared.api.call.releaseSession(this.#session);
    this.#onClose();
  }
}
