/** A script that measures teams of learners by trials, for learners.test.ts; its argument is a configuration. Not a test itself. */
import { dirname } from 'node:path';
import { buildModel } from '../../src/cli/build-model.ts';
import { loadConfigFile } from '../../src/cli/config-file.ts';
import { measureLearners } from '../../src/cli/learner-trial.ts';
import { loadTask } from '../../src/cli/task.ts';

const path = process.argv[2]!;
const config = await loadConfigFile(path, dirname(path));
const task = loadTask(config.data, config.seed);
const { model } = buildModel(config, task);
const { signal } = new AbortController();
const options = { config, model, train: task.train, signal, startMs: 60_000 };
const speeds: (number | undefined)[] = [];
// What further processes come to first is a trial of learners.
for (const team of [{ learners: 2 }, { learners: 2, mode: 'server lock-free' }, { learners: 1 }] as const) {
  speeds.push((await measureLearners(team, options))?.samplesPerSec);
}
const stopped = await measureLearners({ learners: 1 }, { ...options, signal: AbortSignal.abort() });
console.log(JSON.stringify({ speeds, isStopped: stopped === undefined }));
