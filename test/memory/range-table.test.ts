/** The lock of a space's table of ranges names the thread that holds it, so that a wait can say for whom it waits. */
import { threadId } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { PAGE_BYTES, RangeTable } from '../../src/memory/range-table.ts';

const LOCK_WORD = 1;

it('a wait for a thread that ended with the lock says which thread that was', () => {
  const buffer = new SharedArrayBuffer(4 * PAGE_BYTES);
  const table = new RangeTable(buffer, 0);
  table.initialise();
  expect(table.take(1)).toBe(PAGE_BYTES);
  Atomics.store(new Int32Array(buffer), LOCK_WORD, 7 + 1);
  expect(() => table.take(1)).toThrow(
    `thread ${threadId} waited 0 ms for the range table of the space, which thread 7 holds`,
  );
  Atomics.store(new Int32Array(buffer), LOCK_WORD, 0);
  expect(table.take(1)).toBe(2 * PAGE_BYTES);
});
