/**
 * What a step of a worker is made of, as the one word that an answer to a turn may end with (allreduce/control.ts). Both ends are
 * here. Invariant: what `toWord` writes `fromWord` reads, to a tenth of a microsecond.
 */
import { PeerError } from '../../base/index.ts';

/** Means over the steps of a turn, in milliseconds. */
export interface StepParts {
  /** Forward and backward pass. */
  readonly computeMs: number;
  /** For gradients of others, behind the backward pass. */
  readonly waitMs: number;
}

export function toWord({ computeMs, waitMs }: StepParts): string {
  return `${computeMs.toFixed(4)}+${waitMs.toFixed(4)}`;
}

export function fromWord(word: string | undefined): StepParts {
  const found = /^(\d+\.\d+)\+(\d+\.\d+)$/.exec(word ?? '');
  if (found) return { computeMs: Number(found[1]), waitMs: Number(found[2]) };
  throw new PeerError(
    'PROTOCOL_VIOLATION',
    `a worker said '${word ?? ''}' of its steps, not the milliseconds of computing and waiting as in 12.5+0.3; use workers of the same version`,
    { word },
  );
}
