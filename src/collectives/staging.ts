/**
 * Regions that peers on this host cannot map, such as those of private segments, are worked on in a shared copy.
 * Invariant: after `finish` the caller's regions hold what the copies hold; regions that can be mapped are never
 * copied.
 */
import type { Kernels } from '../kernels/index.ts';
import type { Region } from '../memory/index.ts';
import type { Operation } from '../progress/index.ts';
import type { InPlace } from '../transport/index.ts';

export class Staging {
  readonly regions: readonly Region[];
  readonly #given: readonly Region[];
  readonly #kernels: Kernels;

  constructor(operation: Operation, inPlace: InPlace, given: readonly Region[], kernels: Kernels) {
    this.#given = given;
    this.#kernels = kernels;
    this.regions = given.every((region) => inPlace.isShareable(region))
      ? given
      : given.map((region) => (inPlace.isShareable(region) ? region : copyOf(operation, region, kernels)));
  }

  finish(): void {
    if (this.regions === this.#given) return;
    this.#given.forEach((region, i) => {
      const staged = this.regions[i]!;
      if (staged !== region) this.#kernels.copy(region, staged);
    });
  }
}

function copyOf(operation: Operation, region: Region, kernels: Kernels): Region {
  const copy = operation.scratch(region.dtype, region.length);
  kernels.copy(copy, region);
  return copy;
}
