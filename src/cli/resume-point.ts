/**
 * Where a run that is resumed goes on: the newest good checkpoint of its folder. Reads it; whether
 * it fits is for `fit` to say.
 */
import { CheckpointStore } from '../runtime/index.ts';
import type { RunFolder } from './run-folder.ts';

export interface ResumePoint {
  readonly path: string;
  readonly step: number;
}

export function findResumePoint(folder: RunFolder): ResumePoint | undefined {
  const { checkpoint, path } = new CheckpointStore(folder.checkpoints).latest();
  return checkpoint && path !== undefined ? { path, step: checkpoint.step } : undefined;
}
