/**
 * Checks of single fields of what comes in, for `messages.ts`. Pure. Invariant: whatever is not of the kind that was asked
 * for is a `ProtocolFault`, which ends the connection.
 */
import { quoted } from '../../base/index.ts';
import { ProtocolFault } from './frame.ts';
import type { Header } from './message-stream.ts';

export function countOf(header: Header, name: string): number {
  const value = header[name];
  check(isCount(value), name, header);
  return value;
}

export function countsOf(header: Header, name: string): readonly number[] {
  const values = listOf(header, name);
  for (const value of values) check(isCount(value), name, header);
  return values as number[];
}

export function listOf(header: Header, name: string): readonly unknown[] {
  const value = header[name];
  check(Array.isArray(value), name, header);
  return value as unknown[];
}

/** JSON has no others, but a number may be too large for one. */
export function finiteOf(header: Header, name: string): number {
  const value = header[name];
  check(typeof value === 'number' && Number.isFinite(value), name, header);
  return value;
}

export function objectOf(value: unknown, what: string): Header {
  check(typeof value === 'object' && value !== null && !Array.isArray(value), what, value);
  return value as Header;
}

export function isCount(value: unknown, most = 2 ** 40): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= most;
}

export function check(condition: boolean, what: string, value: unknown): asserts condition {
  if (!condition) throw malformed(what, value);
}

export function malformed(what: string, value: unknown): ProtocolFault {
  return new ProtocolFault(`sent a malformed ${what}: ${quoted(value, 120)}`);
}
