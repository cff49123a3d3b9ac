/**
 * Where a run that is resumed goes on, and who can go on from there. At the end of an epoch `fit` and learners can go on from
 * each other's checkpoints. Within an epoch they cannot: `fit` knows how far it is in the order of the samples, learners know
 * which batches are done. Invariant: no sample of an epoch is silently repeated or left out.
 */
import { UsageError } from '../base/index.ts';
import { resolveOptimizerSpec } from '../kernels/index.ts';
import { CheckpointStore } from '../runtime/index.ts';
import type { ResolvedConfig } from './config.ts';
import type { RunFolder } from './run-folder.ts';

export interface ResumePoint {
  readonly path: string;
  readonly step: number;
  /** Finished epochs. */
  readonly epoch: number;
  /** Who was in the middle of the epoch; undefined at its beginning. */
  readonly midEpoch: 'fit' | 'learners' | undefined;
  readonly seed: unknown;
  readonly optimizer: unknown;
}

interface StoredState {
  readonly seed?: unknown;
  readonly optimizer?: unknown;
  readonly order?: { readonly position?: number };
  readonly done?: readonly number[];
}

/** The newest good checkpoint of a run. */
export function findResumePoint(folder: RunFolder): ResumePoint | undefined {
  const { checkpoint, path } = new CheckpointStore(folder.checkpoints).latest();
  if (!checkpoint || path === undefined) return undefined;
  const { seed, optimizer, order, done } = checkpoint.state as StoredState;
  const isMidFit = (order?.position ?? 0) > 0;
  const isMidLearners = (done?.length ?? 0) > 0;
  const midEpoch = isMidLearners ? 'learners' : isMidFit ? 'fit' : undefined;
  const { step, epoch } = checkpoint;
  return { path, step, epoch, midEpoch, seed, optimizer };
}

/** Refuses what learners cannot go on from as if nothing had happened. */
export function checkForLearners(point: ResumePoint, config: ResolvedConfig, folder: RunFolder): void {
  const { path, epoch, midEpoch } = point;
  if (midEpoch === 'fit') {
    throw mismatch(
      path,
      `was made by one learner in the middle of epoch ${epoch + 1}; several go on from the end of an epoch only. Use --learners 1, or start in another folder.`,
    );
  }
  const mine = { seed: config.seed, optimizer: resolveOptimizerSpec(config.optimizer) };
  const theirs = { seed: point.seed, optimizer: point.optimizer };
  if (sortedText(mine) !== sortedText(theirs)) {
    throw mismatch(
      path,
      `was made with ${sortedText(theirs)}, this run has ${sortedText(mine)}. Use the same seed and optimizer, or start in another folder.`,
    );
  }
  if (midEpoch === undefined) return;
  if (config.maxSteps !== undefined) {
    throw mismatch(
      path,
      `was made by several learners in the middle of epoch ${epoch + 1}, which cannot stop after so many steps. Leave out --max-steps, or start in another folder.`,
    );
  }
  // Which batches are done means something only while batches are the same.
  const { batchSize } = folder.readStoredConfig();
  if (batchSize === config.batchSize) return;
  throw mismatch(
    path,
    `was made in the middle of epoch ${epoch + 1} with batches of ${batchSize}, this run has ${config.batchSize}. Use the same batch size, or start in another folder.`,
  );
}

/** Refuses what workers in lock step cannot go on from: they do all batches of an epoch in order. */
export function checkForWorkers(point: ResumePoint | undefined): void {
  if (point?.midEpoch !== 'learners') return;
  throw mismatch(
    point.path,
    `was made by several learners in the middle of epoch ${point.epoch + 1}; workers go on from the end of an epoch only. Finish the epoch with --learners, or start in another folder.`,
  );
}

function mismatch(path: string, fault: string): UsageError {
  return new UsageError('CHECKPOINT_MISMATCH', `${path} ${fault}`, { path });
}

/** As JSON with the keys in one order, so that texts compare. */
function sortedText(value: unknown): string {
  return JSON.stringify(value, (_key, entry: unknown) =>
    typeof entry === 'object' && entry !== null && !Array.isArray(entry)
      ? Object.fromEntries(Object.entries(entry).sort(([a], [b]) => (a < b ? -1 : 1)))
      : entry,
  );
}
