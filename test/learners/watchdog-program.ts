/**
 * A script that trains by learners as its users write it: builds the task of its argument and calls `fit`; says what happens, a line of
 * JSON each. Its process can be killed, and its learners are started as it was.
 */
import { fit, type FitOptions } from '../../src/runner/index.ts';
import { loadTask, type TaskSource } from './train-task.ts';

export interface WatchdogOrder {
  readonly source: TaskSource;
  readonly options: Omit<Partial<FitOptions>, 'signal' | 'onEvent'>;
}

const say = (line: object) => process.stdout.write(`${JSON.stringify(line)}\n`);
const { source, options } = JSON.parse(process.argv[2]!) as WatchdogOrder;
const { model, ...rest } = await loadTask(source);
const result = await fit(model, { ...rest, ...options, log: () => undefined, onEvent: say });
const { steps, finished, evaluation, learners } = result;
say({ type: 'result', steps, finished, evaluation, ...learners });
await result.close();
