/**
 * Recursive halving and doubling (MG-WFBP, table II): log2 n steps in which partners exchange ever smaller halves and
 * add them, then the same steps backwards to collect the result. Where n is no power of two, the first ranks beyond
 * it fold into a partner before and get the result after. Invariant: partners add lower position first, so that
 * both halves of a pair would compute the same bits.
 */
import type { Region } from '../../memory/index.ts';
import type { Steps } from '../../progress/index.ts';
import { alignedPart, cut } from '../parts.ts';
import type { Part } from '../parts.ts';
import type { Reduction } from '../reduction.ts';
import type { Ranks } from './ranks.ts';
import { settle } from './ranks.ts';

const FOLD = 0;
const UNFOLD = 1;
const HALVE = 2;
const DOUBLE = 64;

export function* halvingDoubling(
  ranks: Ranks,
  vectors: readonly Region[],
  weight: number,
  reduction: Reduction,
): Steps {
  const { size, position, operation } = ranks;
  const target = vectors[0]!;
  if (vectors.length > 1) reduction.combine(target, vectors);
  const scratch = operation.scratch(target.dtype, target.length);
  const power = 2 ** Math.floor(Math.log2(size));
  const extra = size - power;
  let total = weight;

  // Of the first 2 * extra positions, the odd ones fold into the even ones before them.
  if (position < 2 * extra && position % 2 === 1) {
    yield ranks.send(position - 1, FOLD, target, weight);
    yield* ranks.fetch(position - 1, UNFOLD, target, reduction.kernels);
  } else {
    if (position < 2 * extra) {
      const receiving = ranks.receive(position + 1, FOLD, scratch);
      yield receiving;
      reduction.combine(target, [target, receiving.region]);
      total += receiving.weight;
      receiving.release();
    }
    const index = position < 2 * extra ? position / 2 : position - extra;
    const positionOf = (other: number) => (other < extra ? other * 2 : other + extra);
    yield* halveAndDouble(ranks, { index, power, positionOf, total }, target, scratch, reduction);
    if (position < 2 * extra) yield ranks.send(position + 1, UNFOLD, target);
  }
  for (const vector of vectors.slice(1)) reduction.kernels.copy(vector, target);
}

interface Place {
  readonly index: number;
  readonly power: number;
  readonly positionOf: (index: number) => number;
  readonly total: number;
}

function* halveAndDouble(
  ranks: Ranks,
  { index, power, positionOf, total }: Place,
  target: Region,
  scratch: Region,
  reduction: Reduction,
): Steps {
  let weight = total;
  const given: { partner: number; kept: Part; gone: Part }[] = [];
  let mine: Part = { start: 0, length: target.length };
  for (let distance = power / 2, step = HALVE; distance >= 1; distance /= 2, step++) {
    const partner = index ^ distance;
    const halves = [0, 1].map((half) => shift(alignedPart(mine.length, 2, half), mine.start));
    const low = index < partner;
    const kept = halves[low ? 0 : 1]!;
    const gone = halves[low ? 1 : 0]!;
    const sending = ranks.send(positionOf(partner), step, cut(target, gone), weight);
    const receiving = ranks.receive(positionOf(partner), step, cut(scratch, kept));
    yield receiving;
    const sum = cut(target, kept);
    reduction.combine(sum, low ? [sum, receiving.region] : [receiving.region, sum]);
    weight += receiving.weight;
    receiving.release();
    yield sending;
    given.push({ partner, kept, gone });
    mine = kept;
  }
  reduction.finish(cut(target, mine), weight);
  for (let i = given.length - 1, step = DOUBLE; i >= 0; i--, step++) {
    const { partner, kept, gone } = given[i]!;
    const sending = ranks.send(positionOf(partner), step, cut(target, kept));
    const part = cut(target, gone);
    const receiving = ranks.receive(positionOf(partner), step, part);
    yield receiving;
    settle(receiving, part, reduction.kernels);
    yield sending;
  }
}

function shift(part: Part, by: number): Part {
  return { start: part.start + by, length: part.length };
}
