/** A script that calls `fit` for learners several times, for fit-learners.test.ts. Not a test itself. */
import { fit, type FitEvent, type FitOptions } from '../../src/runner/index.ts';
import type { Model } from '../../src/graph/index.ts';
import { circlesModel, circlesRun } from './circles.ts';

let begun = 0;
// A closure, and data that was made in memory: neither can be sent to another process.
const build = (): Model => (begun++, circlesModel());
const events: FitEvent[] = [];
const common: FitOptions = { ...circlesRun, log: () => undefined };

async function attempt(options: Partial<FitOptions>): Promise<object> {
  try {
    const result = await fit(build(), {
      ...{ ...common, ...options },
      onEvent: (event) => {
        if (process.env['TRIBUTARY_WORKER'] === '1') throw new Error('a learner was told an event');
        if (event.type !== 'progress') events.push(event);
      },
    });
    const { steps, finished, evaluation, workers, learners } = result;
    await result.close();
    return { steps, finished, evaluation, workers, learners };
  } catch (error) {
    return { code: (error as { code?: string }).code, message: (error as Error).message };
  }
}

const results = [
  await attempt({ on: { learners: 2 }, maxSteps: 23 }),
  // The same task: its processes come to the call above.
  await attempt({ on: { learners: 2, appliedBy: 'server' } }),
  await attempt({ on: { learners: 2 }, seed: 99 }),
  await attempt({ on: { workers: 2 } }),
];
console.log(JSON.stringify({ results, events, begun }));
