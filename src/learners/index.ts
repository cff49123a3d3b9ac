export { trainWithLearners } from './watchdog.ts';
export type { Processes, Progress, TrainEvent, TrainOptions, TrainResult } from './train-options.ts';
export { loadTask } from './task.ts';
export type { LearnerTask, TaskSource } from './task.ts';
export { UPDATE_MODES } from './update-mode.ts';
export type { UpdateMode } from './update-mode.ts';
