import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TributaryError } from '../../../src/base/index.ts';
import { formatSafetensors, parseSafetensors } from '../../../src/runtime/checkpoint/index.ts';
import type { TensorData } from '../../../src/runtime/checkpoint/index.ts';
import { expectError } from '../../data/expect-error.ts';

/** A file with any header text and data. */
function file(header: unknown, data = new Uint8Array(0), length?: bigint): Uint8Array {
  const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(length ?? BigInt(json.length));
  return Buffer.concat([head, json, data]);
}

function parse(bytes: Uint8Array): ReturnType<typeof parseSafetensors> {
  return parseSafetensors(bytes, 'm.safetensors');
}

const tensor: fc.Arbitrary<TensorData> = fc.oneof(
  fc
    .array(fc.float({ noDefaultInfinity: false }), { maxLength: 9 })
    .map((v) => ({ dtype: 'float32', shape: [v.length], data: Float32Array.from(v) }) as const),
  fc
    .array(fc.integer(), { maxLength: 9 })
    .map((v) => ({ dtype: 'int32', shape: [1, v.length], data: Int32Array.from(v) }) as const),
  fc
    .array(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), { maxLength: 9 })
    .map((v) => ({ dtype: 'int64', shape: [v.length, 1], data: BigInt64Array.from(v) }) as const),
  fc.uint8Array({ maxLength: 9 }).map((data) => ({ dtype: 'uint8', shape: [data.length], data }) as const),
  fc.double().map((v) => ({ dtype: 'float64', shape: [], data: Float64Array.of(v) }) as const),
  fc
    .uint16Array({ maxLength: 9 })
    .map((data) => ({ dtype: 'bfloat16', shape: [data.length], data }) as const),
);
const name = fc.string({ unit: 'binary' }).filter((text) => text !== '__metadata__');

describe('safetensors', () => {
  it('gives back every set of tensors and metadata, bit for bit', () => {
    fc.assert(
      fc.property(
        fc.dictionary(name, tensor),
        fc.dictionary(fc.string(), fc.string()),
        (tensors, metadata) => {
          const read = parse(Buffer.concat(formatSafetensors(tensors, metadata)));
          expect(Object.keys(read.tensors).sort()).toEqual(Object.keys(tensors).sort());
          for (const [key, { dtype, shape, data }] of Object.entries(tensors)) {
            const got = read.tensors[key]!;
            expect([got.dtype, got.shape]).toEqual([dtype, shape]);
            expect(Buffer.from(got.data.buffer, got.data.byteOffset, got.data.byteLength)).toEqual(
              Buffer.from(data.buffer, data.byteOffset, data.byteLength),
            );
          }
          expect(Object.entries(read.metadata).sort()).toEqual(Object.entries(metadata).sort());
        },
      ),
    );
  });

  it('reads views of the given bytes without a copy, and copies only what is not aligned', () => {
    const data = Float32Array.of(1, 2, 3);
    const pieces = formatSafetensors({ w: { dtype: 'float32', shape: [3], data } });
    const bytes = new Uint8Array(Buffer.concat(pieces));
    expect(parse(bytes).tensors.w!.data.buffer).toBe(bytes.buffer);
    const shifted = new Uint8Array(bytes.length + 1);
    shifted.set(bytes, 1);
    const read = parse(shifted.subarray(1)).tensors.w!;
    expect(read.data).toEqual(data);
    expect(read.data.buffer).not.toBe(shifted.buffer);
  });

  it('writes the header that the format describes', () => {
    const [head, ...data] = formatSafetensors({
      small: { dtype: 'uint8', shape: [1], data: Uint8Array.of(9) },
      wide: { dtype: 'float32', shape: [1, 1], data: Float32Array.of(1) },
    });
    const length = Number(Buffer.from(head!).readBigUInt64LE());
    expect(length % 8).toBe(0);
    expect(JSON.parse(Buffer.from(head!).toString('utf8', 8))).toEqual({
      wide: { dtype: 'F32', shape: [1, 1], data_offsets: [0, 4] },
      small: { dtype: 'U8', shape: [1], data_offsets: [4, 5] },
    });
    expect(Buffer.concat(data)).toEqual(Buffer.from([0, 0, 0x80, 0x3f, 9]));
  });

  it('refuses to write tensors whose type, shape or name does not fit', () => {
    const data = Float32Array.of(1, 2);
    const write = (key: string, value: unknown) => () => formatSafetensors({ [key]: value as TensorData });
    expectError(write('w', { dtype: 'float32', shape: [3], data }), 'INVALID_ARGUMENT', '"w"', '[3]');
    expectError(
      write('w', { dtype: 'int32', shape: [2], data }),
      'INVALID_ARGUMENT',
      'int32',
      'Float32Array',
    );
    expectError(write('w', { dtype: 'complex', shape: [2], data }), 'INVALID_ARGUMENT', 'complex');
    expectError(write('__metadata__', { dtype: 'float32', shape: [2], data }), 'INVALID_ARGUMENT');
  });

  const entry = (dtype: unknown, shape: unknown, offsets: unknown) => ({
    dtype,
    shape,
    data_offsets: offsets,
  });
  const eight = new Uint8Array(8);
  const hostile: readonly (readonly [string, Uint8Array, string])[] = [
    ['no bytes', new Uint8Array(0), '0 bytes'],
    ['fewer bytes than the length', new Uint8Array(7), '7 bytes'],
    ['a huge header length', file('{}', eight, 2n ** 64n - 1n), '18446744073709551615'],
    ['a header length just above the limit', file('{}', eight, 100_000_001n), '100000001'],
    ['a header longer than the file', file('{}', eight, 11n), '19 bytes'],
    ['a header that is not JSON', file('{"a":'), 'not JSON'],
    [
      'a header that is not UTF-8',
      Buffer.concat([file('', eight, 2n).subarray(0, 8), Buffer.from([0xff, 0xfe])]),
      'UTF-8',
    ],
    ['a header that is a list', file('[]'), 'not an object'],
    ['a header that is null', file('null'), 'not an object'],
    ['a tensor that is a number', file({ w: 3 }), '"w" is not an object'],
    ['an unknown dtype', file({ w: entry('F33', [2], [0, 8]) }, eight), 'F33'],
    ['a dtype from the prototype', file({ w: entry('constructor', [2], [0, 8]) }, eight), 'constructor'],
    ['a dtype that is a list', file({ w: entry(['F32'], [2], [0, 8]) }, eight), 'dtype'],
    ['a negative offset', file({ w: entry('F32', [2], [-8, 0]) }, eight), 'data_offsets'],
    ['swapped offsets', file({ w: entry('F32', [2], [8, 0]) }, eight), 'data_offsets'],
    ['offsets past the end', file({ w: entry('F32', [4], [0, 16]) }, eight), 'data_offsets'],
    ['broken offsets', file({ w: entry('F32', [2], [0, 8.5]) }, eight), 'data_offsets'],
    ['offsets as text', file({ w: entry('F32', [2], ['0', '8']) }, eight), 'data_offsets'],
    ['three offsets', file({ w: entry('F32', [2], [0, 8, 8]) }, eight), 'data_offsets'],
    ['no offsets', file({ w: { dtype: 'F32', shape: [2] } }, eight), 'data_offsets'],
    ['a negative extent', file({ w: entry('F32', [-2], [0, 8]) }, eight), 'shape'],
    ['an overflowing shape', file({ w: entry('F32', [2 ** 40, 2 ** 40], [0, 8]) }, eight), 'shape'],
    ['a shape that is text', file({ w: entry('F32', '2', [0, 8]) }, eight), 'shape'],
    ['a shape of another size', file({ w: entry('F32', [1], [0, 8]) }, eight), '4 bytes'],
    [
      'overlapping tensors',
      file({ a: entry('F32', [2], [0, 8]), b: entry('F32', [1], [4, 8]) }, eight),
      'overlaps',
    ],
    [
      'equal tensors',
      file({ a: entry('F32', [2], [0, 8]), b: entry('F32', [2], [0, 8]) }, eight),
      'overlaps',
    ],
    ['a gap', file({ a: entry('U8', [1], [0, 1]), b: entry('U8', [1], [7, 8]) }, eight), 'belong to none'],
    ['bytes after the last tensor', file({ a: entry('U8', [1], [0, 1]) }, eight), 'end at 1'],
    [
      'a name twice',
      file(
        `{"a":${JSON.stringify(entry('U8', [8], [0, 8]))},"\\u0061":${JSON.stringify(entry('U8', [8], [0, 8]))}}`,
        eight,
      ),
      '"a" twice',
    ],
    [
      'a field twice',
      file('{"a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]}}', eight),
      '"dtype" twice',
    ],
    ['metadata that is not text', file({ __metadata__: { a: 1 } }), '__metadata__.a'],
    ['metadata that is a list', file({ __metadata__: [] }), '__metadata__'],
    ['nesting beyond any stack', file('['.repeat(200_000)), 'm.safetensors'],
  ];
  it.each(hostile)('refuses %s', (_what, bytes, part) => {
    expectError(() => parse(bytes), 'CHECKPOINT_CORRUPT', 'm.safetensors', part);
  });

  it('reads or refuses any bytes, and never fails otherwise', () => {
    const good = Buffer.concat(
      formatSafetensors({
        a: { dtype: 'float32', shape: [2], data: Float32Array.of(1, 2) },
        b: { dtype: 'uint8', shape: [3], data: Uint8Array.of(1, 2, 3) },
      }),
    );
    fc.assert(
      fc.property(fc.nat(good.length - 1), fc.nat(255), fc.nat(good.length), (at, value, length) => {
        const bytes = Buffer.from(good.subarray(0, length));
        if (at < length) bytes[at] = value;
        try {
          parse(bytes);
        } catch (error) {
          expect(error).toBeInstanceOf(TributaryError);
        }
      }),
      { numRuns: 500 },
    );
  });
});
