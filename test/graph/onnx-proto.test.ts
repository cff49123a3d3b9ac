import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import { attribute, decodeModel, encodeModel } from '../../src/graph/onnx/proto.ts';
import type {
  OnnxAttribute,
  OnnxDType,
  OnnxModel,
  OnnxTensor,
  OnnxTensorData,
} from '../../src/graph/onnx/proto.ts';
import { writeModel } from '../../src/graph/onnx/model-proto.ts';
import type { WireAttribute, WireModel, WireTensor } from '../../src/graph/onnx/model-proto.ts';
import { component, PYTHON } from '../support/components.ts';

const text = fc.string({ unit: 'grapheme', maxLength: 8 });
const int = fc.maxSafeInteger();
const float = fc.float();
const shape = fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 3 });

const elements: Record<OnnxDType, (length: number) => fc.Arbitrary<OnnxTensorData>> = {
  float32: (n) => fc.float32Array({ minLength: n, maxLength: n }),
  float64: (n) => fc.float64Array({ minLength: n, maxLength: n }),
  int8: (n) => fc.int8Array({ minLength: n, maxLength: n }),
  uint8: (n) => fc.uint8Array({ minLength: n, maxLength: n }),
  int32: (n) => fc.int32Array({ minLength: n, maxLength: n }),
  int64: (n) => fc.bigInt64Array({ minLength: n, maxLength: n }),
  bool: (n) => fc.uint8Array({ minLength: n, maxLength: n, max: 1 }),
};
const dtype = fc.constantFrom(...(Object.keys(elements) as OnnxDType[]));
const tensor: fc.Arbitrary<OnnxTensor> = fc
  .record({ name: text, dtype, shape })
  .chain((t) => elements[t.dtype](t.shape.reduce((a, b) => a * b, 1)).map((data) => ({ ...t, data })));
const anyAttribute: fc.Arbitrary<OnnxAttribute> = fc.oneof(
  int.map(attribute.int),
  fc.array(int, { maxLength: 4 }).map(attribute.ints),
  float.map(attribute.float),
  fc.array(float, { maxLength: 4 }).map(attribute.floats),
  text.map(attribute.string),
  fc.array(text, { maxLength: 3 }).map(attribute.strings),
  tensor.map(attribute.tensor),
);
const name = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 8 });
const value = fc.record({
  name: text,
  dtype,
  shape: fc.option(fc.array(fc.oneof(fc.nat(), text), { maxLength: 4 }), { nil: undefined }),
});
const model: fc.Arbitrary<OnnxModel> = fc.record(
  {
    irVersion: fc.integer({ min: 1, max: 20 }),
    opsets: fc.array(fc.record({ domain: text, version: fc.nat() }), { minLength: 1, maxLength: 2 }),
    producer: text,
    graph: fc.record({
      name: text,
      nodes: fc.array(
        fc.record(
          {
            name: text,
            opType: name,
            domain: name,
            inputs: fc.array(text, { maxLength: 3 }),
            outputs: fc.array(text, { maxLength: 2 }),
            attributes: fc.dictionary(name, anyAttribute, { maxKeys: 4, noNullPrototype: false }),
          },
          { requiredKeys: ['name', 'opType', 'inputs', 'outputs', 'attributes'] },
        ),
        { maxLength: 4 },
      ),
      inputs: fc.array(value, { maxLength: 3 }),
      outputs: fc.array(value, { maxLength: 3 }),
      initializers: fc.array(tensor, { maxLength: 3 }),
    }),
    metadata: fc.dictionary(text, text, { minKeys: 1, maxKeys: 3 }),
  },
  { requiredKeys: ['irVersion', 'opsets', 'graph'] },
);

/** y = Relu(x @ w + b). */
const dense: OnnxModel = {
  irVersion: 8,
  opsets: [{ domain: '', version: 17 }],
  producer: 'tributary',
  metadata: { epoch: '3' },
  graph: {
    name: 'dense',
    nodes: [
      {
        name: 'gemm',
        opType: 'Gemm',
        inputs: ['x', 'w', 'b'],
        outputs: ['h'],
        attributes: { alpha: attribute.float(1), transB: attribute.int(0) },
      },
      { name: 'relu', opType: 'Relu', inputs: ['h'], outputs: ['y'], attributes: {} },
    ],
    inputs: [{ name: 'x', dtype: 'float32', shape: ['rows', 2] }],
    outputs: [{ name: 'y', dtype: 'float32', shape: ['rows', 3] }],
    initializers: [
      { name: 'w', dtype: 'float32', shape: [2, 3], data: new Float32Array([1, 2, 3, 4, 5, 6]) },
      { name: 'b', dtype: 'float32', shape: [3], data: new Float32Array([-1, 0, 1]) },
    ],
  },
};

function errorOf(action: () => unknown): UsageError {
  try {
    action();
  } catch (error) {
    expect(error).toBeInstanceOf(UsageError);
    return error as UsageError;
  }
  throw new Error('nothing was thrown');
}

function withInitializer(initializer: WireTensor): Uint8Array {
  return wire({ initializer: [initializer] });
}
function withAttribute(wireAttribute: WireAttribute): Uint8Array {
  return wire({ node: [{ name: 'loop', opType: 'If', attribute: [wireAttribute] }] });
}
function wire(graph: WireModel['graph'], rest: WireModel = {}): Uint8Array {
  return writeModel({ irVersion: 8, opsetImport: [{ version: 17 }], graph, ...rest });
}

describe('encodeModel and decodeModel', () => {
  test('decoding what was encoded gives the same model', () => {
    fc.assert(
      fc.property(model, (m) => {
        expect(decodeModel(encodeModel(m))).toEqual(m);
      }),
    );
  });

  test('random bytes give a model or INVALID_MODEL_FILE / UNSUPPORTED_OPERATOR that names the source', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        const error = errorOf(() => decodeModel(bytes, 'noise.onnx'));
        expect(['INVALID_MODEL_FILE', 'UNSUPPORTED_OPERATOR']).toContain(error.code);
        expect(error.message).toContain('noise.onnx');
      }),
      { numRuns: 500 },
    );
  });

  test('a model with flipped bytes or a cut end never fails with anything but our error', () => {
    const whole = encodeModel(dense);
    fc.assert(
      fc.property(
        fc.nat(whole.length - 1),
        fc.nat(255),
        fc.integer({ min: 0, max: whole.length }),
        (at, byte, length) => {
          const bytes = whole.slice(0, length);
          if (at < length) bytes[at] = byte;
          try {
            decodeModel(bytes, 'broken.onnx');
          } catch (error) {
            expect(error).toBeInstanceOf(UsageError);
            expect((error as UsageError).message).toContain('broken.onnx');
          }
        },
      ),
      { numRuns: 1000 },
    );
  });

  test('a truncated file is refused with its name and length', () => {
    const error = errorOf(() => decodeModel(encodeModel(dense).slice(0, 100), 'cut.onnx'));
    expect(error.code).toBe('INVALID_MODEL_FILE');
    expect(error.message).toContain('cut.onnx (100 bytes)');
  });

  test('an empty file is refused', () => {
    expect(errorOf(() => decodeModel(new Uint8Array(0), 'empty.onnx')).message).toContain('has no graph');
  });

  test('attribute and metadata names of a hostile file cannot reach a prototype', () => {
    const bytes = wire(
      { node: [{ opType: 'Relu', attribute: [{ name: '__proto__', type: 2, i: 7 }] }] },
      { metadataProps: [{ key: '__proto__', value: 'x' }] },
    );
    const decoded = decodeModel(bytes);
    expect(Object.keys(decoded.graph.nodes[0]!.attributes)).toEqual(['__proto__']);
    expect(Object.keys(decoded.metadata!)).toEqual(['__proto__']);
  });

  test('data on a SharedArrayBuffer is written', () => {
    const data = new Float32Array(new SharedArrayBuffer(8));
    data.set([1.5, -2]);
    const shared: OnnxModel = {
      ...dense,
      graph: { ...dense.graph, initializers: [{ name: 'w', dtype: 'float32', shape: [2], data }] },
    };
    const { initializers } = decodeModel(encodeModel(shared)).graph;
    expect(initializers[0]!.data).toEqual(new Float32Array([1.5, -2]));
  });

  test('encoding refuses a tensor whose data does not fit its shape or type', () => {
    const bad = (t: OnnxTensor): OnnxModel => ({ ...dense, graph: { ...dense.graph, initializers: [t] } });
    const short = bad({ name: 'w', dtype: 'float32', shape: [3], data: new Float32Array(2) });
    const wrong = bad({ name: 'w', dtype: 'int64', shape: [2], data: new Float32Array(2) });
    expect(errorOf(() => encodeModel(short)).message).toContain('"w"');
    expect(errorOf(() => encodeModel(wrong)).message).toContain('BigInt64Array');
  });
});

describe('tensor data of other writers', () => {
  test.each<[string, WireTensor, OnnxTensorData]>([
    ['float_data', { dataType: 1, dims: [2], floatData: [1.5, -2] }, new Float32Array([1.5, -2])],
    ['double_data', { dataType: 11, dims: [1], doubleData: [1e300] }, new Float64Array([1e300])],
    ['int32_data', { dataType: 6, dims: [2], int32Data: [-7, 2] }, new Int32Array([-7, 2])],
    ['int32_data as int8', { dataType: 3, dims: [1], int32Data: [-7] }, new Int8Array([-7])],
    ['int32_data as bool', { dataType: 9, dims: [2], int32Data: [1, 0] }, new Uint8Array([1, 0])],
    ['int64_data', { dataType: 7, dims: [1], int64Data: [-5] }, new BigInt64Array([-5n])],
    ['no data and no elements', { dataType: 1, dims: [0, 4] }, new Float32Array(0)],
  ])('%s is read', (_, tensorWire, expected) => {
    const bytes = withInitializer({ name: 'w', ...tensorWire });
    expect(decodeModel(bytes).graph.initializers[0]!.data).toEqual(expected);
  });

  test.each<[string, WireTensor, string, string]>([
    [
      'too few raw bytes',
      { dataType: 1, dims: [2], rawData: new Uint8Array(4) },
      'INVALID_MODEL_FILE',
      '4 bytes',
    ],
    ['too few elements', { dataType: 1, dims: [2], floatData: [1] }, 'INVALID_MODEL_FILE', '1 elements'],
    ['a huge shape', { dataType: 1, dims: [2 ** 52, 2 ** 52] }, 'INVALID_MODEL_FILE', '0 elements'],
    ['a negative shape', { dataType: 1, dims: [-1] }, 'INVALID_MODEL_FILE', '[-1]'],
    ['no type', { dims: [] }, 'INVALID_MODEL_FILE', 'no element type'],
    ['a bool of 2', { dataType: 9, dims: [1], int32Data: [2] }, 'INVALID_MODEL_FILE', 'other than 0 and 1'],
    ['a uint8 of 300', { dataType: 2, dims: [1], int32Data: [300] }, 'INVALID_MODEL_FILE', '300'],
    ['external data', { dataType: 1, dims: [1], dataLocation: 1 }, 'UNSUPPORTED_OPERATOR', 'external_data'],
    ['float16', { dataType: 10, dims: [0] }, 'UNSUPPORTED_OPERATOR', 'float16'],
  ])('%s is refused by name', (_, tensorWire, code, problem) => {
    const error = errorOf(() => decodeModel(withInitializer({ name: 'weight', ...tensorWire }), 'm.onnx'));
    expect(error.code).toBe(code);
    expect(error.message).toContain('m.onnx: initializer "weight"');
    expect(error.message).toContain(problem);
  });
});

describe('what is outside the supported form is refused by name', () => {
  test.each<[string, WireAttribute]>([
    ['a subgraph', { name: 'body', type: 5, g: new Uint8Array(0) }],
    ['subgraphs', { name: 'body', type: 10, graphs: [new Uint8Array(0)] }],
    ['a sparse tensor', { name: 'body', type: 11, sparseTensor: new Uint8Array(0) }],
    ['a type', { name: 'body', type: 13, tp: new Uint8Array(0) }],
    ['attribute type number 99', { name: 'body', type: 99 }],
  ])('an attribute that is %s', (what, wireAttribute) => {
    const error = errorOf(() => decodeModel(withAttribute(wireAttribute)));
    expect(error.code).toBe('UNSUPPORTED_OPERATOR');
    expect(error.message).toContain('node 0 "loop" ("If"), attribute "body"');
    expect(error.message).toContain(what);
  });

  test('an integer attribute that a number cannot hold', () => {
    const max = { low: -1, high: 0x7fffffff };
    const error = errorOf(() => decodeModel(withAttribute({ name: 'ends', type: 2, i: max })));
    expect(error.message).toContain('9223372036854775807');
  });

  test('a sequence as input, sparse initializers, and functions', () => {
    const sequence = wire({ input: [{ name: 's', type: { sequenceType: new Uint8Array(0) } }] });
    expect(errorOf(() => decodeModel(sequence)).message).toContain('input "s" is a sequence');
    const sparse = wire({ name: 'main', sparseInitializer: [new Uint8Array(0)] });
    expect(errorOf(() => decodeModel(sparse)).message).toContain('graph "main" has sparse initializers');
    const functions = wire({}, { functions: [new Uint8Array(0)] });
    expect(errorOf(() => decodeModel(functions)).message).toContain('functions');
  });
});

const pythonOnnx = component('python3-onnx');

describe.skipIf(!pythonOnnx.present)(`against the onnx package of Python (${pythonOnnx.needs})`, () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(path.join(tmpdir(), 'tributary-onnx-'));
  });
  afterAll(() => {
    rmSync(folder, { recursive: true });
  });
  const run = (script: string, file: string): string =>
    execFileSync(PYTHON, ['-c', script, file], { encoding: 'utf8', timeout: 60_000 });

  test('a model written here passes its checker and holds the same numbers', () => {
    const file = path.join(folder, 'ours.onnx');
    const nodes = [...dense.graph.nodes];
    nodes.push({
      name: 'c',
      opType: 'Constant',
      inputs: [],
      outputs: ['unused'],
      attributes: {
        value: attribute.tensor({ name: '', dtype: 'int64', shape: [], data: new BigInt64Array([-3n]) }),
      },
    });
    writeFileSync(file, encodeModel({ ...dense, graph: { ...dense.graph, nodes } }));
    const script = `import onnx, sys, json
from onnx import numpy_helper as h
m = onnx.load(sys.argv[1]); onnx.checker.check_model(m)
g = m.graph
print(json.dumps([h.to_array(g.initializer[0]).tolist(), [(d.dim_param, d.dim_value) for d in g.input[0].type.tensor_type.shape.dim],
  {a.name: onnx.helper.get_attribute_value(a) for a in g.node[0].attribute}, int(h.to_array(g.node[2].attribute[0].t))]))`;
    expect(JSON.parse(run(script, file))).toEqual([
      [
        [1, 2, 3],
        [4, 5, 6],
      ],
      [
        ['rows', 0],
        ['', 2],
      ],
      { alpha: 1, transB: 0 },
      -3,
    ]);
  });

  test('a model written there is read, with raw and typed data', () => {
    const file = path.join(folder, 'theirs.onnx');
    run(
      `import onnx, sys, numpy as np
from onnx import helper as h, numpy_helper, TensorProto as T
n = h.make_node('Conv', ['x', 'w'], ['y'], name='conv', pads=[0, 1, 2, 3], auto_pad='NOTSET', group=1)
e = h.make_node('Elu', ['y'], ['z'], alpha=0.5)
w = numpy_helper.from_array(np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), 'w')
i = h.make_tensor('i', T.INT64, [2], [2**40, -1])
g = h.make_graph([n, e], 'g', [h.make_tensor_value_info('x', T.FLOAT, ['n', 1, None, 4])], [h.make_tensor_value_info('z', T.FLOAT, None)], [w, i])
m = h.make_model(g, producer_name='python', opset_imports=[h.make_opsetid('', 16)])
m.doc_string = 'ignored'
open(sys.argv[1], 'wb').write(m.SerializeToString())`,
      file,
    );
    const m = decodeModel(readFileSync(file), file);
    expect(m.producer).toBe('python');
    expect(m.opsets).toEqual([{ domain: '', version: 16 }]);
    expect(m.graph.nodes[0]).toEqual({
      name: 'conv',
      opType: 'Conv',
      inputs: ['x', 'w'],
      outputs: ['y'],
      attributes: {
        pads: attribute.ints([0, 1, 2, 3]),
        auto_pad: attribute.string('NOTSET'),
        group: attribute.int(1),
      },
    });
    expect(m.graph.nodes[1]!.attributes).toEqual({ alpha: attribute.float(0.5) });
    expect(m.graph.inputs).toEqual([{ name: 'x', dtype: 'float32', shape: ['n', 1, '', 4] }]);
    expect(m.graph.outputs).toEqual([{ name: 'z', dtype: 'float32', shape: undefined }]);
    expect(m.graph.initializers).toEqual([
      {
        name: 'w',
        dtype: 'float32',
        shape: [1, 1, 3, 3],
        data: new Float32Array([0, 1, 2, 3, 4, 5, 6, 7, 8]),
      },
      { name: 'i', dtype: 'int64', shape: [2], data: new BigInt64Array([2n ** 40n, -1n]) },
    ]);
  });
});
