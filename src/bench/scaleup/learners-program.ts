/**
 * Learners for `bench scaleup`: a script that trains by them until it is told to end by SIGTERM,
 * and prints what it hears of them, a line of JSON each. Run by learners-turn.ts, never imported;
 * the learners run it again.
 */
import { updateModeParts, type UpdateMode } from '../../learners/index.ts';
import { fit, type FitEvent } from '../../runner/index.ts';
import { buildTask, type TextTaskData } from './text-task.ts';

export interface LearnersOrder {
  readonly task: TextTaskData;
  readonly learners: number;
  readonly mode: UpdateMode;
}

/** What a turn needs of the events. */
export type LearnersLine = Extract<FitEvent, { readonly type: 'progress' | 'learner-lost' }>;

/** More than any turn sees. */
const EPOCHS = 1_000_000;

const { task, learners, mode } = JSON.parse(process.argv[2]!) as LearnersOrder;
const ending = new AbortController();
process.once('SIGTERM', () => ending.abort());
const { model, ...rest } = buildTask(task);
const result = await fit(model, {
  ...rest,
  // One is a process of its own, too: what is compared differs in nothing else.
  on: { learners, ...updateModeParts(mode) },
  ...{ epochs: EPOCHS, signal: ending.signal },
  onEvent: (event) => {
    if (event.type !== 'progress' && event.type !== 'learner-lost') return;
    process.stdout.write(`${JSON.stringify(event satisfies LearnersLine)}\n`);
  },
});
await result.close();
