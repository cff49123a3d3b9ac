/**
 * Whether servers in several racks should reduce inside the rack first (PHub, section 3.4). Flat means that the server
 * boxes, one in each rack, are shards and every worker talks to all of them through the network core. A comparison of
 * bandwidths that somebody else measured, and no forecast: latency is left out. Invariant: hierarchical only if strictly
 * cheaper, so never for one rack, and a faster core never turns flat into hierarchical.
 */
import { refuse, requireCount, requirePositive } from './argument-checks.ts';

export interface RackNetwork {
  /** Racks that the training spans, each with one server box. */
  readonly racks: number;
  readonly workersPerRack: number;
  /** What a server box can receive, from all its interfaces together. */
  readonly boxBytesPerSecond: number;
  /** What one rack can send into the network core. */
  readonly coreBytesPerSecond: number;
  /** What one worker can send. */
  readonly workerBytesPerSecond: number;
  /** How the boxes would reduce among each other. */
  readonly between: 'ring' | 'shards';
}

export interface ReductionChoice {
  readonly choice: 'flat' | 'hierarchical';
  /** Seconds for each byte of the model. */
  readonly flatCost: number;
  /** Seconds for each byte of the model. */
  readonly hierarchicalCost: number;
  /** One sentence for people, with both costs. */
  readonly reason: string;
}

/**
 * With R racks of N workers, in seconds for each byte of the model and one direction, as the way back doubles both:
 *
 *   flat          N (R - 1) / (R Bcore)
 *   hierarchical  max(N / Bbox, 1 / Bworker) + C,  C = (R - 1) / (R min(Bbox, Bcore))
 *
 * C is what passes between the racks. The paper has the same for a ring and for shards, which differ in rounds only.
 */
export function chooseReduction(network: RackNetwork): ReductionChoice {
  const { racks, workersPerRack, boxBytesPerSecond, coreBytesPerSecond, workerBytesPerSecond, between } =
    network;
  requireCount('racks', racks);
  requireCount('workersPerRack', workersPerRack);
  requirePositive('boxBytesPerSecond', boxBytesPerSecond);
  requirePositive('coreBytesPerSecond', coreBytesPerSecond);
  requirePositive('workerBytesPerSecond', workerBytesPerSecond);
  if (between !== 'ring' && between !== 'shards') refuse('between', between, "'ring' or 'shards'");

  const toOtherRacks = (racks - 1) / racks;
  const flatCost = (workersPerRack * toOtherRacks) / coreBytesPerSecond;
  const inRack = Math.max(workersPerRack / boxBytesPerSecond, 1 / workerBytesPerSecond);
  const betweenRacks = toOtherRacks / Math.min(boxBytesPerSecond, coreBytesPerSecond);
  const hierarchicalCost = inRack + betweenRacks;
  const choice = flatCost > hierarchicalCost ? 'hierarchical' : 'flat';

  const alone = racks === 1 ? 'there is one rack only; ' : '';
  const reason =
    `${choice === 'flat' ? 'Flat' : 'Hierarchical'}: ${alone}a gigabyte of the model takes ${seconds(flatCost)} flat ` +
    `through the core and ${seconds(hierarchicalCost)} hierarchically (${seconds(inRack)} inside the rack + ` +
    `${seconds(betweenRacks)} between racks by ${between}).`;
  return Object.freeze({ choice, flatCost, hierarchicalCost, reason });
}

/** Of a gigabyte, as the time of a byte says little to people. */
function seconds(perByte: number): string {
  return `${Number((perByte * 1e9).toPrecision(3))} s`;
}
