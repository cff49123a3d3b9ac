/** A script that calls `fit` on several workers, for fit-workers.test.ts; its argument has options. Not a test itself. */
import { fit, type FitEvent, type FitOptions } from '../../src/runner/index.ts';
import { circlesModel, circlesRun } from './circles.ts';

const options = JSON.parse(process.argv[2]!) as Partial<FitOptions>;
const events: FitEvent[] = [];
const result = await fit(circlesModel(), {
  ...{ ...circlesRun, ...options, log: () => undefined },
  onEvent: (event) => {
    // Workers are told nothing; if they were, this would end them.
    if (process.env['TRIBUTARY_WORKER'] === '1') throw new Error('a worker was told an event');
    if (event.type !== 'progress') events.push(event);
  },
});
const { steps, finished, evaluation, workers } = result;
const parameters = [...result.replica.memory.parameters.values()].map(({ view }) => [...view]);
const slots = [...result.replica.memory.slots.values()].flatMap((own) =>
  Object.values(own).map(({ view }) => [...view]),
);
await result.close();
// What follows `fit` runs once.
console.log(JSON.stringify({ steps, finished, evaluation, workers, parameters, slots, events }));
