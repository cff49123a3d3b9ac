/** A watchdog as a process of its own, which can be killed: trains with the options of its argument and says what happens, a line of JSON each. */
import { trainWithLearners } from '../../src/learners/index.ts';
import type { TrainOptions } from '../../src/learners/index.ts';

const say = (line: object) => process.stdout.write(`${JSON.stringify(line)}\n`);
const result = await trainWithLearners({
  ...(JSON.parse(process.argv[2]!) as TrainOptions),
  onEvent: say,
});
const { steps, samples, finished, evaluation, replacements, restarts } = result;
say({ type: 'result', steps, samples, finished, evaluation, replacements, restarts });
result.close();
