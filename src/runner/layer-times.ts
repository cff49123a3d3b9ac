/**
 * How long the forward pass and each gradient's part of the backward pass take on this device, from real steps: some with the
 * backward pass in one piece, some cut behind every gradient. What the cuts add is told apart. Collects; decides nothing.
 * Invariant: the parts add up to the time of the uncut pass.
 */
export interface LayerTimes {
  readonly forwardMs: number;
  /** In the order of the gradients. */
  readonly backwardMs: readonly number[];
  /** What one more cut costs. */
  readonly segmentMs: number;
}

/** The first piece is the forward pass. */
export function cutEverywhere(names: readonly string[]): string[][] {
  return [[], ...names.map((name) => [name])];
}

/** `uncutMs`: whole passes; `cutMs`: the pieces of passes that were cut by `cutEverywhere`. Medians count. */
export function layerTimes(uncutMs: readonly number[], cutMs: readonly (readonly number[])[]): LayerTimes {
  const pieces = cutMs[0]!.map((_, piece) => median(cutMs.map((pass) => pass[piece]!)));
  const sum = pieces.reduce((total, ms) => total + ms, 0);
  const whole = Math.min(sum, median(uncutMs));
  const [forwardMs, ...backwardMs] = pieces.map((ms) => (sum === 0 ? 0 : (ms * whole) / sum));
  return { forwardMs: forwardMs!, backwardMs, segmentMs: (sum - whole) / Math.max(1, pieces.length - 1) };
}

/** The same parts of a pass that takes `computeMs` without cuts. */
export function scaledTo(computeMs: number, times: LayerTimes): LayerTimes {
  const whole = times.backwardMs.reduce((total, ms) => total + ms, times.forwardMs);
  if (whole === 0) return times;
  const scale = computeMs / whole;
  return {
    ...{ forwardMs: times.forwardMs * scale, segmentMs: times.segmentMs },
    backwardMs: times.backwardMs.map((ms) => ms * scale),
  };
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
