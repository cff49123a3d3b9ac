/** A small run of every kind of operation, for step-trace.test.ts; its argument has options. Not a test itself. */
import { fit } from '../../src/runner/index.ts';
import { traced, type TracedOptions } from './traced.ts';

const given = JSON.parse(process.argv[2]!) as TracedOptions;
const { model, options } = traced(given);
const result = await fit(model, { ...options, log: () => undefined });
await result.close();
