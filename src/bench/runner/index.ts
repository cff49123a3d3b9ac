export { runnerChart } from './chart.ts';
export { benchRunner, caseOf } from './runner.ts';
export type { RunnerBench, RunnerBenchOptions, RunnerCase } from './runner.ts';
export { RUNNER_MODELS } from './runner-models.ts';
export type { RunnerModel } from './runner-models.ts';
