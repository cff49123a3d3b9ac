import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import fc from 'fast-check';
import koffi from 'koffi';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { InternalError, UsageError } from '../../src/base/index.ts';
import type { TributaryError } from '../../src/base/index.ts';
import { OnnxRuntime } from '../../src/compute/onnxruntime/index.ts';
import type { NativeTensorSpec, Session } from '../../src/compute/onnxruntime/index.ts';
import { encodeModel } from '../../src/graph/onnx/proto.ts';
import type { OnnxNode, OnnxValue } from '../../src/graph/onnx/proto.ts';
import { webAssembly } from '../../src/memory/index.ts';

function modelOf(nodes: OnnxNode[], inputs: OnnxValue[], outputs: OnnxValue[]): Uint8Array {
  return encodeModel({
    irVersion: 8,
    opsets: [{ domain: '', version: 17 }],
    graph: { name: 'test', nodes, inputs, outputs, initializers: [] },
  });
}

function node(opType: string, inputs: string[], outputs: string[]): OnnxNode {
  return { name: opType.toLowerCase(), opType, inputs, outputs, attributes: {} };
}

const float = (name: string, shape: (number | string)[]): OnnxValue => ({ name, dtype: 'float32', shape });

/** y = Relu(x @ w + b), any number of rows. */
const dense = modelOf(
  [node('MatMul', ['x', 'w'], ['xw']), node('Add', ['xw', 'b'], ['h']), node('Relu', ['h'], ['y'])],
  [float('x', ['rows', 2]), float('w', [2, 3]), float('b', [3])],
  [float('y', ['rows', 3])],
);

/** A shared WebAssembly memory, cut into float tensors in turn. */
class Arena {
  readonly #memory = new webAssembly.Memory({ initial: 1, maximum: 1, shared: true });
  readonly #base = koffi.address(new Uint8Array(this.#memory.buffer));
  #offset = 0;

  float(name: string, shape: number[]): { spec: NativeTensorSpec; data: Float32Array } {
    const length = shape.reduce((a, b) => a * b, 1);
    const data = new Float32Array(this.#memory.buffer, this.#offset, length);
    const address = this.#base + BigInt(this.#offset);
    this.#offset += Math.max(64, Math.ceil((4 * length) / 64) * 64);
    return { spec: { name, dtype: 'float32', shape, address, byteLength: 4 * length }, data };
  }
}

function errorOf<T extends TributaryError>(type: new (...args: never[]) => T, action: () => unknown): T {
  try {
    action();
  } catch (error) {
    expect(error).toBeInstanceOf(type);
    return error as T;
  }
  throw new Error('nothing was thrown');
}

function reference(x: Float32Array, w: Float32Array, b: Float32Array): number[] {
  return Array.from({ length: (x.length / 2) * 3 }, (_, i) => {
    const row = 2 * Math.floor(i / 3);
    const column = i % 3;
    return Math.max(0, x[row]! * w[column]! + x[row + 1]! * w[3 + column]! + b[column]!);
  });
}

describe('a session on memory addresses', () => {
  let runtime: OnnxRuntime;
  let session: Session;
  beforeAll(() => {
    runtime = OnnxRuntime.load();
    session = runtime.createSession(dense);
  });
  afterAll(() => {
    runtime.close();
  });

  function bindDense(rows: number) {
    const arena = new Arena();
    const x = arena.float('x', [rows, 2]);
    const w = arena.float('w', [2, 3]);
    const b = arena.float('b', [3]);
    const y = arena.float('y', [rows, 3]);
    w.data.set([1, 2, 3, 4, 5, 6]);
    b.data.set([0, -10, 10]);
    const binding = session.bind([b.spec, x.spec, w.spec], [y.spec]);
    return { arena, x: x.data, w: w.data, b: b.data, y: y.data, binding };
  }

  test('tells its version, providers, inputs and outputs', () => {
    expect(runtime.version).toMatch(/^\d+\.\d+\.\d+/);
    expect(runtime.availableProviders()).toContain('CPUExecutionProvider');
    expect(session.inputs).toEqual([
      { name: 'x', dtype: 'float32', shape: [-1, 2] },
      { name: 'w', dtype: 'float32', shape: [2, 3] },
      { name: 'b', dtype: 'float32', shape: [3] },
    ]);
    expect(session.outputs).toEqual([{ name: 'y', dtype: 'float32', shape: [-1, 3] }]);
  });

  test('reads inputs and writes outputs in place, run after run', () => {
    const { x, y, w, b, binding } = bindDense(4);
    const numbers = fc.float32Array({ minLength: 8, maxLength: 8, noNaN: true, min: -100, max: 100 });
    fc.assert(
      fc.property(numbers, numbers, (rows, weights) => {
        x.set(rows);
        w.set(weights.subarray(0, 6));
        y.fill(NaN);
        binding.run();
        reference(x, w, b).forEach((expected, i) => expect(y[i]).toBeCloseTo(expected, 1));
      }),
    );
    binding.close();
  });

  test('writes nothing beside the output', () => {
    const { arena, y, binding } = bindDense(1);
    const after = arena.float('guard', [4]).data.fill(7);
    y.fill(-1);
    binding.run();
    expect([...y]).toEqual([0, 0, 10]);
    expect([...after]).toEqual([7, 7, 7, 7]);
    binding.close();
  });

  test('a binding outlives garbage collection of what it was made from', () => {
    const { x, y, binding } = bindDense(1);
    x.set([1, 1]);
    for (let i = 0; i < 200; i++) {
      new ArrayBuffer(1 << 20);
      binding.run();
    }
    expect([...y]).toEqual([5, 0, 19]);
    binding.close();
  });

  test('takes other rows and other memory by rebinding, also zero rows', () => {
    const { arena, x, y, binding } = bindDense(1);
    x.set([1, 0]);
    binding.run();
    expect([...y]).toEqual([1, 0, 13]);
    const x2 = arena.float('x', [2, 2]);
    const y2 = arena.float('y', [2, 3]);
    x2.data.set([0, 1, 2, 0]);
    binding.rebindInput('x', x2.spec);
    binding.rebindOutput('y', y2.spec);
    binding.run();
    expect([...y2.data]).toEqual([4, 0, 16, 2, 0, 16]);
    expect([...y]).toEqual([1, 0, 13]);
    binding.rebindInput('x', arena.float('x', [0, 2]).spec);
    binding.rebindOutput('y', arena.float('y', [0, 3]).spec);
    binding.run();
    binding.close();
  });

  test('an output of another row count than the input is an error of the runtime', () => {
    const { arena, binding } = bindDense(2);
    binding.rebindOutput('y', arena.float('y', [3, 3]).spec);
    const error = errorOf(InternalError, () => binding.run());
    expect(error.code).toBe('RUNTIME_FAILURE');
    expect(error.message).toContain('failed to run a session');
    binding.close();
  });

  test('other types: int64 indices and bool results', () => {
    const gather = runtime.createSession(
      modelOf(
        [node('Gather', ['table', 'ids'], ['rows']), node('Greater', ['rows', 'limit'], ['big'])],
        [float('table', [3]), { name: 'ids', dtype: 'int64', shape: [2] }, float('limit', [])],
        [{ name: 'big', dtype: 'bool', shape: [2] }],
      ),
    );
    const arena = new Arena();
    const table = arena.float('table', [3]);
    const limit = arena.float('limit', []);
    table.data.set([1, 5, 9]);
    limit.data.set([4]);
    const ids = new BigInt64Array(new ArrayBuffer(16));
    const big = new Uint8Array(new ArrayBuffer(16));
    ids.set([2n, 0n]);
    const binding = gather.bind(
      [
        table.spec,
        { name: 'ids', dtype: 'int64', shape: [2], address: koffi.address(ids), byteLength: 16 },
        limit.spec,
      ],
      [{ name: 'big', dtype: 'bool', shape: [2], address: koffi.address(big), byteLength: 2 }],
    );
    binding.run();
    expect([...big.subarray(0, 2)]).toEqual([1, 0]);
    gather.close();
  });

  describe('refuses, before it runs,', () => {
    const arena = new Arena();
    const specs = () => ({
      x: arena.float('x', [1, 2]).spec,
      w: arena.float('w', [2, 3]).spec,
      b: arena.float('b', [3]).spec,
      y: arena.float('y', [1, 3]).spec,
    });

    test.each<[string, Partial<NativeTensorSpec>, string]>([
      ['a wrong dimension', { shape: [3, 2] }, '[2, 3]'],
      ['a wrong rank', { shape: [6] }, '[2, 3]'],
      ['a wrong type', { dtype: 'int32' }, 'float32'],
      ['too little memory', { byteLength: 20 }, '24 bytes'],
      ['no address', { address: 0n }, 'address'],
    ])('%s, with SHAPE_MISMATCH naming the tensor', (_, change, expected) => {
      const { x, w, b, y } = specs();
      const error = errorOf(UsageError, () => session.bind([x, { ...w, ...change }, b], [y]));
      expect(error.code).toBe('SHAPE_MISMATCH');
      expect(error.message).toContain('input "w"');
      expect(error.message).toContain(expected);
    });

    test('inputs that are missing, unknown or given twice', () => {
      const { x, w, b, y } = specs();
      expect(errorOf(UsageError, () => session.bind([x], [y])).message).toContain('"w", "b"');
      const other = { ...x, name: 'z' };
      expect(errorOf(UsageError, () => session.bind([x, w, b, other], [y])).message).toContain('input "z"');
      expect(errorOf(UsageError, () => session.bind([x, w, b, b], [y])).message).toContain('twice');
      expect(errorOf(UsageError, () => session.bind([x, w, b], [other])).message).toContain('output "z"');
    });

    test('a rebind under another name', () => {
      const { x, w, b, y } = specs();
      const binding = session.bind([x, w, b], [y]);
      expect(errorOf(UsageError, () => binding.rebindInput('v', { ...x, name: 'v' })).message).toContain(
        '"v"',
      );
      expect(errorOf(UsageError, () => binding.rebindInput('x', w)).message).toContain('"w"');
      binding.run();
      binding.close();
    });
  });
});

describe('errors and lifetimes', () => {
  const oneNode = (opType: string) =>
    modelOf([node(opType, ['x'], ['y'])], [float('x', [1])], [float('y', [1])]);

  test('a model the runtime refuses gives its own words in the error', () => {
    const runtime = OnnxRuntime.load();
    const error = errorOf(InternalError, () => runtime.createSession(oneNode('Rulu')));
    expect(error.code).toBe('RUNTIME_FAILURE');
    expect(error.message).toContain('No Op registered for Rulu');
    expect(errorOf(InternalError, () => runtime.createSession(new Uint8Array([1, 2, 3]))).message).toContain(
      'create a session',
    );
    runtime.close();
  });

  test('options out of range are refused', () => {
    const runtime = OnnxRuntime.load();
    const error = errorOf(UsageError, () => runtime.createSession(oneNode('Relu'), { threads: 0 }));
    expect(error.message).toContain('threads is 0');
    runtime.close();
  });

  test('a provider without its libraries is a MISSING_COMPONENT that says what to install', (context) => {
    const runtime = OnnxRuntime.load();
    try {
      runtime.createSession(oneNode('Relu'), { provider: 'cuda' });
      context.skip('CUDA is installed here');
    } catch (error) {
      if (!(error instanceof UsageError)) throw error;
      expect(error.code).toBe('MISSING_COMPONENT');
      expect(error.message).toMatch(/"cuda" is not available.*install CUDA 12/);
      const [, script] = /then "node node_modules\/(\S+)"/.exec(error.message)!;
      const required = createRequire(import.meta.url);
      expect(required.resolve(script!)).toMatch(/install\.js$/);
      const { requirements } = required(path.join(path.dirname(script!), 'install-metadata.js')) as {
        requirements: Record<string, string[]>;
      };
      expect(requirements['linux/x64']).toEqual(['cuda12']);
    } finally {
      runtime.close();
    }
  });

  test('two threads and every optimization level give the same result', () => {
    const runtime = OnnxRuntime.load();
    for (const optimization of ['none', 'basic', 'extended', 'all'] as const) {
      const session = runtime.createSession(dense, { threads: 2, optimization });
      const arena = new Arena();
      const tensors = { x: [1, 2], w: [2, 3], b: [3], y: [1, 3] };
      const [x, w, b, y] = Object.entries(tensors).map(([name, shape]) => arena.float(name, shape));
      x!.data.fill(1);
      w!.data.fill(2);
      session.bind([x!.spec, w!.spec, b!.spec], [y!.spec]).run();
      expect([...y!.data]).toEqual([4, 4, 4]);
    }
    runtime.close();
  });

  test('a profile is written where asked', () => {
    const folder = mkdtempSync(path.join(tmpdir(), 'tributary-profile-'));
    const runtime = OnnxRuntime.load();
    const session = runtime.createSession(oneNode('Relu'), { profilePathPrefix: path.join(folder, 'run') });
    const arena = new Arena();
    session.bind([arena.float('x', [1]).spec], [arena.float('y', [1]).spec]).run();
    const file = session.endProfiling();
    expect(path.dirname(file)).toBe(folder);
    expect(JSON.parse(readFileSync(file, 'utf8'))).toBeInstanceOf(Array);
    runtime.close();
    rmSync(folder, { recursive: true });
  });

  test('closing a runtime closes all below it; closing twice is harmless; use after close is an error', () => {
    const runtime = OnnxRuntime.load();
    const session = runtime.createSession(oneNode('Relu'));
    const arena = new Arena();
    const x = arena.float('x', [1]).spec;
    const y = arena.float('y', [1]).spec;
    const closedAlone = session.bind([x], [y]);
    closedAlone.close();
    const binding = session.bind([x], [y]);
    runtime.close();
    for (const closable of [binding, session, runtime, closedAlone]) closable.close();
    const uses = [
      () => binding.run(),
      () => binding.rebindInput('x', x),
      () => closedAlone.run(),
      () => session.bind([x], [y]),
      () => runtime.createSession(oneNode('Relu')),
      () => runtime.availableProviders(),
    ];
    for (const use of uses) expect(errorOf(UsageError, use).message).toContain('is closed');
  });

  test('another runtime keeps working when one is closed', () => {
    const first = OnnxRuntime.load();
    const second = OnnxRuntime.load();
    first.close();
    second.createSession(oneNode('Relu')).close();
    second.close();
  });
});
