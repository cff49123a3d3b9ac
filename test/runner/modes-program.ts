/** Trains a small model in a mode, for modes.test.ts; its argument says which. The first process prints one line. Not a test itself. */
import { fit, type FitEvent, type FitOptions } from '../../src/runner/index.ts';
import { smallModels, type SmallModel } from './small-models.ts';

const { model: name, ...options } = JSON.parse(process.argv[2]!) as Partial<FitOptions> & {
  readonly model: SmallModel;
};
const { model, train, test, ...usual } = smallModels[name]();
const events: FitEvent[] = [];
const result = await fit(model, {
  ...{ ...usual, train, test, ...options, log: () => undefined },
  onEvent: (event) => event.type !== 'progress' && events.push(event),
});
const { steps, finished, evaluation, workers, replica } = result;
const valuesOf = (regions: ReadonlyMap<string, { readonly view: Float32Array }>) =>
  Object.fromEntries([...regions].map(([key, { view }]) => [key, [...view]]));
const averages = [...replica.memory.averages.values()].map(valuesOf);
const parameters = valuesOf(replica.memory.parameters);
await result.close();
console.log(JSON.stringify({ steps, finished, evaluation, workers, parameters, averages, events }));
