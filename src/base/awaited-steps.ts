/**
 * One sequence of steps for callers that can wait and for those that cannot: a generator that
 * yields what is to be awaited before it goes on. Invariant: what a step throws, or what it awaits
 * fails with, goes through the generator, so that it can give back what it holds.
 */
import { InternalError } from './errors.ts';

export type AwaitedSteps<T> = Generator<Promise<unknown>, T, void>;

export async function runAwaiting<T>(steps: AwaitedSteps<T>): Promise<T> {
  let step = steps.next();
  while (!step.done) {
    try {
      await step.value;
    } catch (error) {
      step = steps.throw(error);
      continue;
    }
    step = steps.next();
  }
  return step.value;
}

/** For steps that have nothing to wait for. */
export function runAtOnce<T>(steps: AwaitedSteps<T>): T {
  const step = steps.next();
  if (step.done) return step.value;
  throw new InternalError('BROKEN_INVARIANT', 'a step that must be done at once waits for something');
}
