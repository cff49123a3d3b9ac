/**
 * What the optimum is compared with: a message for each layer (WFBP), one for all (SyncEASGD, both as in MG-WFBP, section
 * V.B), buckets of a fixed size (PyTorch), and the paper's own algorithm 1 (section IV.B). None of them is optimal in
 * general. Invariant: each returns a grouping of all layers in backward order, as `iterationMs` takes it.
 */
import { requirePositive } from './argument-checks.ts';
import { checkProblem, messageMs, type Grouping, type MergeProblem } from './merge-schedule.ts';

export const DEFAULT_BUCKET_BYTES = 25 * 2 ** 20;

/** WFBP: every layer leaves as soon as it is done. */
export function layerByLayer({ layers }: MergeProblem): Grouping {
  return Object.freeze(layers.map(() => 1));
}

/** SyncEASGD: one message after the backward pass. */
export function allInOne({ layers }: MergeProblem): Grouping {
  return Object.freeze(layers.length === 0 ? [] : [layers.length]);
}

/** PyTorch's buckets: filled in backward order, and a bucket leaves with the layer that makes it full. */
export function fixedBuckets({ layers }: MergeProblem, bucketBytes: number = DEFAULT_BUCKET_BYTES): Grouping {
  requirePositive('bucketBytes', bucketBytes);
  const grouping: number[] = [];
  let [count, filled] = [0, 0];
  layers.forEach(({ bytes }, i) => {
    count++;
    filled += bytes;
    if (filled < bucketBytes && i < layers.length - 1) return;
    grouping.push(count);
    [count, filled] = [0, 0];
  });
  return Object.freeze(grouping);
}

/**
 * Algorithm 1 as written, in the paper's letters but counted in backward order: its layer l is our i, and l - 1 is i + 1.
 * Layer i joins i + 1 if the message that could start at tc[i] gains less by leaving at once than merging saves. What
 * merging saves is `a` for a line, and T(i) + T(i + 1) - T(both), from which the paper derives it (C.2), for any cost. The
 * paper reads tb[0] and tb[1] without ever setting them; they continue the recurrence of its line 10. Borders are
 * unknown to it.
 */
export function algorithmOne(problem: MergeProblem): Grouping {
  checkProblem(problem);
  const { layers, forwardMs } = problem;
  /** p: bytes of the message that ends with layer i; `first`: the first layer in it. */
  const p = layers.map(({ bytes }) => bytes);
  const first = layers.map((_, i) => i);
  const tc = p.map((bytes, i) => messageMs(problem, bytes, i, i + 1));
  /** When the gradient of layer i is there. */
  const done: number[] = [];
  layers.reduce((now, { backwardMs }, i) => (done[i] = now + backwardMs), forwardMs);

  const isMerged = layers.map(() => false);
  let startMs = done[0] ?? 0;
  for (let i = 0; i + 1 < layers.length; i++) {
    const merged = messageMs(problem, p[i]! + p[i + 1]!, first[i]!, i + 2);
    const savedMs = tc[i]! + tc[i + 1]! - merged;
    if (done[i + 1]! - startMs < savedMs) {
      isMerged[i] = true;
      tc[i] = 0;
      p[i + 1]! += p[i]!;
      tc[i + 1] = merged;
      first[i + 1] = first[i]!;
    }
    // Calculating all starts anew, as the paper does, changes only those from here on.
    startMs = Math.max(startMs + tc[i]!, done[i + 1]!);
  }
  return Object.freeze(groupingOf(isMerged));
}

function groupingOf(isMerged: readonly boolean[]): number[] {
  const grouping: number[] = [];
  let count = 0;
  for (const joinsNext of isMerged) {
    count++;
    if (joinsNext) continue;
    grouping.push(count);
    count = 0;
  }
  return grouping;
}
