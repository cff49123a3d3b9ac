/** Runs a function that must fail with a code of the error tree, and gives the error for further checks. */
import { expect } from 'vitest';
import { TributaryError } from '../../src/base/index.ts';
import type { ErrorCode } from '../../src/base/index.ts';

export function expectError(
  run: () => unknown,
  code: ErrorCode,
  ...parts: readonly string[]
): TributaryError {
  let caught: unknown;
  try {
    run();
  } catch (error) {
    caught = error;
  }
  expect(caught).toBeInstanceOf(TributaryError);
  const error = caught as TributaryError;
  expect(error.code, error.message).toBe(code);
  for (const part of parts) expect(error.message).toContain(part);
  return error;
}
