/** Compressed allreduce against the codec vectors: every rank sends the same gradients, so the sum is known. */
import { describe, expect, it } from 'vitest';
import { allReduce } from '../../src/collectives/index.ts';
import type { Codec } from '../../src/collectives/index.ts';
import { runGroup } from '../support/run-group.ts';
import { firstDifference, numbers, readVectors } from '../support/shared.ts';

interface Round {
  readonly grad: number[];
  readonly decoded?: number[];
  readonly indices?: number[];
  readonly values?: number[];
  readonly residual: number[];
}

interface CodecCase {
  readonly name: string;
  readonly kind: Codec['kind'];
  readonly threshold: number;
  readonly k: number;
  readonly input?: (number | string)[];
  readonly decoded?: (number | string)[];
  readonly rounds?: Round[];
  readonly tolerance: { rtol: number; atol: number };
}

function decodedOf(round: Round): number[] {
  if (round.decoded) return round.decoded;
  const dense = round.grad.map(() => 0);
  round.indices!.forEach((at, i) => (dense[at] = round.values![i]!));
  return dense;
}

describe('compressed allreduce', () => {
  const inRounds = readVectors<CodecCase>('compression.json', ({ rounds }) => rounds !== undefined);
  const short = readVectors<CodecCase>('compression.json', ({ kind }) => kind === 'fp16' || kind === 'bf16');
  for (const size of [1, 2, 3]) {
    it(`sums what the codecs decode, and keeps their residuals, on ${size} ranks`, async () => {
      const faults = await runGroup({ size, seed: 7 }, async ({ group, region }) => {
        const found: (string | undefined)[] = [];
        for (const one of inRounds) {
          const residual = region(
            'float32',
            one.rounds![0]!.grad.map(() => 0),
          );
          const { kind, threshold, k } = one;
          const codec = { kind, residual, ...(kind === 'topk' ? { k } : { threshold }) } as Codec;
          for (const round of one.rounds!) {
            const vector = region('float32', round.grad);
            await allReduce(group, vector, { codec, name: one.name });
            const sum = decodedOf(round).map((value) => size * value);
            const tolerance = { rtol: 1e-6, atol: size * one.tolerance.atol };
            found.push(
              firstDifference(vector.view, sum, tolerance),
              firstDifference(residual.view, round.residual, tolerance),
            );
          }
        }
        return found.filter(Boolean);
      });
      expect(faults.flat()).toEqual([]);
    });
  }

  it('rounds as fp16 and bf16 do: the mean of equal vectors is their code', async () => {
    const size = 3;
    const faults = await runGroup({ size, seed: 3 }, async ({ group, region }) => {
      const found: (string | undefined)[] = [];
      for (const one of short) {
        const finite = numbers(one.input!).filter(
          (_, i) => Number.isFinite(Number(one.decoded![i])) && Math.abs(Number(one.decoded![i])) < 1e37,
        );
        const vector = region('float32', finite);
        await allReduce(group, vector, { op: 'mean', codec: { kind: one.kind as 'fp16' } });
        const decoded = numbers(one.decoded!).filter(
          (value) => Number.isFinite(value) && Math.abs(value) < 1e37,
        );
        found.push(
          firstDifference(vector.view, decoded, {
            rtol: one.kind === 'fp16' ? 2 ** -10 : 2 ** -7,
            atol: 1e-7,
          }),
        );
      }
      return found.filter(Boolean);
    });
    expect(faults.flat()).toEqual([]);
  });

  it('refuses what cannot be compressed', async () => {
    await runGroup({ size: 1 }, async ({ group, region }) => {
      const max = allReduce(group, region('float32', [1]), { op: 'max', codec: { kind: 'fp16' } });
      await expect(max).rejects.toMatchObject({ code: 'INVALID_ARGUMENT' });
      const residual = region('float32', [0, 0]);
      const short = allReduce(group, region('float32', [1]), { codec: { kind: 'topk', k: 1, residual } });
      await expect(short).rejects.toMatchObject({ code: 'SHAPE_MISMATCH' });
    });
  });

  it('leaves a rank without weight out, and its residual alone', async () => {
    const results = await runGroup({ size: 2 }, async ({ group, rank, region }) => {
      const vector = region('float32', [rank === 0 ? 4 : 100, 0]);
      const residual = region('float32', [1, 2]);
      const codec: Codec = { kind: 'topk', k: 1, residual };
      await allReduce(group, vector, { op: 'mean', weight: rank === 0 ? 3 : 0, codec });
      return { mean: [...vector.view], residual: [...residual.view] };
    });
    // Rank 0 counts three times: what it sends is 3 * 4 and its residual of 1.
    const mean = [Math.fround(13 / 3), 0];
    expect(results).toEqual([
      { mean, residual: [0, 2] },
      { mean, residual: [1, 2] },
    ]);
  });
});
