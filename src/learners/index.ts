export { MAX_LEARNERS } from './board.ts';
export { learnIfAssigned } from './learn.ts';
export type { LearnerTask } from './task.ts';
export type { Processes, TrainEvent, TrainOptions, TrainResult } from './train-options.ts';
export { UPDATE_MODES, updateModeNamed, updateModeParts } from './update-mode.ts';
export type { UpdateMode } from './update-mode.ts';
export { trainByLearners } from './watchdog.ts';
