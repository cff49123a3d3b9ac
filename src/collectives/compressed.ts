/**
 * Allreduce with small numbers on the wire. fp16 and bf16: every rank sends part p to rank p, which adds the decoded
 * parts in float32 and sends the sum back rounded once more. 1-bit, 2-bit and top-k: every rank sends its codes to all,
 * and everyone adds the decoded vectors; what the codes leave out stays in the caller's residual for the next time.
 * Invariant: sums are in rank order and everyone decodes the same codes, so all ranks get the same bits.
 */
import { UsageError } from '../base/index.ts';
import {
  decodeBf16,
  decodeFp16,
  decodeOneBit,
  decodeTopK,
  decodeTwoBit,
  encodeBf16,
  encodeFp16,
  encodeOneBit,
  encodeTopK,
  encodeTwoBit,
  oneBitWords,
  TOP_K_SCRATCH_WORDS,
  twoBitWords,
} from '../kernels/index.ts';
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Operation, Steps } from '../progress/index.ts';
import type { Receiving, Transfer } from '../transport/index.ts';
import { Ranks, settle } from './algorithms/ranks.ts';
import { cut, evenParts } from './parts.ts';
import type { Reduction } from './reduction.ts';

/** What was not sent so far: float32, as long as the vector, zeros at the start; the caller keeps it between calls. */
type Residual = Region<'float32'>;

export type Codec =
  | { readonly kind: 'fp16' | 'bf16' }
  /** Sends +1 or -1 for every element, by whether it is above the threshold. */
  | { readonly kind: '1bit'; readonly threshold: number; readonly residual: Residual }
  /** Sends +threshold, -threshold or nothing for every element. */
  | { readonly kind: '2bit'; readonly threshold: number; readonly residual: Residual }
  /** Sends the k elements of largest magnitude. */
  | { readonly kind: 'topk'; readonly k: number; readonly residual: Residual };

/** The codec of a description, with a residual of the caller's; undefined if it is none. */
export function parseCodec(text: string, residual: Residual): Codec | undefined {
  const [kind, number] = text.split(' ');
  if (kind === 'fp16' || kind === 'bf16') return { kind };
  const value = Number(number);
  if (number === undefined || !Number.isFinite(value)) return undefined;
  if (kind === '1bit' || kind === '2bit') return { kind, threshold: value, residual };
  return kind === 'topk' ? { kind, k: value, residual } : undefined;
}

export function describeCodec(codec: Codec): string {
  if (codec.kind === 'topk') return `topk ${codec.k}`;
  return 'threshold' in codec ? `${codec.kind} ${Math.fround(codec.threshold)}` : codec.kind;
}

export function* compressedAllReduce(
  operation: Operation,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
  codec: Codec,
): Steps {
  const target = checked(vectors, reduction, codec);
  if (vectors.length > 1) reduction.combine(target, vectors);
  const ranks = Ranks.all(operation);
  if (codec.kind === 'fp16' || codec.kind === 'bf16')
    yield* halfPrecision(ranks, target, weight, reduction, codec.kind);
  else yield* coded(ranks, target, weight, reduction, codec as ResidualCodec);
  for (const vector of vectors.slice(1)) reduction.kernels.copy(vector, target);
}

function checked(vectors: readonly Region[], reduction: Reduction, codec: Codec): Region<'float32'> {
  const target = vectors[0]!;
  if (target.dtype !== 'float32' || (reduction.op !== 'sum' && reduction.op !== 'mean')) {
    throw new UsageError(
      'INVALID_ARGUMENT',
      `codec ${codec.kind} was asked for ${reduction.op} of ${target.dtype}; only sums and means of float32 can be compressed`,
      { codec: codec.kind, op: reduction.op, dtype: target.dtype },
    );
  }
  if ('residual' in codec && codec.residual.length !== target.length) {
    throw new UsageError(
      'SHAPE_MISMATCH',
      `the residual of codec ${codec.kind} has ${codec.residual.length} elements, the vector ${target.length}; keep one residual for each vector`,
      { residual: codec.residual.length, vector: target.length },
    );
  }
  return target as Region<'float32'>;
}

const TO_OWNER = 0;
const FROM_OWNER = 1;

function* halfPrecision(
  ranks: Ranks,
  target: Region<'float32'>,
  weight: number,
  reduction: Reduction,
  kind: 'fp16' | 'bf16',
): Steps {
  const { operation, size, position } = ranks;
  const { kernels } = reduction;
  const encode = kind === 'fp16' ? encodeFp16 : encodeBf16;
  const decode = kind === 'fp16' ? decodeFp16 : decodeBf16;
  const parts = evenParts(target.length, size);
  const own = parts[position]!;
  const codes = operation.scratch('uint16', target.length);
  encode(kernels, codes, target);

  const sends = [];
  for (let i = 1; i < size; i++) {
    const to = (position + i) % size;
    sends.push(ranks.send(to, TO_OWNER, cut(codes, parts[to]!), weight));
  }
  const receives = [];
  for (let i = 1; i < size; i++) {
    receives[(position - i + size) % size] = ranks.receive(
      position - i,
      TO_OWNER,
      operation.scratch('uint16', own.length),
    );
  }
  const sum = cut(target, own);
  const decoded = operation.scratch('float32', own.length);
  let total = 0;
  for (let at = 0; at < size; at++) {
    const receiving = receives[at];
    if (receiving) yield receiving;
    const incoming = receiving ? receiving.region : cut(codes, own);
    decode(kernels, at === 0 ? sum : decoded, incoming as Region<'uint16'>);
    if (at > 0) kernels.sum(sum, [sum, decoded]);
    total += receiving ? receiving.weight : weight;
    receiving?.release();
  }
  reduction.finish(sum, total);
  for (const sending of sends) yield sending;

  encode(kernels, cut(codes, own), sum);
  const answers = [];
  for (let i = 1; i < size; i++) answers.push(ranks.send(position + i, FROM_OWNER, cut(codes, own)));
  const results = [];
  for (let i = 1; i < size; i++) {
    const from = (position - i + size) % size;
    results.push({ from, receiving: ranks.receive(from, FROM_OWNER, cut(codes, parts[from]!)) });
  }
  for (const { from, receiving } of results) {
    yield receiving;
    settle(receiving, cut(codes, parts[from]!), kernels);
  }
  for (const sending of answers) yield sending;
  decode(kernels, target, codes);
}

type ResidualCodec = Extract<Codec, { residual: Residual }>;

/** Every rank's codes go to all, one message for each region of them; weightless ranks are left out of the sum. */
function* coded(
  ranks: Ranks,
  target: Region<'float32'>,
  weight: number,
  reduction: Reduction,
  codec: ResidualCodec,
): Steps {
  const { operation, size, position } = ranks;
  const { kernels } = reduction;
  const own = allocateCodes(operation, codec, target.length);
  // What is left out must stay in the residual, so nothing is taken from it.
  if (weight > 0) encode(operation, kernels, codec, own, target);
  const sends: Transfer[] = [];
  for (let i = 1; i < size; i++)
    own.forEach((codes, step) => sends.push(ranks.send(position + i, step, codes, weight)));
  const receives: Receiving[][] = [];
  for (let i = 1; i < size; i++) {
    const into = allocateCodes(operation, codec, target.length);
    receives[(position - i + size) % size] = into.map((codes, step) =>
      ranks.receive(position - i, step, codes),
    );
  }
  const decoded = operation.scratch('float32', target.length);
  kernels.fill(target, 0);
  let total = 0;
  for (let at = 0; at < size; at++) {
    const receivings = receives[at] ?? [];
    for (const receiving of receivings) yield receiving;
    const contributed = receivings[0]?.weight ?? weight;
    const codes = at === position ? own : receivings.map(({ region }) => region);
    if (contributed > 0) {
      decode(kernels, codec, decoded, codes);
      kernels.sum(target, [target, decoded]);
    }
    total += contributed;
    for (const receiving of receivings) receiving.release();
  }
  for (const sending of sends) yield sending;
  reduction.finish(target, total);
}

function allocateCodes(operation: Operation, codec: ResidualCodec, length: number): Region[] {
  if (codec.kind === '1bit') return [operation.scratch('uint32', oneBitWords(length))];
  if (codec.kind === '2bit') return [operation.scratch('uint32', twoBitWords(length))];
  const k = Math.min(codec.k, length);
  return [operation.scratch('int32', k), operation.scratch('float32', k)];
}

function encode(
  operation: Operation,
  kernels: Kernels,
  codec: ResidualCodec,
  codes: readonly Region[],
  gradient: Region<'float32'>,
): void {
  const { residual } = codec;
  if (codec.kind === 'topk') {
    const [indices, values] = codes as [Region<'int32'>, Region<'float32'>];
    const scratch = operation.scratch('int32', TOP_K_SCRATCH_WORDS);
    encodeTopK(kernels, { k: codec.k, indices, values, residual, gradient, scratch });
    return;
  }
  const [packed] = codes as [Region<'uint32'>];
  const encoder = codec.kind === '1bit' ? encodeOneBit : encodeTwoBit;
  encoder(kernels, { packed, residual, gradient, threshold: codec.threshold });
}

function decode(
  kernels: Kernels,
  codec: ResidualCodec,
  target: Region<'float32'>,
  codes: readonly Region[],
): void {
  if (codec.kind === 'topk') {
    const [indices, values] = codes as [Region<'int32'>, Region<'float32'>];
    return decodeTopK(kernels, target, indices, values, indices.length);
  }
  const [packed] = codes as [Region<'uint32'>];
  if (codec.kind === '1bit') decodeOneBit(kernels, target, packed);
  else decodeTwoBit(kernels, target, packed, codec.threshold);
}
