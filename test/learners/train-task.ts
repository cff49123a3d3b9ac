/**
 * Learners as a test starts them: the watchdog is in the process of the test, and the learners run `learner-program.ts`, which builds the
 * same task from the same module and comes to the same call. Not a test itself.
 */
import { fileURLToPath } from 'node:url';
import {
  trainByLearners,
  type LearnerTask,
  type TrainOptions,
  type TrainResult,
} from '../../src/learners/index.ts';
import { programOf } from '../support/test-program.ts';

/** A module with a function `buildTask`, and what it is given: plain data. */
export interface TaskSource {
  /** URL of the module. */
  readonly module: string;
  readonly data: unknown;
}

const PROGRAM = fileURLToPath(new URL('./learner-program.ts', import.meta.url));

export async function loadTask({ module, data }: TaskSource): Promise<LearnerTask> {
  const { buildTask } = (await import(/* @vite-ignore */ module)) as {
    readonly buildTask: (data: unknown) => LearnerTask;
  };
  return buildTask(data);
}

export type TaskOptions = TrainOptions & { readonly source: TaskSource };

export async function trainTask({ source, ...options }: TaskOptions): Promise<TrainResult> {
  const command = [process.execPath, ...programOf(PROGRAM), JSON.stringify(source)] as const;
  return trainByLearners(await loadTask(source), { command, log: () => undefined, ...options });
}
