/**
 * How models take options: one zod schema for each model holds every option's type, sentence and default, so that
 * code, a configuration file and a command line are checked and documented by the same data.
 * Invariant: what `readOptions` returns is complete and in range.
 */
import { z } from 'zod';
import { schemaFault, UsageError } from '../base/index.ts';

export const count = () => z.number().int().positive();
/** A probability of dropping an element. */
export const share = () => z.number().min(0).lt(1);

/** `[C, H, W]` for images; any shape for models that flatten. */
export const imageShape = () =>
  z.tuple([count(), count(), count()]).describe('Shape of one image: channels, height, width.');

export const classes = () => count().describe('Number of classes.');
export const vocabulary = () =>
  count().describe('Number of token ids; id 0 is padding where the model pads.');
export const labelSmoothing = () =>
  share().default(0).describe('Share of the target spread evenly over all classes.');

/** Fills in defaults; an unknown field, a wrong type or a value out of range is INVALID_CONFIG. */
export function readOptions<S extends z.ZodObject>(model: string, schema: S, options: unknown): z.output<S> {
  const result = schema.strict().safeParse(options);
  if (result.success) return result.data as z.output<S>;
  const faults = result.error.issues.map((issue) => schemaFault(issue, options));
  throw new UsageError(
    'INVALID_CONFIG',
    `The options of model '${model}' are wrong: ${faults.join('; ')}. ` +
      `It takes ${Object.keys(schema.shape).join(', ')}; correct the ones named.`,
    { model, faults },
  );
}
