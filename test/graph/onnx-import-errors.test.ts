/** Whatever a model file holds, importing it gives a model or an error that names the place and the next step. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { UsageError } from '../../src/base/index.ts';
import {
  decodeModel,
  exportOnnx,
  importOnnx,
  N,
  printShape,
  type ImportOptions,
} from '../../src/graph/index.ts';
import {
  attribute,
  encodeModel,
  type OnnxGraph,
  type OnnxNode,
  type OnnxTensor,
} from '../../src/graph/onnx/proto.ts';
import { initialValues } from '../support/onnx.ts';
import { sampleModels } from './sample-models.ts';

function node(opType: string, inputs: string, outputs: string, extra: Partial<OnnxNode> = {}): OnnxNode {
  const list = (names: string) => names.split(' ').map((name) => (name === '_' ? '' : name));
  return {
    name: `the_${opType}`,
    opType,
    inputs: inputs === '' ? [] : list(inputs),
    outputs: list(outputs),
    attributes: {},
    ...extra,
  };
}

const floats = (name: string, ...shape: number[]): OnnxTensor => ({
  name,
  dtype: 'float32',
  shape,
  data: new Float32Array(shape.reduce((a, b) => a * b, 1)).fill(0.5),
});
const ints = (name: string, values: number[]): OnnxTensor => ({
  name,
  dtype: 'int64',
  shape: [values.length],
  data: BigInt64Array.from(values, BigInt),
});

function load(graph: Partial<OnnxGraph>, options: ImportOptions & { opset?: number } = {}) {
  const bytes = encodeModel({
    irVersion: 8,
    opsets: [{ domain: '', version: options.opset ?? 17 }],
    graph: {
      name: 'g',
      nodes: [],
      inputs: [{ name: 'x', dtype: 'float32', shape: ['N', 4] }],
      outputs: [{ name: 'y', dtype: 'float32', shape: undefined }],
      initializers: [],
      ...graph,
    },
  });
  return importOnnx(bytes, { source: 'bad.onnx', ...options });
}

function problem(
  graph: Partial<OnnxGraph>,
  options: ImportOptions & { opset?: number } = {},
): { code: string; message: string } {
  try {
    load(graph, options);
  } catch (error) {
    expect(error).toBeInstanceOf(UsageError);
    return { code: (error as UsageError).code, message: (error as UsageError).message };
  }
  throw new Error('the model was accepted');
}

describe('what is outside the catalogue', () => {
  it('an operator is named with its node, domain and what is supported', () => {
    const { code, message } = problem({ nodes: [node('FancyOp', 'x', 'y', { domain: 'com.example' })] });
    expect(code).toBe('UNSUPPORTED_OPERATOR');
    expect(message).toMatch(
      /^bad\.onnx: node 0 "the_FancyOp" \(FancyOp, domain "com\.example"\) is not among the \d+ supported/,
    );
    expect(problem({ nodes: [node('constructor', 'x', 'y')] }).code).toBe('UNSUPPORTED_OPERATOR');
  });

  it('an attribute or setting is named', () => {
    const refuse = (n: OnnxNode, initializers: OnnxTensor[] = []) =>
      problem({ nodes: [n], initializers }).message;
    expect(refuse(node('Relu', 'x', 'y', { attributes: { magic: attribute.int(1) } }))).toMatch(
      /attribute "magic"/,
    );
    expect(refuse(node('Softmax', 'x', 'y', { attributes: { axis: attribute.float(1) } }))).toMatch(
      /axis of type float, expected int/,
    );
    expect(
      refuse(node('Pad', 'x p', 'y', { attributes: { mode: attribute.string('reflect') } }), [
        ints('p', [0, 1, 0, 1]),
      ]),
    ).toMatch(/mode = "reflect"/);
    expect(refuse(node('Cast', 'x', 'y', { attributes: { to: attribute.int(10) } }))).toMatch(
      /casts to type number 10/,
    );
    expect(
      refuse(node('Slice', 'x s e a t', 'y'), [
        ints('s', [-1]),
        ints('e', [-9]),
        ints('a', [1]),
        ints('t', [-1]),
      ]),
    ).toMatch(/step -1/);
    expect(refuse(node('Slice', 'x s e', 'y'), [ints('s', [1]), ints('e', [2])])).toMatch(
      /cuts the batch axis/,
    );
    expect(refuse(node('Reshape', 'x s', 'y'), [floats('s', 2)])).toMatch(
      /takes its shape from a value that is computed/,
    );
  });

  it('recurrent settings are refused by name', () => {
    const cell = (opType: string, attributes: OnnxNode['attributes']) => ({
      nodes: [node(opType, 'x w r', 'y', { attributes: { hidden_size: attribute.int(2), ...attributes } })],
      inputs: [{ name: 'x', dtype: 'float32' as const, shape: [3, 'N', 4] }],
      initializers: [
        floats('w', 1, opType === 'LSTM' ? 8 : 6, 4),
        floats('r', 1, opType === 'LSTM' ? 8 : 6, 2),
      ],
    });
    expect(printShape(load(cell('LSTM', {})).outputs.y!.shape)).toBe('[3, 1, N, 2]');
    expect(problem(cell('LSTM', { direction: attribute.string('bidirectional') })).message).toMatch(
      /direction = "bidirectional"/,
    );
    expect(problem(cell('LSTM', { clip: attribute.float(1) })).message).toMatch(/clip/);
    expect(
      problem(cell('LSTM', { activations: attribute.strings(['Relu', 'Tanh', 'Tanh']) })).message,
    ).toMatch(/activations relu/);
    expect(problem(cell('LSTM', { hidden_size: attribute.int(3) })).message).toMatch(
      /input 1 of \[1, 8, 4\], expected \[1, 12, 4\]/,
    );
    expect(problem(cell('GRU', {})).message).toMatch(/linear_before_reset = 0/);
  });

  it('element types and old operator sets are named with what to do', () => {
    const wide: OnnxTensor = { name: 'w', dtype: 'float64', shape: [4], data: new Float64Array(4) };
    expect(problem({ nodes: [node('Add', 'x w', 'y')], initializers: [wide] }).message).toMatch(
      /"w" has the element type float64; convert/,
    );
    expect(
      problem({ inputs: [{ name: 'x', dtype: 'uint8', shape: ['N'] }], nodes: [node('Relu', 'x', 'y')] })
        .message,
    ).toMatch(/uint8/);
    expect(problem({ nodes: [node('Relu', 'x', 'y')] }, { opset: 11 }).message).toMatch(
      /operator set 11.*13 and newer.*opset_version=17/,
    );
  });

  it('an output that is not made is named where it is read', () => {
    const nodes = [node('Dropout', 'x', 'd mask'), node('Not', 'mask', 'y')];
    expect(problem({ nodes }).message).toMatch(/\(Not\) reads "mask".*not supported/);
  });
});

describe('broken graphs', () => {
  it('unknown names, cycles, duplicates and missing inputs are told apart', () => {
    expect(problem({ nodes: [node('Relu', 'nowhere', 'y')] }).message).toMatch(
      /reads "nowhere", which nothing defines/,
    );
    expect(problem({ nodes: [node('Add', 'x z', 'y'), node('Relu', 'y', 'z')] }).message).toMatch(
      /out of order or in a cycle/,
    );
    expect(problem({ nodes: [node('Relu', 'y', 'y')] }).message).toMatch(/in a cycle/);
    expect(problem({ nodes: [node('Relu', 'x', 'y'), node('Tanh', 'x', 'y')] }).message).toMatch(
      /"y" is defined twice/,
    );
    expect(problem({ nodes: [node('Relu', 'x', 'x')] }).message).toMatch(/"x" is defined twice/);
    expect(problem({ nodes: [node('Add', 'x', 'y')] }).message).toMatch(/\(Add\) has no input 1/);
    expect(problem({ nodes: [node('Relu', '', 'y')] }).message).toMatch(/has no input 0/);
    expect(
      problem({ nodes: [node('Concat', '', 'y', { attributes: { axis: attribute.int(0) } })] }).message,
    ).toMatch(/no inputs/);
    expect(problem({}).message).toMatch(/output "y" reads "y", which nothing defines/);
    expect(problem({ outputs: [] }).message).toMatch(/no outputs/);
    expect(problem({ initializers: [floats('w', 1), floats('w', 1)] }).message).toMatch(
      /"w" has no name or one that is taken/,
    );
  });

  it('shapes that do not fit name the node and the shapes', () => {
    const { code, message } = problem({
      nodes: [node('MatMul', 'x w', 'y')],
      initializers: [floats('w', 3, 2)],
    });
    expect(code).toBe('SHAPE_MISMATCH');
    expect(message).toMatch(/^bad\.onnx: node 0 "the_MatMul" \(MatMul\): matmul: .*\[N, 4\].*\[3, 2\]/);
    expect(
      problem({ nodes: [node('Reshape', 'x s', 'y')], initializers: [ints('s', [-1, 3])] }).message,
    ).toMatch(/reshape/);
    expect(
      problem({ nodes: [node('Transpose', 'x', 'y', { attributes: { perm: attribute.ints([0, 0]) } })] })
        .message,
    ).toMatch(/permutes \[0, 0\]/);
    expect(
      problem({ nodes: [node('Gather', 'w i', 'y')], initializers: [floats('w', 3, 2), ints('i', [3])] })
        .message,
    ).toMatch(/index 3 of an axis of length 3/);
    expect(
      problem({ nodes: [node('Conv', 'x w', 'y')], initializers: [floats('w', 1, 1, 1, 1)] }).message,
    ).toMatch(/rank 2/);
  });

  it('does not allocate what a small file claims', () => {
    const huge = [ints('s', [1_000_000_000, 1_000_000_000])];
    const value = attribute.tensor({ name: '', dtype: 'int64', shape: [1], data: BigInt64Array.of(1n) });
    const { outputs } = load({
      nodes: [node('ConstantOfShape', 's', 'y', { attributes: { value } })],
      initializers: huge,
    });
    expect(outputs.y!.shape).toEqual([1_000_000_000, 1_000_000_000]);
    const range = [0, 1e12, 1].map((v, i): OnnxTensor => ({
      name: `r${i}`,
      dtype: 'int64',
      shape: [],
      data: BigInt64Array.of(BigInt(v)),
    }));
    expect(problem({ nodes: [node('Range', 'r0 r1 r2', 'y')], initializers: range }).message).toMatch(
      /at most 65536/,
    );
  });

  it('takes names like __proto__ for what they are', () => {
    const name = '__proto__';
    const { inputs, outputs } = load({
      inputs: [{ name, dtype: 'float32', shape: ['N'] }],
      nodes: [node('Relu', name, 'constructor')],
      outputs: [{ name: 'constructor', dtype: 'float32', shape: undefined }],
    });
    expect(Object.keys(inputs)).toEqual([name]);
    expect(outputs.constructor).toMatchObject({ dtype: 'float32' });
  });

  it('gives a model or a UsageError for any damage to a file', () => {
    const files = Object.values(sampleModels).map((build) => {
      const model = build();
      const values = initialValues(model.graph);
      return exportOnnx(model.outputs, (source) => values[source.label]!);
    });
    const damage = fc.array(
      fc.tuple(fc.double({ min: 0, max: 1, noNaN: true }), fc.integer({ min: 0, max: 255 })),
      { minLength: 1, maxLength: 6 },
    );
    fc.assert(
      fc.property(fc.constantFrom(...files), damage, (file, changes) => {
        const bytes = Uint8Array.from(file);
        for (const [where, byte] of changes) bytes[Math.floor(where * (bytes.length - 1))] = byte;
        try {
          importOnnx(bytes);
        } catch (error) {
          if (!(error instanceof UsageError)) throw error;
          expect(error.message.length).toBeGreaterThan(20);
        }
      }),
      { numRuns: 400 },
    );
  });

  it('gives a model or a UsageError for any rewiring of nodes', () => {
    const files = Object.values(sampleModels).map((build) => {
      const model = build();
      const values = initialValues(model.graph);
      return decodeModel(exportOnnx(model.outputs, (source) => values[source.label]!));
    });
    const place = fc.nat(100_000);
    const change = fc.record({
      node: place,
      at: place,
      from: place,
      kind: fc.constantFrom('input', 'drop', 'operator', 'attribute'),
    });
    fc.assert(
      fc.property(
        fc.constantFrom(...files),
        fc.array(change, { minLength: 1, maxLength: 4 }),
        (file, changes) => {
          const { nodes, initializers, inputs } = file.graph;
          const names = [
            ...nodes.flatMap((n) => n.outputs),
            ...initializers.map((i) => i.name),
            ...inputs.map((i) => i.name),
          ];
          const changed = nodes.map((n) => ({ ...n, inputs: [...n.inputs] }));
          for (const { node: which, at, from, kind } of changes) {
            const target = changed[which % changed.length]!;
            const other = nodes[from % nodes.length]!;
            if (kind === 'input')
              target.inputs[at % (target.inputs.length + 1)] = names[from % names.length]!;
            else if (kind === 'drop') target.inputs.splice(at % (target.inputs.length + 1), 1);
            else if (kind === 'operator') target.opType = other.opType;
            else target.attributes = other.attributes;
          }
          try {
            importOnnx(encodeModel({ ...file, graph: { ...file.graph, nodes: changed } }));
          } catch (error) {
            if (!(error instanceof UsageError)) throw error;
            expect(error.message).toMatch(/^the model: (node|output|value) /);
            expect(error.message).not.toMatch(/cannot be read \(/);
          }
        },
      ),
      { numRuns: 500 },
    );
  });
});

describe('the batch', () => {
  const relu = [node('Relu', 'x', 'y')];
  const input = (shape: (number | string)[]) => ({
    nodes: relu,
    inputs: [{ name: 'x', dtype: 'float32' as const, shape }],
  });

  it('is the open axis, or axis 0 of a model with fixed sizes unless told otherwise', () => {
    expect(load(input(['batch', 3])).inputs.x!.shape).toEqual([N, 3]);
    expect(load(input(['', 3])).inputs.x!.shape).toEqual([N, 3]);
    expect(load(input([7, 'batch', 3])).inputs.x!.shape).toEqual([7, N, 3]);
    expect(load(input([1, 3])).inputs.x!.shape).toEqual([N, 3]);
    expect(load(input([1, 3]), { batchAxis: false }).inputs.x!.shape).toEqual([1, 3]);
  });

  it('is the only open axis; others are named and can be given a size', () => {
    expect(problem(input(['batch', 'sequence'])).message).toMatch(
      /axis 1 \("sequence"\) open besides the batch.*option dimensions/,
    );
    expect(load(input(['batch', 'sequence']), { dimensions: { sequence: 5 } }).inputs.x!.shape).toEqual([
      N,
      5,
    ]);
  });

  it('of a fixed size inside the model is explained', () => {
    const model = {
      ...input([2, 3]),
      nodes: [node('Reshape', 'x s', 'y')],
      initializers: [ints('s', [2, 3])],
    };
    expect(problem(model).message).toMatch(/\[N, 3\].*\[2, 3\].*batchAxis/);
    expect(load(model, { batchAxis: false }).outputs.y!.shape).toEqual([2, 3]);
  });
});

describe('weights', () => {
  it('that are scalars or masks are constants, others parameters under their own names', () => {
    const mask = { ...floats('mask', 4), data: new Float32Array([0, -Infinity, 0, -1e30]) };
    const { graph } = load({
      nodes: [node('Mul', 'x scale', 'a'), node('Add', 'a mask', 'b'), node('Add', 'b w', 'y')],
      initializers: [{ ...floats('scale'), shape: [], data: new Float32Array([2]) }, mask, floats('w', 4)],
    });
    expect([...graph.parameters.keys()]).toEqual(['w']);
  });
});
