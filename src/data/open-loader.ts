/** Chooses the loader: the direct one for small batches, the prefetcher for large ones. Decides nothing else. */
import { DirectLoader } from './direct-loader.ts';
import { BatchLayout } from './loader.ts';
import type { BatchLoader } from './loader.ts';
import { Prefetcher } from './prefetcher.ts';
import type { PrefetcherOptions } from './prefetcher.ts';

/**
 * Gathering costs 0.5 to 1 ms for each MiB delivered (bytes to float32, one core); handing a batch over costs about
 * 0.05 ms, the copy out of the slot, and a wake-up that may put the thread on the caller's own core when no other is
 * idle. Below 1 MiB (MNIST up to batch 334, most token batches) the thread cannot win enough to be worth a core.
 */
export const PREFETCH_THRESHOLD_BYTES = 2 ** 20;

export interface OpenLoaderOptions extends PrefetcherOptions {
  /** Batches of at least this many bytes, as delivered, are prefetched. Default `PREFETCH_THRESHOLD_BYTES`. */
  readonly prefetchThresholdBytes?: number;
}

export function openLoader(options: OpenLoaderOptions): BatchLoader {
  const threshold = options.prefetchThresholdBytes ?? PREFETCH_THRESHOLD_BYTES;
  return new BatchLayout(options).bytes < threshold ? new DirectLoader(options) : new Prefetcher(options);
}
