/** The script that learners of tests run: builds the task of its argument and comes to `fit`. Started as a learner only. */
import { fit } from '../../src/runner/index.ts';
import { loadTask, type TaskSource } from './train-task.ts';

const { model, ...rest } = await loadTask(JSON.parse(process.argv[2]!) as TaskSource);
await fit(model, { ...rest, on: { learners: 2 } });
