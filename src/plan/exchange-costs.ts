/**
 * What an exchange of so many bytes takes, as plain data that was measured elsewhere and as the function made of it: a line
 * `a + b * M` (MG-WFBP, section II.D, equation 9), or the measured points themselves where a line fits badly. Nothing
 * here measures. Invariant: a cost is finite, never negative and never falls with the bytes.
 */
import { refuse } from './argument-checks.ts';

/** `a + b * M`. */
export interface LinearCost {
  /** Milliseconds that an exchange takes however short it is; `a` of the paper. */
  readonly startMs: number;
  /** Milliseconds for each byte; `b` of the paper. */
  readonly msPerByte: number;
}

export interface CostPoint {
  readonly bytes: number;
  readonly ms: number;
}

/** A line, or at least one measured point, by ascending bytes. */
export type ExchangeCost = LinearCost | readonly CostPoint[];

/** The line as a function of bytes. */
export function linearCost(startMs: number, msPerByte: number): (bytes: number) => number {
  requireCostNumber('startMs', startMs);
  requireCostNumber('msPerByte', msPerByte);
  return (bytes) => startMs + msPerByte * bytes;
}

/**
 * Straight between measured points. Below the first point its time is that of the first, since what is measured there is
 * start-up; beyond the last the line through the last two goes on.
 */
export function measuredCost(points: readonly CostPoint[]): (bytes: number) => number {
  checkPoints(points);
  const last = points.length - 1;
  return (bytes) => {
    if (last === 0 || bytes <= points[0]!.bytes) return points[0]!.ms;
    const next = points.findIndex((point) => point.bytes >= bytes);
    const right = points[next === -1 ? last : next]!;
    const left = points[(next === -1 ? last : next) - 1]!;
    return left.ms + ((bytes - left.bytes) * (right.ms - left.ms)) / (right.bytes - left.bytes);
  };
}

export function costFunction(cost: ExchangeCost): (bytes: number) => number {
  return isLine(cost) ? linearCost(cost.startMs, cost.msPerByte) : measuredCost(cost);
}

/** The same cost, `factor` times as high. */
export function scaledCost(cost: ExchangeCost, factor: number): ExchangeCost {
  if (isLine(cost)) return { startMs: cost.startMs * factor, msPerByte: cost.msPerByte * factor };
  return cost.map(({ bytes, ms }) => ({ bytes, ms: ms * factor }));
}

function isLine(cost: ExchangeCost): cost is LinearCost {
  return !Array.isArray(cost);
}

function checkPoints(points: readonly CostPoint[]): void {
  if (points.length === 0) refuse('points', '[]', 'at least one measured point');
  points.forEach(({ bytes, ms }, i) => {
    requireCostNumber(`points[${i}].bytes`, bytes);
    requireCostNumber(`points[${i}].ms`, ms);
    const before = points[i - 1];
    if (before === undefined) return;
    if (bytes <= before.bytes)
      refuse(`points[${i}].bytes`, bytes, `more than the ${before.bytes} of the point before`);
    if (ms < before.ms) refuse(`points[${i}].ms`, ms, `at least the ${before.ms} ms of the shorter exchange`);
  });
}

export function requireCostNumber(name: string, value: number): void {
  if (!Number.isFinite(value) || value < 0) refuse(name, value, 'a finite number, 0 or more');
}
